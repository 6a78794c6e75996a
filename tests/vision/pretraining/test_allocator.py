"""Freed memory comes back from the C library, not from the system, where glibc is asked to keep it."""

import ctypes
import platform
import resource

import pytest
import torch
from processes import in_new_process

from vision.pretraining.allocator import keep_freed_memory


def faults(keep):
    """Page faults of filling 64 MB five times, once the heap has room for them."""
    keep_freed_memory(keep)
    for _ in range(20):
        torch.empty(16_000_000).fill_(1.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.empty(16_000_000).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is what is told")
def test_freed_memory_is_kept():
    assert in_new_process(faults, True) < 100
    assert in_new_process(faults, False) > 100


def test_nothing_happens_where_there_is_no_c_library_of_the_process(monkeypatch):
    def windows(name):
        raise TypeError("argument of type 'NoneType' is not iterable")

    monkeypatch.setattr(ctypes, "CDLL", windows)
    keep_freed_memory()
