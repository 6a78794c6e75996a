"""Memory that was freed but that the C library keeps."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress


def return_freed_memory() -> None:
    """Give free memory of the heap back to the system, where the C library is glibc; elsewhere do nothing.

    Steps on a CPU allocate tensors of ever other sizes. glibc keeps what they free, and the pieces fit the next ones
    badly: a process grows with every step, to twice of what it needs. ``malloc_trim`` gives whole free pages back.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)
