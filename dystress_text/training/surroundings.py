"""What a run changes in its process, and puts back: it may be a function call in somebody's
notebook.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState


@contextmanager
def left_as_they_were() -> Iterator[None]:
    """Put back random numbers, torch's choice of kernels, and accelerate's state and words, as they
    were before.
    """
    begun = bool(
        PartialState._shared_state
    )  # by the user; else the next run may have another precision
    python, numpy = random.getstate(), np.random.get_state()
    log, backends, memory = (
        logging.getLogger("accelerate.utils.other"),
        torch.backends,
        torch.utils.deterministic,
    )
    strict, level, timed = (
        torch.are_deterministic_algorithms_enabled(),
        log.level,
        backends.cudnn.benchmark,
    )
    attention: bool = backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    tf32 = backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32
    filled = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    log.setLevel(logging.ERROR)  # it warns at each checkpoint with --do_mlm
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        log.setLevel(level)
        if not begun:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()
        torch.use_deterministic_algorithms(strict)
        backends.cudnn.benchmark = timed
        backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32 = tf32
        backends.cuda.enable_cudnn_sdp(attention)
        memory.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
