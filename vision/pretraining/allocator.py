"""A setting of the C library's allocator for training on a CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt


def keep_freed_memory(keep: bool = True) -> None:
    """Make glibc keep freed memory for the next allocation, and not return it to the system; or set its defaults again.

    Each activation of a convolution is tens of megabytes. By default glibc maps, zeroes and unmaps them in every step,
    which takes 15 % of a step on two cores. Other C libraries are not changed. glibc reads the environment variables
    for the same settings before Python starts, so a program cannot set them for itself.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, or another C library
        return
    mallopt(_TRIM_THRESHOLD, 2**31 - 1 if keep else 128 * 1024)
    mallopt(_MMAP_MAX, 0 if keep else 65_536)
