"""The picture of an audit: the negatives' gradient under the rule and under its nearest constant. Needs ``plots``."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dystress_text.core.diagnosis import BINS
from dystress_text.core.rule import PairRule
from dystress_text.report.audit import Audit, Window, tau_in_words
from dystress_text.report.curves import similarities
from dystress_text.report.drawings import WIDTH, style
from dystress_text.report.plots import STYLES, dress

(_BLUE, _SOLID), (_RED, _DASHED), *_ = STYLES
_EDGES = np.linspace(-1, 1, BINS + 1)
_MARGIN = 0.05  # of the similarity, beside the bins that hold a gradient


def draw_audit(audit: Audit, rule: PairRule | None) -> Figure:
    """The figure of an audit over all its steps; ``rule`` has the curve of the lower panel, None for no such panel."""
    window = audit.windows["all"]
    ratios = (2, 1) if rule is not None else (1,)
    with style():
        figure, panels = plt.subplots(
            len(ratios), 1, figsize=(WIDTH, 1.5 + 1.2 * len(ratios)), sharex=True, squeeze=False, layout="constrained",
            height_ratios=ratios,
        )  # fmt: skip
        _gradients(panels[0, 0], window)
        if rule is not None:
            _temperatures(panels[1, 0], rule, window)
        for axes in panels[:, 0]:
            axes.label_outer()
        panels[-1, 0].set_xticks(np.arange(-1, 1.01, 0.2).round(1))
        panels[-1, 0].set_xlim(*_occupied(window))
        figure.suptitle(f"{audit.rule}\non {audit.negatives:,} negatives", fontsize=7)
    return figure


def _gradients(axes: Axes, window: Window) -> None:
    rule, constant = 100 * window.rule, 100 * window.constant
    lower, upper = np.minimum(rule, constant), np.maximum(rule, constant)
    for more, colour in ((rule > constant, _BLUE), (rule < constant, _RED)):
        axes.stairs(
            np.where(more, upper, lower), _EDGES, baseline=lower, fill=True, color=colour, alpha=0.3, linewidth=0
        )
    axes.stairs(rule, _EDGES, color=_BLUE, linestyle=_SOLID, linewidth=1.4, label="this rule")
    name = f"the nearest constant, {tau_in_words(window)}"
    axes.stairs(constant, _EDGES, color=_RED, linestyle=_DASHED, linewidth=1.4, label=name)
    title = f"Where the negatives' gradient lies: {100 * window.moved:.1f} % of it would have to move"
    dress(axes, f"% of the gradient\nin a bin of {2 / BINS:g}", title, 8)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _temperatures(axes: Axes, rule: PairRule, window: Window) -> None:
    s = similarities()
    axes.plot(s, rule(s).detach().expand_as(s), color=_BLUE, linestyle=_SOLID)
    axes.axhline(window.tau, color=_RED, linestyle=_DASHED, linewidth=1.4)
    low, high = _occupied(window)
    inside = rule(s[(s >= low) & (s <= high)]).detach()
    ends = float(inside.min()), float(inside.max()), window.tau
    room = 0.15 * (max(ends) - min(ends)) or 0.1 * window.tau
    axes.set_ylim(min(ends) - room, max(ends) + room)
    dress(axes, "temperature", "The temperature of a pair, and the constant", 8)


def _occupied(window: Window) -> tuple[float, float]:
    """The similarities at which some of the gradient lies."""
    bins = np.flatnonzero(np.maximum(window.rule, window.constant) >= 1e-4)
    return max(-1.0, _EDGES[bins[0]] - _MARGIN), min(1.0, _EDGES[bins[-1] + 1] + _MARGIN)
