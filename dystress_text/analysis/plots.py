"""Draw losses in the style of all plots. Needs the ``plots`` extra."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib.style
import torch
from matplotlib.figure import Figure

from dystress_text.losses.objectives import Objective


def style() -> AbstractContextManager[None]:
    """Return a context that sets the colours, text sizes and layout of plots."""
    return matplotlib.style.context(Path(__file__).with_name("figures.mplstyle"))


def draw_losses(
    losses: Mapping[str, Objective], panels: tuple[int, int], size: tuple[float, float]
) -> Figure | None:
    """Draw the temperature and the logit of losses over the similarity of a pair, in two panels.

    If a reweighting gives negatives another logit than positives, it is drawn in a paler colour.
    Temperatures that depend on more than the similarity are left out.

    Args:
        losses: the losses, by their name in the legend.
        panels: the arrangement of the two panels, (rows, columns).
        size: width and height in inches.

    Returns:
        The figure; None if nothing is left to draw.
    """
    similarity = torch.linspace(-1, 1, 1201, dtype=torch.float64)
    figure = Figure(figsize=size)
    of_tau, of_logit = figure.subplots(*panels)
    for name, loss in losses.items():
        reweighting = getattr(loss, "reweighting", None)
        temperature = getattr(loss, "temperature", None)
        if reweighting is None or temperature is None:
            continue
        if temperature.needs_progress or temperature.needs_mean_positive:
            continue
        tau = temperature(similarity).detach().expand_as(similarity)
        (line,) = of_tau.plot(similarity, tau, label=name)
        look = {"color": line.get_color(), "linestyle": line.get_linestyle()}
        negative = reweighting.logits(similarity, tau)[0]
        of_logit.plot(similarity, negative.detach(), alpha=0.4, **look)
        positive = reweighting.positive_logit(similarity, tau)
        of_logit.plot(similarity, positive.detach(), **look)
    if not of_tau.lines:
        return None
    of_tau.margins(y=0.1)
    of_tau.set(ylabel="τ(s)", title="temperature of a pair")
    of_logit.set(ylabel="logit", title="its logit (pale: a negative's)")
    for axes in (of_tau, of_logit):
        axes.set(xlabel="cosine similarity s", xlim=(-1, 1))
    if len(of_tau.lines) > 1:
        figure.legend(*of_tau.get_legend_handles_labels(), loc="outside lower center")
    return figure
