"""Every temperature and objective with its formula in ``spec_formulas``."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import spec_formulas as spec
import torch

from dystress_text import losses
from dystress_text.losses.registry import parse


def temperature_case(text, formula):
    """Return the temperature of a string, and its formula with the same arguments."""
    temperature = parse(text)
    arguments = temperature.arguments().values()
    return temperature, lambda s: formula(s, *arguments)


TEMPERATURES = {  # built once: none of them has state
    "constant": temperature_case("constant(0.1)", spec.constant_tau),
    "cosine": temperature_case("cosine(0.07, 0.2)", spec.cosine_tau),
    "shifted": temperature_case("shifted_cosine(0.1, 0.14, -0.4)", spec.shifted_tau),
    "other side": temperature_case("shifted_cosine(0.1, 0.15, 0.2, 0.5)", spec.shifted_tau),
    "one side": temperature_case("one_sided_cosine(0.1, 0.14, 0.2)", spec.one_sided_tau),
    "linear": temperature_case("linear(0.1, 0.3)", spec.linear_tau),
    "exponential": temperature_case("exponential(0.1, 0.3, 3.5)", spec.exponential_tau),
    "monotonic": temperature_case("monotonic_cosine(0.1, 0.3)", spec.monotonic_tau),
    "even ODE": temperature_case("even_ode(0.1, 0.3)", spec.even_ode_tau),
    "TeMo": temperature_case("temo(0.1, 0.2)", spec.temo_tau),
}
FORMS = pytest.mark.parametrize("form", [False, True], ids=["plain", "blockwise"])


def both_directions(z1, z2):
    return spec.simcse_rows(z1, z2) + spec.simcse_rows(z2, z1)


def each(row_loss):
    return lambda rows, logits: [row_loss(*row) for row in logits]


info_nce = each(spec.info_nce)


def dclw(rows, logits):
    positives = [s for s, _ in rows[: len(rows) // 2]]  # of one direction; the other has the same
    weights = [spec.dclw_weight(s, positives) for s, _ in rows]
    return [spec.decoupled(*row, weight) for row, weight in zip(logits, weights, strict=True)]


def per_view(rows, logits, of_rows):
    """Return decoupled losses summed over both views; hard negatives join the positive's view."""
    n = len(rows) // 2
    own = []
    across = []
    for row, (positive, negatives) in enumerate(logits):
        views = [negatives[: n - 1], negatives[n - 1 : 2 * n - 2]]
        own.append((0 * positive, views[row // n]))
        across.append((positive, views[1 - row // n] + negatives[2 * n - 2 :]))
    return [a + b for a, b in zip(of_rows(rows, own), of_rows(rows, across), strict=True)]


@dataclass(frozen=True)
class Objective:
    build: Callable  # from a temperature and options
    rows_of: Callable = spec.simcse_rows  # similarities of each anchor's pairs, from two views
    losses: Callable = info_nce  # of rows, from their similarities and logits

    def rows(self, z1, z2, *hard):
        """Return rows of similarities; only the forward direction has hard negatives."""
        anchors = [*z1] if self.rows_of is both_directions else [*z1, *z2]
        rows = self.rows_of(z1, z2)
        for anchor, (_, negatives) in zip(anchors, rows, strict=False):
            for view in hard:
                negatives += [spec.similarity(anchor, h) for h in view]
        return rows

    def loss(self, rows, tau, detach=True, samples=0, hard=0, weight=0.0):
        """Return the mean loss of rows of similarities.

        The last ``hard * samples`` negatives of a row are hard ones. ``weight`` is added to the
        logits of the anchor's own, one for each of the ``hard`` views.
        """
        logits = spec.logits_of(rows, tau, detach)
        with_hard = logits[:samples] if self.rows_of is both_directions else logits
        for row, (_, negatives) in enumerate(with_hard):
            for view in range(1, hard + 1):
                index = row % samples - view * samples
                negatives[index] = negatives[index] + weight
        return spec.mean(self.losses(rows, logits))


OBJECTIVES = {
    "InfoNCE": Objective(losses.InfoNCELoss),
    "InfoNCE, both directions": Objective(
        partial(losses.InfoNCELoss, bidirectional=True), both_directions
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
    "MACL": Objective(losses.MACLLoss, losses=each(spec.macl)),
    "MACL, both views": Objective(
        partial(losses.MACLLoss, both_views=True), spec.simclr_rows, each(spec.macl)
    ),
}
EVERY = pytest.mark.parametrize("name", OBJECTIVES)


def views(n, dim, count=2, seed=0):
    """Correlated embeddings of very different lengths, in fp64."""
    generator = torch.Generator().manual_seed(100 * n + dim + seed)
    base = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    lengths = torch.logspace(-0.5, 0.5, n, dtype=torch.float64).unsqueeze(1)
    drawn = []
    for _ in range(count):
        noise = torch.randn(n, dim, generator=generator, dtype=torch.float64)
        drawn.append((lengths * (base + 0.7 * noise)).requires_grad_())
    return drawn


def value_and_gradients(value, inputs):
    gradients = torch.autograd.grad(
        value, inputs, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return value, *gradients


def assert_same(value, expected, inputs, limit=1e-10):
    """Compare a value and its gradients with expected ones, by norms of differences and tensors."""
    for x, y in zip(value_and_gradients(value, inputs), expected, strict=True):
        assert (x - y).norm().item() <= limit * y.norm().item(), (x, y)
