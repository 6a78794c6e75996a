"""The verdict of an adaptation on a run's page: its words, its table and its picture, from ``run.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORE, OPENING = "score", "opening"

Row = tuple[str, Mapping[str, Any], float | None]  # a name, its change, and the bar


def found_in(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What ``verdict.json`` holds; None where the run was not judged."""
    found = record.get("adaptation")
    return found if isinstance(found, Mapping) and "verdict" in found else None


def verdict_words(found: Mapping[str, Any]) -> list[str]:
    """The verdict, its reasons, and what the folder holds."""
    first, *others = found["reasons"]
    return [f"{found['verdict']}: {first}", *others, found["about"]]


def verdict_table(found: Mapping[str, Any]) -> tuple[str, list[list[str]]]:
    """A title, and all measures of base and adapted model, x 100."""
    lines = [["measure x 100", "base", "adapted", "difference", f"{found['confidence']:.0%} interval"]]
    for each in found["measures"]:
        change = each["difference"]
        lines.append([
            each["name"], f"{each['base']:.2f}", f"{each['tuned']:.2f}", f"{change['figure']:+.2f}", _between(change)
        ])  # fmt: skip
    agreement = found["agreement"]
    figure = "-" if agreement["figure"] is None else f"{agreement['figure']:.2f}"
    lines.append(["agreement of general pairs with the base", "100.00", figure, "", _between(agreement, "")])
    return f"On {found['split']['judged_on']:,} sentences that trained and chose nothing", lines


def draw_verdict(found: Mapping[str, Any]) -> Figure:
    """How far the space opens, and the changes of the score and of what is guarded; a tick at each one's bar."""
    import matplotlib.pyplot as plt

    from dystress_text.report.drawings import WIDTH, style
    from dystress_text.report.plots import STYLES, dress_plain

    bars = found["bars"]
    changes = {each["name"]: each["difference"] for each in found["measures"]}
    kept: list[Row] = [(SCORE, found[SCORE], -bars["most_doubt"])]
    kept += [(name, changes[name], None) for name in found["deciding"] if name not in bars["guarded"]]
    kept += [(name, changes[name], -most) for name, most in bars["guarded"].items() if name in changes]
    opened: list[Row] = [(OPENING, found[OPENING], bars["least_opening"])]
    with style():
        size = (0.8 * WIDTH, 1.6 + 0.26 * (1 + len(kept)))
        figure, panels = plt.subplots(2, 1, figsize=size, height_ratios=[1.4, len(kept)], layout="constrained")
        for axes, rows in zip(panels, (opened, kept), strict=True):
            axes.axvline(0, color=STYLES[3][0], linewidth=1)
            for place, (name, change, bar) in enumerate(rows):
                colour = STYLES[0][0] if name in (SCORE, OPENING) else STYLES[3][0]
                if change["low"] is not None and change["high"] is not None:
                    axes.plot([change["low"], change["high"]], [place, place], color=colour, linewidth=1.6)
                if change["figure"] is not None:
                    axes.plot(change["figure"], place, "o", color=colour, markersize=5)
                if bar is not None:
                    axes.plot(bar, place, "|", color=STYLES[1][0], markersize=11, markeredgewidth=1.6)
            axes.set_yticks(range(len(rows)), [name.removesuffix(" log rank") for name, _, _ in rows])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            dress_plain(axes, "", "", 8)
        panels[0].set_title(f"{found['verdict']}: adapted minus base", fontsize=9, loc="left")
        panels[0].set_xlabel("points of uniformity")
        panels[1].set_xlabel(f"points of log rank, {found['confidence']:.0%} intervals; ticks: bars")
    return figure


def _between(change: Mapping[str, Any], sign: str = "+") -> str:
    ends: Sequence[float | None] = (change["low"], change["high"])
    return "unknown" if None in ends else " to ".join(format(end, f"{sign}.2f") for end in ends)
