"""A setting of the C library's allocator for training on a CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt
_DEFAULTS = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_MAX: 65_536}
_KEEPING = {_TRIM_THRESHOLD: 2**31 - 1, _MMAP_MAX: 0}


def keep_freed_memory(keep: bool = True) -> None:
    """Make glibc keep freed memory for the next allocation, and not return it to the system.

    Each activation of a convolution is tens of megabytes. By default glibc maps, zeroes and unmaps them in every step,
    which takes 15 % of a step on two cores. Other C libraries are not changed. glibc reads the environment variables
    for the same settings before Python starts, so a program cannot set them for itself.
    """
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return
    mallopt = getattr(library, "mallopt", None)
    if mallopt is not None:
        for option, value in (_KEEPING if keep else _DEFAULTS).items():
            mallopt(option, value)
