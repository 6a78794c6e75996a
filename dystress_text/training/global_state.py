"""Restore the global state of torch and accelerate that a run changes."""

from __future__ import annotations

import atexit
import logging
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState, PartialState

from dystress_text.cli.command_line import any_character_printable
from dystress_text.training.allocator import keep_freed_memory

backends: Any = torch.backends  # whose types are incomplete


@contextmanager
def restored_global_state() -> Iterator[None]:
    """Run with a fresh state of accelerate and torch; restore the caller's state at the end.

    The state comprises what accelerators share, random states, environment variables, a log level,
    and torch's kernels, default type and gradient mode. A process group that starts in this context
    ends with the process, since torchrun lets a process form only one. In this context standard
    output accepts any character.
    """
    log = logging.getLogger("accelerate.utils.other")
    # by default torch forks all devices, with a warning if there are several
    devices = range(torch.cuda.device_count()) or None
    with (
        ExitStack() as stack,
        torch.random.fork_rng(devices),
        torch.inference_mode(False),
        torch.enable_grad(),
        keep_freed_memory(),
        any_character_printable(),
    ):
        at_end = stack.callback
        at_end(os.environ.update, dict(os.environ))
        at_end(os.environ.clear)
        # dicts that all accelerators of a process share, so they are changed in place
        for shared in [
            each._shared_state for each in (PartialState, AcceleratorState, GradientState)
        ]:
            at_end(shared.update, dict(shared))
            at_end(shared.clear)
            shared.clear()
        if not dist.is_initialized():
            atexit.register(_end_process_group)
        at_end(random.setstate, random.getstate())
        at_end(np.random.set_state, np.random.get_state())
        at_end(torch.set_default_dtype, torch.get_default_dtype())
        at_end(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
        at_end(backends.cuda.enable_cudnn_sdp, backends.cuda.cudnn_sdp_enabled())
        at_end(setattr, backends.cudnn, "benchmark", backends.cudnn.benchmark)
        at_end(log.setLevel, log.level)
        torch.set_default_dtype(torch.float32)
        log.setLevel(logging.ERROR)  # with do_mlm it warns at each checkpoint
        yield


def _end_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def full_fp32() -> Iterator[None]:
    """Compute in full fp32. TF32, the alternative, has a mantissa of 10 bits.

    torch 2.9 added new settings beside the old ones. Reading an old one that differs from its new
    one raises a RuntimeError.
    """
    new = []
    if hasattr(backends, "fp32_precision"):
        # the general ones first: "none" takes the value of a more general setting
        new += [backends, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn]
        new += [backends.cuda.matmul, backends.mkldnn.matmul]
    with ExitStack() as stack:
        for each in new:
            stack.callback(setattr, each, "fp32_precision", each.fp32_precision)
            each.fp32_precision = "none"
        products = torch.get_float32_matmul_precision()
        try:
            convolutions = backends.cudnn.allow_tf32
        except RuntimeError:
            convolutions = True  # unlike the new settings, which are off
        stack.callback(torch.set_float32_matmul_precision, products)
        stack.callback(setattr, backends.cudnn, "allow_tf32", convolutions)
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = False
        yield
