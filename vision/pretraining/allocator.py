"""A setting of the C library's allocator for training on a CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next allocation, and not return it to the system.

    By default it maps, zeroes and unmaps each activation of a convolution in every step, which
    takes 15 % of a step on two cores. It reads environment variables for the same before Python
    starts, too early for a program to set them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, or another C library
        return
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_MMAP_MAX, 0)
