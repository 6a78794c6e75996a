"""How the C library deals with the large tensors of training on a CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt
_DEFAULTS = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_MAX: 65_536}
_KEEPING = {_TRIM_THRESHOLD: 2**31 - 1, _MMAP_MAX: 0}


def keep_freed_memory(keep: bool = True) -> None:
    """Have glibc hand freed memory out again, in place of returning it to the system and asking anew.

    Each activation of a convolution is tens of megabytes, which glibc maps, zeroes page by page, and unmaps again in
    every step: 15 % of a step on two cores. Where the C library is another one, nothing happens.
    """
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return
    mallopt = getattr(library, "mallopt", None)
    if mallopt is not None:
        for option, value in (_KEEPING if keep else _DEFAULTS).items():
            mallopt(option, value)
