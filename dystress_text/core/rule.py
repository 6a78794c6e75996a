"""Rules on pairs: what enters the softmax for a pair of a given similarity, and how its gradient flows back.

A rule has two maps over similarities. The first gives the logits of the negatives, whose logsumexp is taken row by row;
a rule that needs several logsumexps (a weight of each negative and its mean, say) gives several logits. The second
takes gradients of these logits back to the similarities; it is not the derivative of the first where the rule keeps
something out of the gradient. :meth:`PairRule.rows` makes of the logsumexps the two numbers that an objective takes.

A temperature is the rule whose logit is ``s / tau(s)``.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dystress_text.core.gather import Gather

Gradients = tuple[Tensor, list[Tensor | None]]  # of the similarities, and of each learned parameter
Pull = Callable[[Sequence[Tensor]], Gradients]  # from the gradients of the logits


class Rows(NamedTuple):
    """The two numbers per anchor that an objective is a function of, both (rows,)."""

    positive: Tensor  # logit of the positive
    negatives: Tensor  # logsumexp of the logits of the negatives


class RowSums(NamedTuple):
    """What is known of each anchor's pairs; a rule makes :class:`Rows` of it."""

    positive: Tensor  # (rows,), logit of the positive
    sums: Tensor  # (rows, k), logsumexps over the negatives, one for each of the rule's logits
    counts: Tensor | None = None  # (rows,), negatives; None for a rule that needs no counts
    tau: Tensor | None = None  # (rows, 1), temperatures of the anchors, for a rule with one a sample
    samples: Tensor | None = None  # (rows,), int64: the anchors' places in the data set, for the same

    @property
    def log_counts(self) -> Tensor:
        """Logarithm of each row's number of negatives, (rows,); 0 where it has none."""
        assert self.counts is not None
        return self.counts.clamp(min=1).log()

    @classmethod
    def of_all(cls, groups: Sequence[RowSums]) -> RowSums:
        """The rows of several groups, one group after the other."""
        counts = [group.counts for group in groups if group.counts is not None]
        taus = [group.tau for group in groups if group.tau is not None]
        samples = [group.samples for group in groups if group.samples is not None]
        return cls(
            torch.cat([group.positive for group in groups]),
            torch.cat([group.sums for group in groups]),
            torch.cat(counts) if counts else None,
            torch.cat(taus) if taus else None,
            torch.cat(samples) if samples else None,
        )


RowLoss = Callable[[RowSums], Tensor]  # the loss of each row, (rows,)


class PairRule(nn.Module, ABC):
    """Base of all rules. Its call maps similarities (any shape) to temperatures (same shape).

    Attributes:
        sums: the number of the rule's logits.
        needs_counts: whether :meth:`rows` needs the number of each anchor's negatives.
        by_sample: whether anchors have temperatures of their own, so that the loss must know its samples.
    """

    sums = 1
    needs_counts = False
    by_sample = False

    @abstractmethod
    def forward(self, similarity: Tensor) -> Tensor:
        """Temperature of each pair; ``similarity`` and the result have the same shape, dtype and device.

        Must be elementwise and deterministic: the losses of a large batch call it block by block, and again in the
            backward.
        """

    def logits(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[Tensor, ...]:
        """The numbers whose logsumexps over the negatives are taken: new tensors of the shape of ``similarity``.

        Args:
            similarity: of the pairs, (rows, columns).
            detach: whether a temperature is kept out of the gradient.
            tau: temperatures of the anchors, (rows, 1), instead of those of the pairs.
        """
        if tau is None:
            tau = self(similarity.detach() if detach else similarity)
        return (similarity / tau,)

    def positive_logit(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> Tensor:
        """The logit of positive pairs, (rows,); that of a negative of the same similarity unless a rule says else."""
        return self.logits(similarity, detach, None if tau is None else tau.squeeze(1))[0]

    def rows(self, sums: RowSums) -> Rows:
        """What the objective takes; the first of the logsumexps unless a rule says else."""
        return Rows(sums.positive, sums.sums[:, 0])

    def pullback(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[list[Tensor], Pull]:
        """The first logits, up to the last that has a gradient, and the function that takes their gradients back.

        The logits are new tensors, which may be changed in place.

        Arguments as for :meth:`logits`. Automatic differentiation does it for any rule; rules that are often used do it
        themselves, in less time.
        """
        learned = self.learned()
        with torch.enable_grad():
            leaf = similarity.detach().requires_grad_()
            logits = self.logits(leaf, detach, tau)

        def pull(gradients: Sequence[Tensor]) -> Gradients:
            used = [(logit, g) for logit, g in zip(logits, gradients, strict=True) if logit.requires_grad]
            outputs, of_outputs = zip(*used, strict=True)
            found = torch.autograd.grad(outputs, [leaf, *learned], of_outputs, allow_unused=True)
            return found[0], list(found[1:])  # the rule need not depend on every parameter

        return [logit.detach().clone() for logit in logits], pull

    # ---- the state of a rule, if it has any ------------------------------------------------------------------------

    def learned(self) -> list[nn.Parameter]:
        """The parameters that the objective's gradient trains."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def own_loss(self, sums: RowSums) -> Tensor | None:
        """A term of value 0 whose gradient trains the rule's own parameters; None for a rule without one."""
        return None

    def set_samples(self, samples: int) -> None:
        """Receive the size of the data set, for ``by_sample``; the state is on the device it was on before."""

    def anchor_temperatures(self, samples: Tensor) -> Tensor:
        """The temperatures of anchors by the numbers of their samples, (rows,) -> (rows, 1), for ``by_sample``."""
        raise NotImplementedError

    def weights(self, sums: RowSums) -> Tensor | None:
        """A factor of each row's loss, without a gradient, (rows,); None for 1."""
        return None

    def update(self, sums: RowSums, samples: Tensor, gather: Gather) -> None:
        """Change the state after a batch of training, for ``by_sample``; ``samples`` (n,) once, not once a view."""

    def observe(self, mean_positive: Tensor) -> None:
        """Receive the mean positive similarity of the global batch (a scalar). Losses call this every step."""

    def advance(self, epoch: float, run_fraction: float) -> None:
        """Receive the progress: epochs done, and the fraction of the run in [0, 1]. The trainer calls this."""

    def keep(self) -> None:
        """Remember the present state as that of the best model. Tasks call this when they save the model."""

    def go_back(self) -> None:
        """Return to the state of the last :meth:`keep`."""

    def end_points(self) -> dict[str, float]:
        """What was learned, by option name; {} where nothing is."""
        return {}

    def as_it_is(self) -> PairRule:
        """A copy that keeps the present state while this one changes."""
        return copy.deepcopy(self)

    def values(self) -> dict[str, Any]:
        """Its parameters by name, as ``run.json`` holds them."""
        return {}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.values().items())

    @property
    def needs_mean_positive(self) -> bool:
        """Whether :meth:`observe` is implemented; if not, losses skip the reduction."""
        return type(self).observe is not PairRule.observe

    @property
    def needs_progress(self) -> bool:
        """Whether :meth:`advance` is implemented, so that the training loop must call it."""
        return type(self).advance is not PairRule.advance
