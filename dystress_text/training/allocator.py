"""Tune the memory allocator of the C library for training on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# parameters of glibc's mallopt
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_MMAP_MAX = -4
# glibc raises both thresholds to these values as blocks are freed, until mallopt sets one
_HIGHEST_MMAP_THRESHOLD = 32 * 2**20
_HIGHEST_TRIM_THRESHOLD = 64 * 2**20
_DEFAULT_MMAP_MAX = 65_536


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """In this context, let glibc reuse freed memory. At the end, return it to the system.

    By default glibc maps, zeroes and unmaps each large tensor, so page faults of the gradient take
    half of the time of a step with a static model, and 15 % with a ResNet. The environment
    variables of glibc would have to be set before Python starts.
    """
    try:
        library = ctypes.CDLL(None)
        mallopt = library.mallopt
        trim = library.malloc_trim
    except (OSError, TypeError, AttributeError):  # Windows, or another C library
        yield
        return
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_MMAP_MAX, 0)
    try:
        yield
    finally:
        mallopt(_TRIM_THRESHOLD, _HIGHEST_TRIM_THRESHOLD)
        mallopt(_MMAP_THRESHOLD, _HIGHEST_MMAP_THRESHOLD)
        mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        trim(0)
