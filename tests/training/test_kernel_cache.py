"""Kernels for shapes that come once do not stay."""

import os

import psutil
import pytest
import torch
from processes import in_new_process

from dystress_text.training.accelerator import keep_few_kernels

VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def growth(few):
    """Bytes by which 200 products of ever other shapes make a process grow."""
    for name in VARIABLES:
        os.environ.pop(name, None)
    if few:
        keep_few_kernels()
    layer, process = torch.nn.Linear(384, 384), psutil.Process()
    layer(torch.randn(400, 384)).sum().backward()
    before = process.memory_info().rss
    for n in range(64, 264):
        with torch.autocast("cpu", torch.bfloat16):
            layer(torch.randn(n, 384)).sum().backward()
    return process.memory_info().rss - before


@pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="this CPU has no bf16 kernels of oneDNN",
)
def test_kernels_for_shapes_that_come_once_do_not_stay():
    few, many = in_new_process(growth, True), in_new_process(growth, False)
    assert few < 100e6
    assert many > 2 * few


def test_what_the_user_has_set_stays(monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "7")
    keep_few_kernels()
    assert [os.environ[name] for name in VARIABLES] == ["7", "7"]
