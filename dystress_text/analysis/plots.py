"""Draw losses, in the common style of all figures. Needs the ``plots`` extra."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path

import matplotlib.style
import torch
from matplotlib.figure import Figure

from dystress_text.analysis.runs import FinishedRun
from dystress_text.losses.objectives import Objective

# a colour-blind-safe palette; line styles distinguish the curves in grey print
STYLES = [
    ("#0072b2", "-"),
    ("#d55e00", "--"),
    ("#009e73", "-."),
    ("#595959", ":"),
    ("#cc79a7", (0, (6, 1, 1, 1))),
    ("#e69f00", "-"),
    ("#56b4e9", "--"),
]
SIMILARITIES = [-1, -0.5, 0, 0.5, 1]  # ticks
GREY = "#8c8c8c"


def style() -> AbstractContextManager[None]:
    """Return a context with the text sizes, grid and layout of all figures."""
    return matplotlib.style.context(Path(__file__).with_name("figures.mplstyle"))


def draw_losses(
    losses: Mapping[str, Objective | FinishedRun],
    panels: tuple[int, int],
    size: tuple[float, float],
) -> Figure | None:
    """Draw the temperature and the logit of losses over the similarity of a pair, in two panels.

    The positives' logit is pale where a reweighting makes the two differ. A temperature that
    depends on more than the similarity is left out. None if nothing is left.
    """
    similarity = torch.linspace(-1, 1, 1201, dtype=torch.float64)
    figure = Figure(figsize=size)
    of_tau, of_logit = figure.subplots(*panels)
    for (name, loss), (colour, line) in zip(losses.items(), cycle(STYLES)):
        reweighting = getattr(loss, "reweighting", None)
        temperature = getattr(loss, "temperature", None)
        if reweighting is None or temperature is None:
            continue
        if temperature.needs_progress or temperature.needs_mean_positive:
            continue
        tau = temperature(similarity).detach().expand_as(similarity)
        of_tau.plot(similarity, tau, color=colour, linestyle=line, label=name)
        logits = (
            reweighting.logits(similarity, tau)[0],
            reweighting.positive_logit(similarity, tau),
        )
        for logit, alpha in zip(logits, (0.4, 1), strict=True):
            of_logit.plot(similarity, logit.detach(), color=colour, linestyle=line, alpha=alpha)
    of_tau.margins(y=0.1)
    of_tau.set(ylabel="$\\tau(s)$", title="temperature of a pair")
    of_logit.set(ylabel="logit", title="its logit (pale: a negative's)")
    for axes in (of_tau, of_logit):
        axes.set(xlabel="cosine similarity s", xlim=(-1, 1), xticks=SIMILARITIES)
    if len(of_tau.lines) > 1:
        figure.legend(*of_tau.get_legend_handles_labels(), loc="outside lower center")
    return figure if of_tau.lines else None
