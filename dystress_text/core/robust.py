"""Distributionally robust temperatures: fitted so that the softmax over the negatives has a given entropy.

InfoNCE is the worst case over all weights of the negatives whose Kullback-Leibler divergence KL from equal weights is
at most rho; the temperature is the multiplier of that bound. Per anchor, with ``n`` negatives,

    min over tau of  tau log(mean exp((s_j - p) / tau)) + tau rho,    gradient  rho - KL(softmax(s / tau), 1 / n).

At the minimum the softmax weighs as many negatives as ``n exp(-rho)`` equal ones would: the effective number of
negatives. Sources: Qiu et al., "Not All Semantics are Created Equal" (ICML 2023, Alg. 1: iSogCLR); Wei et
al., "FastCLIP" (2024: RGCL with one temperature; the gradient of its code differs from this one).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dystress_text.core.gather import Gather
from dystress_text.core.registry import Temperature, register_temperature
from dystress_text.core.rule import PairRule, Pull, RowSums
from dystress_text.core.temperature import TemperatureError, check_tau

_LEAST = 1e-12  # of 1 + s, where rounding takes a similarity below -1


class _FittedTemperature(Temperature):
    """Base: a second logsumexp, of ``s / tau + log(1 + s)``, which gives the mean similarity under the softmax."""

    sums = 2

    def logits(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[Tensor, ...]:
        (logit,) = super().logits(similarity, detach, tau)
        return logit, logit.detach() + (1 + similarity.detach()).clamp(min=_LEAST).log()

    def positive_logit(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> Tensor:
        return similarity / (self(similarity) if tau is None else tau.squeeze(1))

    def pullback(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[list[Tensor], Pull]:
        divisor = self(similarity) if tau is None else tau
        return [similarity / divisor], lambda gradients: (gradients[0].div_(divisor), [])


def _mean_similarity(sums: RowSums) -> Tensor:
    """Mean similarity of each row's negatives under their softmax, (rows,)."""
    return (sums.sums[:, 1] - sums.sums[:, 0]).exp() - 1


@register_temperature("robust")
class RobustTemperature(_FittedTemperature):
    """One learned temperature, fitted to an effective number of negatives (FastCLIP's RGCL with one temperature).

    The user gives the effective number ``n exp(-rho)`` instead of rho: it does not change with the batch. FastCLIP's
    rho (6.5 on CC3M) counts from its whole data set, of 2.7 million pairs; it exceeds ln 63, the largest divergence in
    a batch of 64. It is 0.44 of its largest divergence, ln 2.7e6; 0.44 ln 63 are 10 effective negatives, the default.

    Its gradient is ``rho - KL``, the mean over the anchors, with any objective; the objective's own gradient does not
    train it. Give it to the optimiser without weight decay.

    Args:
        effective_negatives: at least 1 and at most the batch's number of negatives.
        tau: the temperature at the start.
        tau_min: lower bound.
        tau_max: upper bound.

    Raises:
        TemperatureError: at the first batch, if it has fewer negatives.
    """

    needs_counts = True

    def __init__(
        self, effective_negatives: float = 10.0, tau: float = 0.07, tau_min: float = 0.01, tau_max: float = 1.0
    ) -> None:
        super().__init__()
        check_tau("tau", tau)
        if isinstance(effective_negatives, bool) or not 1 <= effective_negatives < math.inf:
            raise ValueError(f"effective_negatives must be at least 1, got {effective_negatives}")
        if not 0 < tau_min < tau < tau_max:
            raise ValueError(f"tau must lie between tau_min and tau_max, got {tau}, {tau_min} and {tau_max}")
        self.effective_negatives = effective_negatives
        self.tau_min, self.tau_max = tau_min, tau_max
        self.tau = nn.Parameter(torch.tensor(float(tau)))
        self.register_buffer("kept", torch.tensor(float(tau)))
        self._checked = False

    kept: Tensor

    def forward(self, similarity: Tensor) -> Tensor:
        tau = self.tau.detach().clamp(self.tau_min, self.tau_max)
        return tau.to(similarity.dtype).expand_as(similarity)

    def learned(self) -> list[nn.Parameter]:
        return []

    def own_loss(self, sums: RowSums) -> Tensor:
        counts = sums.counts
        assert counts is not None
        if not self._checked:  # once: it reads from the device
            self._checked = True
            if float(counts.max()) < self.effective_negatives:
                raise TemperatureError(
                    f"effective_negatives is {self.effective_negatives:g}, and an anchor of this batch has "
                    f"{int(counts.max())} negatives: lower it, or take a larger batch",
                    "effective_negatives",
                )
        with torch.no_grad():
            self.tau.clamp_(self.tau_min, self.tau_max)  # where the last step may have taken it beyond
            tau = self(sums.positive)  # (rows,)
            divergence = _mean_similarity(sums) / tau - sums.sums[:, 0] + sums.log_counts  # KL, (rows,)
            rho = sums.log_counts - math.log(self.effective_negatives)
            gradient = torch.where(counts > 0, rho - divergence, 0).mean()
        return (self.tau - self.tau.detach()) * gradient.to(self.tau.dtype)

    @torch.no_grad()
    def keep(self) -> None:
        self.kept = self.tau.detach().clone()

    @torch.no_grad()
    def go_back(self) -> None:
        self.tau.copy_(self.kept)

    def end_points(self) -> dict[str, float]:
        return {"tau": round(float(self.tau.detach()), 6)}

    def values(self) -> dict[str, Any]:
        return {
            "effective_negatives": self.effective_negatives, "tau": round(float(self.tau.detach()), 6),
            "tau_min": self.tau_min, "tau_max": self.tau_max,
        }  # fmt: skip


