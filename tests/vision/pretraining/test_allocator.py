"""Freed memory comes back from the C library, not from the system, where glibc is asked to keep it."""

import ctypes
import platform
import subprocess
import sys

import pytest

from vision.pretraining.allocator import keep_freed_memory

FAULTS = """
import resource, sys, torch
from vision.pretraining.allocator import keep_freed_memory
keep_freed_memory(sys.argv[1] == "keep")
def fill():
    torch.empty(16_000_000).fill_(1.0)  # 64 MB
for _ in range(20):  # the heap grows until it has room
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode):
    done = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is what is told")
def test_freed_memory_is_kept():
    assert faults("keep") < 100
    assert faults("default") > 100


def test_nothing_happens_where_there_is_no_c_library_of_the_process(monkeypatch):
    def windows(name):
        raise TypeError("argument of type 'NoneType' is not iterable")

    monkeypatch.setattr(ctypes, "CDLL", windows)
    keep_freed_memory()
