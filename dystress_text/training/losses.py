"""The losses of a run: read from the device at intervals, and checked to be finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from dystress_text.training.checkpoints import TrainingState

_OVERFLOWS = 50  # so many skipped steps in a row end an fp16 run


class Failure(NamedTuple):
    """A step after which a run cannot continue."""

    step: int
    losses: list[float]
    gradient_norm: float
    reason: str


@dataclass
class PendingLosses:
    """Losses and gradient norms of batches, left on the device until :meth:`read`.

    Attributes:
        batches: the number of batches per step.
        fp16: whether the loss is scaled, so that a step whose gradient overflows is skipped.
    """

    batches: int
    fp16: bool
    _pending: list[Tensor] = field(default_factory=list, init=False)  # each (2,)

    def add(self, loss: Tensor, norm: Tensor | None) -> None:
        """Add a batch's loss and, for the last batch of a step, the gradient's norm; both scalars."""
        loss = loss.detach()
        self._pending.append(torch.stack([loss, loss.new_zeros(()) if norm is None else norm.to(loss)]))

    def read(self, accelerator: Accelerator, state: TrainingState) -> Failure | None:
        """Add the losses since the last call to the state. The loop reads nothing else from the device.

        Returns:
            The first step whose loss or gradient is not finite, or at which fp16 has skipped too many steps in a row;
            None if there is no such step.
        """
        if not self._pending:
            return None
        read: list[list[float]] = accelerator.reduce(torch.stack(self._pending), "mean").tolist()
        self._pending.clear()
        steps = [read[i : i + self.batches] for i in range(0, len(read), self.batches)]
        for step, rows in enumerate(steps, start=state.step - len(steps) + 1):
            losses, norm = [loss for loss, _ in rows], rows[-1][1]
            reason = self._add_step(state, losses, norm)
            if reason is not None:
                return Failure(step, losses, norm, reason)
        return None

    def _add_step(self, state: TrainingState, losses: Sequence[float], norm: float) -> str | None:
        """Add a step to the state, or return why the run cannot continue after it."""
        if self.fp16 and not math.isfinite(norm):
            state.skipped_steps += 1
            state.skipped_in_row += 1
            return f"fp16 has skipped {_OVERFLOWS} steps in a row" if state.skipped_in_row >= _OVERFLOWS else None
        state.skipped_in_row = 0
        not_finite = next((loss for loss in losses if not math.isfinite(loss)), None)
        if not_finite is not None:
            return f"the loss is {not_finite}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        state.losses += losses
        return None
