"""Freed memory goes back to the system."""

import sys

import psutil
import pytest
import torch

from dystress_text.training.heap import return_freed_memory


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is done")
def test_freed_memory_goes_back():
    """Every other one of many small tensors is freed, so that the C library cannot shorten its heap by itself."""
    process = psutil.Process()
    kept = [torch.ones(25_000) for _ in range(2_000)]  # 200 MB in pieces below the size that is mapped for itself
    full = process.memory_info().rss
    kept = kept[::2]
    before = process.memory_info().rss
    return_freed_memory()
    after = process.memory_info().rss
    assert len(kept) == 1_000
    assert before > full - 5e7
    assert after < before - 5e7
