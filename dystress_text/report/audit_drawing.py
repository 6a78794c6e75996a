"""The picture of an audit: the negatives' gradient under the rule and under its nearest constant. Needs ``plots``."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.core.diagnosis import BINS, local_temperature
from dystress_text.core.registry import Temperature
from dystress_text.report.audit import Audit, Window, tau_in_words
from dystress_text.report.plots import GREY, STYLES, WIDTH, dress, legend_below, style

(_BLUE, _SOLID), (_RED, _DASHED), *_ = STYLES
_RULE = "this rule"
_EDGES = np.linspace(-1, 1, BINS + 1)
_LITTLE, _MUCH = 2e-4, 0.01  # shares of the gradient in a bin: it is shown, and its temperatures fit the panel


def draw_audit(audit: Audit, rule: Temperature | None, detach: bool = True) -> Figure:
    """The figure of an audit over all its steps.

    Args:
        audit: what is drawn.
        rule: has the temperatures of the lower panel; None for no such panel.
        detach: whether its temperature is kept out of the gradient.
    """
    window = audit.windows["all"]
    s = torch.linspace(-1, 1, 4001, dtype=torch.float64)
    local = None if rule is None else local_temperature(rule, s, detach)
    with style():
        rows = 1 if local is None else 2
        figure, grid = plt.subplots(rows, sharex=True, squeeze=False, figsize=(WIDTH, 1.3 + 1.5 * rows))
        top, bottom = grid[0, 0], grid[-1, 0]
        _gradients(top, window)
        if rule is not None and local is not None:
            _temperatures(bottom, s, local.numpy(), rule(s).detach().numpy(), window)
            top.label_outer()
        bottom.set_xticks(np.arange(-10, 11, 2) / 10)
        bins = np.flatnonzero(np.maximum(window.rule, window.constant) >= _LITTLE)  # where some of the gradient lies
        bottom.set_xlim(_EDGES[bins[0]], _EDGES[bins[-1] + 1])
        legend_below(figure, bottom, columns=3)
        figure.suptitle(f"{audit.rule}\non {audit.negatives:,} negatives", fontsize=7)
    return figure


def _gradients(axes: Axes, window: Window) -> None:
    rule, constant = 100 * window.rule, 100 * window.constant
    lower, upper = np.minimum(rule, constant), np.maximum(rule, constant)
    for more, colour in ((rule > constant, _BLUE), (rule < constant, _RED)):
        top = np.where(more, upper, lower)
        axes.stairs(top, _EDGES, baseline=lower, fill=True, color=colour, alpha=0.3, linewidth=0)
    axes.stairs(rule, _EDGES, color=_BLUE, linestyle=_SOLID, linewidth=1.4, label=_RULE)
    axes.stairs(constant, _EDGES, color=_RED, linestyle=_DASHED, linewidth=1.4, label=_name(window))
    title = f"Where the negatives' gradient lies: {100 * window.moved:.1f} % of it must move"
    dress(axes, f"% of the gradient\nin a bin of {2 / BINS:g}", title)
    axes.set_ylim(bottom=0)


def _temperatures(axes: Axes, s: Tensor, local: NDArray[Any], tau: NDArray[Any], window: Window) -> None:
    axes.plot(s, tau, color=GREY, linestyle=":", linewidth=1.2, label="its $\\tau(s)$")
    axes.plot(s, local, color=_BLUE, linestyle=_SOLID, label=_RULE)
    axes.axhline(window.tau, color=_RED, linestyle=_DASHED, linewidth=1.4, label=_name(window))
    bins = np.flatnonzero(window.rule >= _MUCH)
    inside = (s.numpy() >= _EDGES[bins[0]]) & (s.numpy() <= _EDGES[bins[-1] + 1])
    shown = np.concatenate([local[inside], tau[inside], [window.tau]])
    low, high = np.nanmin(shown), min(np.nanmax(shown), 3 * window.tau)
    room = max(0.1 * (high - low), 0.02 * window.tau)
    axes.set_ylim(low - room, high + room)
    dress(axes, "local temperature", "By how much similarity a negative's gradient grows e-fold")


def _name(window: Window) -> str:
    return f"the nearest constant, {tau_in_words(window)}"
