"""Make the lines of ``similarity.jsonl``: similarities and gradients of pairs.

The log has a line for each step, over all processes. Every ``logging_steps`` steps a line also has
``histograms`` and a ``comparison`` over the steps since the last such line. The histograms count
positives and negatives, and sum the gradient of the negatives, by similarity in equal bins over
[-1, 1]. The comparison is a mean over ``batches`` (:mod:`dystress_text.losses.diagnosis`):

- ``tau``: the constant temperatures that the loss is compared with;
- ``total_variation``: between the negatives' gradient and that of each constant;
- ``gradient_ratio``: the gradient of the positives divided by that of the negatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from dystress_text.losses.diagnosis import (
    ConstantComparison,
    PairSums,
    compare,
    constants,
    pair_sums,
)
from dystress_text.losses.objectives import ContrastiveLoss

HIGH_SIMILARITY = 0.4  # lower bound of the high-similarity region


class SimilarityLog:
    """Record the batches that an objective sees. Only :meth:`read` waits for the device."""

    def __init__(self, objective: ContrastiveLoss) -> None:
        self.objective = objective
        self._step: PairSums | None = None
        self._steps: list[PairSums] = []
        self._compared: ConstantComparison | None = None
        objective.register_forward_pre_hook(self._add)

    def _add(self, _: nn.Module, views: Sequence[Tensor]) -> None:
        sums = pair_sums(self.objective, views, HIGH_SIMILARITY)
        compared = compare(self.objective, views)
        if self._step is not None:
            sums = PairSums(*map(torch.add, self._step, sums))
        if self._compared is not None:
            compared = ConstantComparison(*map(torch.add, self._compared, compared))
        self._step = sums
        self._compared = compared

    def end_step(self) -> None:
        """Count the batches since the last call as one step."""
        assert self._step is not None
        self._steps.append(self._step)
        self._step = None

    def read(self, accelerator: Accelerator) -> list[dict[str, Any]]:
        """Return the lines of the steps since the last call. Call it on all processes."""
        if not self._steps:
            return []
        steps = [torch.stack(each) for each in zip(*self._steps, strict=True)]  # (steps, ...) each
        self._steps.clear()
        sums = PairSums(*_over_processes(steps, accelerator))
        compared = ConstantComparison(*_over_processes(self._compared, accelerator))
        self._compared = None
        return lines_of(sums, compared)


def _over_processes(sums: Any, accelerator: Accelerator) -> list[Tensor]:
    return [each.double().cpu() for each in accelerator.reduce(sums, "sum")]


def lines_of(sums: PairSums, compared: ConstantComparison) -> list[dict[str, Any]]:
    """Return the lines of the log for some steps.

    Args:
        sums: the sums of each step, (steps, ...), on the CPU.
        compared: the comparison over all these steps.
    """
    lines: list[dict[str, Any]] = [_figures(PairSums(*step)) for step in zip(*sums, strict=True)]
    names = ("positives", "negatives", "gradient")
    lines[-1]["histograms"] = {
        name: [round(value, 6) for value in counts]
        for name, counts in zip(names, sums.histograms.sum(0).tolist(), strict=True)
    }
    lines[-1]["comparison"] = _comparison(compared.mean())
    return lines


def _comparison(mean: ConstantComparison) -> dict[str, Any]:
    return {
        "batches": int(mean.batches),
        "tau": [float(f"{tau:.5g}") for tau in constants().tolist()],
        "total_variation": [round(each, 5) for each in mean.total_variation.tolist()],
        "gradient_ratio": float(f"{float(mean.gradient_ratio):.5g}"),
    }


def _figures(sums: PairSums) -> dict[str, float]:
    """Return the means of a step; NaN without negatives or without a gradient."""
    positives, negatives, gradients = sums.table / sums.table[:, :1]
    figures = {
        "positive": positives[1],
        "negative": negatives[1],
        "tau_positive": positives[2],
        "tau_negative": negatives[2],
        "tau_effective": gradients[2],
        "high_share": negatives[3],
        "high_gradient": gradients[3],
    }
    return {name: float(value) for name, value in figures.items()}
