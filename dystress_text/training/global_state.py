"""Restore the global state that a run changes, since it may be called in a notebook."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

from dystress_text.training.allocator import keep_freed_memory


@contextmanager
def restored_global_state() -> Iterator[None]:
    """Restore random states, torch's kernel settings, and accelerate's state and log level."""
    # reset accelerate's state, unless the user created it: the next run may differ in precision
    initialized = bool(PartialState._shared_state)
    python = random.getstate()
    numpy = np.random.get_state()
    strict = torch.are_deterministic_algorithms_enabled()
    attention: bool = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    benchmark = torch.backends.cudnn.benchmark
    convolution_tf32 = torch.backends.cudnn.allow_tf32
    matmul_tf32 = torch.backends.cuda.matmul.allow_tf32
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # of new parameters
    log = logging.getLogger("accelerate.utils.other")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns at each checkpoint with --do_mlm
    # by default torch forks all devices, with a warning if there are several
    devices = range(torch.cuda.device_count()) or None
    try:
        with torch.random.fork_rng(devices), keep_freed_memory():
            yield
    finally:
        torch.set_default_dtype(dtype)
        random.setstate(python)
        np.random.set_state(numpy)
        log.setLevel(level)
        if not initialized:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()
        torch.use_deterministic_algorithms(strict)
        torch.backends.cuda.enable_cudnn_sdp(attention)
        torch.backends.cudnn.benchmark = benchmark
        torch.backends.cudnn.allow_tf32 = convolution_tf32
        torch.backends.cuda.matmul.allow_tf32 = matmul_tf32
