"""The losses of a run: read from the device now and then, and seen when they are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from dystress_text.training.saved_state import TrainingState

_OVERFLOWS = 50  # steps in a row that fp16 may skip


class Failure(NamedTuple):
    """A step that a run cannot go on from."""

    step: int
    losses: list[float]
    gradient_norm: float
    reason: str


@dataclass
class PendingLosses:
    """Losses and gradient norms of batches, left on the device until :meth:`read`.

    Attributes:
        batches: a step.
        fp16: the loss is scaled, so a step whose gradient overflows is skipped.
    """

    batches: int
    fp16: bool
    _pending: list[Tensor] = field(default_factory=list, init=False)  # each (2,)

    def add(self, loss: Tensor, norm: Tensor | None) -> None:
        """Take note of a batch's loss and, at the last batch of a step, of the gradient's norm; both scalars."""
        loss = loss.detach()
        self._pending.append(torch.stack([loss, loss.new_zeros(()) if norm is None else norm.to(loss)]))

    def read(self, accelerator: Accelerator, state: TrainingState) -> Failure | None:
        """Add the losses since the last call to the state; the loop's only read from the device.

        Returns:
            The first step whose loss or gradient is not finite, or that fp16 has skipped after many others; else None.
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
        """Add a step to the state, or say why the run cannot go on from it."""
        if self.fp16 and not math.isfinite(norm):
            state.skipped_steps += 1
            state.skipped_in_row += 1
            return f"fp16 has skipped {_OVERFLOWS} steps in a row" if state.skipped_in_row >= _OVERFLOWS else None
        state.skipped_in_row = 0
        odd = next((loss for loss in losses if not math.isfinite(loss)), None)
        if odd is not None:
            return f"the loss is {odd}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        state.losses += losses
        return None