@register_temperature("isogclr")
class SampleTemperature(_FittedTemperature):
    """One temperature for each sample of the data set, by iSogCLR (Qiu et al., ICML 2023, Alg. 1).

    With :class:`~dystress_text.core.objectives.DCLLoss` the gradient of the network is theirs. Each visit of a sample
    takes one step of momentum on its temperature, with the gradient ``log u + rho - u_now / u (mean of (s - p) / tau
    under the softmax)``; u is a moving average of ``u_now = mean exp((s - p) / tau)``, which starts with the first
    visit. The views of a sample share all of it. As in the paper and in the authors' code for images with texts, p is
    inside the average; their code for images alone leaves it out. A sample that is seen once trains with ``tau``.

    Args:
        tau: the temperature at the start; published for images 0.1.
        rho: the divergence to reach, below the logarithm of the number of negatives.
        tau_min: lower bound.
        tau_max: upper bound.
        gamma: share of the new value in the moving average, in (0, 1].
        momentum: share of the new gradient in the momentum, in (0, 1].
        step: length of a step.
        clip: largest size of a gradient.

    Raises:
        ValueError: a value out of range.
    """

    needs_counts = True
    by_sample = True
    taus: Tensor
    averages: Tensor
    speeds: Tensor

    def __init__(
        self,
        tau: float = 0.1,
        rho: float = 0.4,
        tau_min: float = 0.05,
        tau_max: float = 1.0,
        gamma: float = 0.8,
        momentum: float = 0.5,
        step: float = 0.03,
        clip: float = 3.0,
    ) -> None:
        super().__init__()
        check_tau("tau", tau)
        if not 0 < tau_min <= tau <= tau_max < math.inf:
            raise ValueError(f"tau must lie in [tau_min, tau_max], got {tau}, {tau_min} and {tau_max}")
        for name, value, high in (("gamma", gamma, 1.0), ("momentum", momentum, 1.0), ("step", step, math.inf),
                                  ("clip", clip, math.inf), ("rho", rho, math.inf)):  # fmt: skip
            if isinstance(value, bool) or not 0 < value <= high or not math.isfinite(value):
                raise ValueError(f"{name} must be positive and at most {high:g}, got {value}")
        self.tau, self.rho, self.tau_min, self.tau_max = tau, rho, tau_min, tau_max
        self.gamma, self.momentum, self.step, self.clip = gamma, momentum, step, clip
        self.set_samples(0)

    def set_samples(self, samples: int) -> None:
        """Begin with so many samples, all at the temperature of the start; on the device and in the dtype of before."""
        like = self._buffers.get("taus")
        like = torch.empty(0) if like is None else like
        self.register_buffer("taus", like.new_full((samples,), self.tau))
        self.register_buffer("averages", like.new_full((samples,), torch.nan))  # log u; NaN before the first visit
        self.register_buffer("speeds", like.new_zeros(samples))

    def forward(self, similarity: Tensor) -> Tensor:
        """The mean temperature of all samples."""
        tau = self.taus.mean() if len(self.taus) else similarity.new_tensor(self.tau)
        return tau.to(similarity.dtype).expand_as(similarity)

    def anchor_temperatures(self, samples: Tensor) -> Tensor:
        return self.taus[samples].unsqueeze(1)

    @torch.no_grad()
    def weights(self, sums: RowSums) -> Tensor:
        """``tau`` times this batch's ``mean exp((s - p) / tau)`` over its moving average, (rows,)."""
        assert sums.tau is not None
        now, average = self._averages(sums)
        return sums.tau.squeeze(1) * (now - average).exp()

    def _averages(self, sums: RowSums) -> tuple[Tensor, Tensor]:
        """Logarithms of ``mean exp((s - p) / tau)`` in this batch and of the moving average with it, both (rows,)."""
        assert sums.samples is not None
        now = sums.sums[:, 0] - sums.positive - sums.log_counts
        before = self.averages[sums.samples].to(now.dtype)
        kept = before + math.log1p(-self.gamma) if self.gamma < 1 else torch.full_like(before, -torch.inf)
        mixed = torch.logaddexp(kept, now + math.log(self.gamma))
        return now, torch.where(before.isnan(), now, mixed)

    @torch.no_grad()
    def update(self, sums: RowSums, samples: Tensor, gather: Gather) -> None:
        assert sums.tau is not None
        assert sums.counts is not None
        now, average = self._averages(sums)
        tau = sums.tau.squeeze(1)
        mean = _mean_similarity(sums) / tau - sums.positive  # of (s - p) / tau under the softmax, (rows,)
        gradient = average + self.rho - (now - average).exp() * mean
        views = -1, len(samples)  # the views of a sample share its state
        gradient = torch.where(sums.counts > 0, gradient, 0).view(views).mean(0).clamp(-self.clip, self.clip)
        average = average.view(views).logsumexp(0) - math.log(len(average) / len(samples))
        speed = (1 - self.momentum) * self.speeds[samples] + self.momentum * gradient
        moved = (self.taus[samples] - self.step * speed).clamp(self.tau_min, self.tau_max)
        everywhere = gather(samples)
        for state, new in ((self.taus, moved), (self.averages, average), (self.speeds, speed)):
            state[everywhere] = gather(new.to(state.dtype))

    def as_it_is(self) -> PairRule:
        """This one: the temperatures of a batch are kept beside it."""
        return self

    def values(self) -> dict[str, Any]:
        names = ("tau", "rho", "tau_min", "tau_max", "gamma", "momentum", "step", "clip")
        return {name: getattr(self, name) for name in names}
