"""Every temperature and objective with its formula in `spec_formulas`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import spec_formulas as spec
import torch
from spec_formulas import Row
from torch import Tensor

from dystress_text import losses

PROFILES = [  # all that take tau_min and tau_max
    losses.CosineTemperature,
    partial(losses.ShiftedCosineTemperature, shift=-0.4),
    partial(losses.OneSidedCosineTemperature, shift=0.2),
    losses.LinearTemperature,
    losses.ExponentialTemperature,
    losses.MonotonicCosineTemperature,
    losses.EvenODETemperature,
]
TEMPERATURES = {  # built once: none of them has state
    "constant": (losses.ConstantTemperature(0.1), lambda s: 0.1 + 0 * s),
    "cosine": (losses.CosineTemperature(0.07, 0.2), lambda s: spec.cosine_tau(s, 0.07, 0.2)),
    "shifted": (
        losses.ShiftedCosineTemperature(0.1, 0.14, -0.4),
        lambda s: spec.shifted_tau(s, 0.1, 0.14, -0.4, 0.7),
    ),
    "other side": (
        losses.ShiftedCosineTemperature(0.1, 0.15, 0.2),
        lambda s: spec.shifted_tau(s, 0.1, 0.15, 0.2, 0.6),
    ),
    "one side": (
        losses.OneSidedCosineTemperature(0.1, 0.14, 0.2),
        lambda s: spec.one_sided_tau(s, 0.1, 0.14, -0.2),
    ),
    "linear": (losses.LinearTemperature(0.1, 0.3), lambda s: spec.linear_tau(s, 0.1, 0.3)),
    "exponential": (
        losses.ExponentialTemperature(0.1, 0.3),
        lambda s: spec.exponential_tau(s, 0.1, 0.3, 3.5),
    ),
    "monotonic": (
        losses.MonotonicCosineTemperature(0.1, 0.3),
        lambda s: spec.monotonic_tau(s, 0.1, 0.3),
    ),
    "even ODE": (losses.EvenODETemperature(0.1, 0.3), lambda s: spec.even_ode_tau(s, 0.1, 0.3)),
    "TeMo": (losses.TeMoTemperature(0.1, 0.2), lambda s: spec.temo_tau(s, 0.1, 0.2)),
}


DETACH = pytest.mark.parametrize("detach", [True, False], ids=["detached", "in the graph"])
FORMS = pytest.mark.parametrize("form", [False, True], ids=["plain", "blockwise"])


def both_directions(z1, z2):
    return spec.simcse_rows(z1, z2) + spec.simcse_rows(z2, z1)


def each(row_loss):
    return lambda rows, logits: [row_loss(*row) for row in logits]


info_nce = each(spec.info_nce)


def dclw(rows, logits):
    positives = [s for s, _ in rows[: len(rows) // 2]]  # of one direction; the other has the same
    return [
        spec.decoupled(*row, spec.dclw_weight(s, positives))
        for (s, _), row in zip(rows, logits, strict=True)
    ]


def per_view(rows, logits, of_rows):
    """The decoupled loss of each view's negatives; hard negatives join the positive's view."""
    n = len(rows) // 2
    view1, view2 = (
        [(p, x[: n - 1]) for p, x in logits],
        [(p, x[n - 1 : 2 * n - 2]) for p, x in logits],
    )
    own = [(0 * p, x) for p, x in view1[:n] + view2[n:]]
    across = [
        (p, [*x, *every[2 * n - 2 :]])
        for (p, x), (_, every) in zip(view2[:n] + view1[n:], logits, strict=True)
    ]
    return [a + b for a, b in zip(of_rows(rows, own), of_rows(rows, across), strict=True)]


@dataclass(frozen=True)
class Objective:
    build: Callable[..., losses.ContrastiveLoss]  # from a temperature and options
    rows_of: Callable[[Tensor, Tensor], list[Row]] = (
        spec.simcse_rows
    )  # similarities of each anchor's pairs
    losses: Callable[[list[Row], list[Row]], list[Tensor]] = info_nce  # of similarities and logits

    def rows(self, z1, z2, *hard):
        """Rows of similarities; hard negatives are no candidates in the backward direction."""
        rows = self.rows_of(z1, z2)
        anchors = [*z1, *([] if self.rows_of is both_directions else z2)]
        more = [[spec.similarity(a, h) for view in hard for h in view] for a in anchors]
        more += [[] for _ in rows[len(anchors) :]]
        return [
            (p, [*negatives, *others]) for (p, negatives), others in zip(rows, more, strict=False)
        ]

    def loss(self, rows, tau, detach=True, samples=0, hard=0, weight=0.0):
        """Of rows of similarities; an anchor's hard negative in each of ``hard`` views, of
        ``samples`` rows, has its logit raised by ``weight``.
        """
        logits = spec.logits_of(rows, tau, detach)
        for row, (_, negatives) in enumerate(logits):
            if hard and not (self.rows_of is both_directions and row >= samples):
                for place in range(
                    len(negatives) - hard * samples + row % samples, len(negatives), samples
                ):
                    negatives[place] = negatives[place] + weight
        return spec.mean(self.losses(rows, logits))


def macl(both_views):
    return lambda tau, **options: losses.MACLLoss(temperature=tau, both_views=both_views, **options)


OBJECTIVES = {
    "InfoNCE": Objective(losses.InfoNCELoss),
    "InfoNCE, both directions": Objective(
        lambda tau, **options: losses.InfoNCELoss(tau, bidirectional=True, **options),
        both_directions,
    ),
    "NT-Xent": Objective(losses.NTXentLoss, spec.simclr_rows),
    "DCL": Objective(losses.DCLLoss, spec.simclr_rows, each(spec.decoupled)),
    "DCLW": Objective(losses.DCLWLoss, spec.simclr_rows, dclw),
    "DCL, per view": Objective(
        partial(losses.DCLLoss, per_view=True),
        spec.simclr_rows,
        partial(per_view, of_rows=each(spec.decoupled)),
    ),
    "DCLW, per view": Objective(
        partial(losses.DCLWLoss, per_view=True), spec.simclr_rows, partial(per_view, of_rows=dclw)
    ),
    "MACL": Objective(macl(False), losses=each(spec.macl)),
    "MACL, both views": Objective(macl(True), spec.simclr_rows, each(spec.macl)),
}
EVERY = pytest.mark.parametrize("name", OBJECTIVES)


def views(n, dim, count=2, alike=0.7, seed=0):
    """Correlated embeddings of very different lengths, in fp64."""
    generator = torch.Generator().manual_seed(100 * n + dim + seed)
    base = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    lengths = torch.logspace(-0.5, 0.5, n, dtype=torch.float64).unsqueeze(1)
    drawn = [
        base + alike * torch.randn(n, dim, generator=generator, dtype=torch.float64)
        for _ in range(count)
    ]
    return [(lengths * z).requires_grad_() for z in drawn]


def value_and_gradients(value, inputs):
    return value, *torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)


def assert_same(found, expected, limit=1e-10):
    """Compare by the norm of the difference, relative to the norm."""
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm().item() <= limit * y.norm().item(), (x, y)
