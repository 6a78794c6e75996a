"""What a run changes in its process, and puts back: it may be a function call in somebody's notebook."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def left_as_they_were() -> Iterator[None]:
    """Put back random numbers, torch's choice of kernels, and what accelerate says."""
    python, numpy = random.getstate(), np.random.get_state()
    log, backends = logging.getLogger("accelerate.utils.other"), torch.backends
    strict, level, timed = torch.are_deterministic_algorithms_enabled(), log.level, backends.cudnn.benchmark
    attention: bool = backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    log.setLevel(logging.ERROR)  # it warns at each checkpoint with --do_mlm
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        log.setLevel(level)
        torch.use_deterministic_algorithms(strict)
        backends.cudnn.benchmark = timed
        backends.cuda.enable_cudnn_sdp(attention)
