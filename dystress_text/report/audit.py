"""What a temperature rule amounted to, from the lines of a similarity log: the nearest constant, and how near it is.

The distance is that of :mod:`dystress_text.core.comparison`: the share of the negatives' gradient that must be moved.
All steps count the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dystress_text.core.diagnosis import BINS
from dystress_text.errors import UserError

EQUIVALENT_MOVED = 0.10
"""A rule is expected to train like its nearest constant if less of the negatives' gradient is moved than this."""
EQUIVALENT_PULL = 0.10
"""And if the gradient of the positives differs from that of the negatives by less than this share of it."""
FEWEST_NEGATIVES = 200  # below them, an audit says nothing
END = 0.1  # the share of the steps that are the first, or the last ones
_SEEN = 0.001  # a difference on the similarity axis below this share is not worth a word

Floats = NDArray[np.float64]
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """Where on the similarity axis the rule has more (or less) of the gradient than the constant."""

    low: float
    high: float
    share: float  # positive where it has more

    def __str__(self) -> str:
        kind, share = "more" if self.share > 0 else "less", f"{100 * abs(self.share):.1f} %"
        return f"{share} {kind} than the constant at similarities of {self.low:.2f} to {self.high:.2f}"


@dataclass(frozen=True)
class Window:
    """A rule over some steps.

    Attributes:
        steps: the first and the last one.
        tau: the nearest constant.
        moved: the share of the negatives' gradient that must be moved to turn the rule's into that constant's.
        pull: the gradient of the positives over that of the negatives; 1 for InfoNCE.
        negative: mean similarity of the negatives.
        taus: the constants that the rule was compared with, (constants,).
        moved_by_constant: of each, (constants,).
        rule: shares of the negatives' gradient by similarity, (BINS,).
        constant: the same under the nearest constant, (BINS,).
    """

    steps: tuple[int, int]
    tau: float
    moved: float
    pull: float
    negative: float
    taus: Floats
    moved_by_constant: Floats
    rule: Floats
    constant: Floats

    @property
    def equivalent(self) -> bool:
        """Whether the rule is expected to train like the constant."""
        return self.moved < EQUIVALENT_MOVED and abs(self.pull - 1) < EQUIVALENT_PULL

    @property
    def along_axis(self) -> float:
        """The share that moves along the similarity axis; the rest moves between pairs of one similarity."""
        return float(np.abs(self.rule - self.constant).sum() / 2)

    @property
    def at_the_end(self) -> bool:
        """Whether the nearest constant is the lowest or the highest that was tried."""
        return self.tau in (self.taus[0], self.taus[-1])

    def differences(self) -> list[Difference]:
        """The interval with most more, and the one with most less of the gradient than the constant has."""
        edges, more = np.linspace(-1, 1, BINS + 1), self.rule - self.constant
        signs = np.sign(np.where(np.abs(more) < _SEEN / 10, 0, more))
        runs = [list(run) for _, run in groupby(range(BINS), key=lambda k: signs[k])]
        found = [Difference(float(edges[r[0]]), float(edges[r[-1] + 1]), float(more[r].sum())) for r in runs]
        ends = max(found, key=lambda d: d.share), min(found, key=lambda d: d.share)
        return [d for d in ends if abs(d.share) >= _SEEN]


@dataclass(frozen=True)
class Audit:
    """A rule on a data set.

    Attributes:
        source: where its batches come from.
        rule: in words, such as ``CosineTemperature(tau_min=0.05, tau_max=0.07)``.
        objective: the name of its class.
        data: sentences or images.
        negatives: their number.
        windows: ``all`` and, where there are several logged parts, ``first`` and ``last``.
    """

    source: str
    rule: str
    objective: str
    data: str
    negatives: int
    windows: Mapping[str, Window]


def windows_of(lines: Sequence[Line], log: object) -> tuple[dict[str, Window], int]:
    """The windows of a similarity log, and the number of negatives in it.

    Args:
        lines: of the log.
        log: its name, for messages.

    Raises:
        UserError: it has no comparison, too few negatives, or is damaged.
    """
    compared = [line for line in lines if "comparison" in line]
    ends = [0, *(line["step"] for line in compared)]
    parts = [_Part(before + 1, line["step"], line) for before, line in zip(ends, compared, strict=False)]
    if not parts:
        raise UserError(f"{log} holds no comparison with constants: train with --log_similarity and this version")
    try:
        negatives = round(sum(sum(part.line["histograms"]["negatives"]) for part in parts))
        if negatives < FEWEST_NEGATIVES:
            raise UserError(f"{log}: an audit needs {FEWEST_NEGATIVES} negatives, and it has {negatives}")
        total = parts[-1].last
        chosen = {
            "first": [part for part in parts if part.last <= END * total] or parts[:1],
            "all": parts,
            "last": [part for part in parts if part.first > (1 - END) * total] or parts[-1:],
        }
        if len(parts) == 1:
            chosen = {"all": parts}
        seen = {name: some for name, some in chosen.items() if any(part.line["comparison"]["batches"] for part in some)}
        if not seen:
            raise UserError(f"{log}: in no batch had the negatives a gradient")
        return {name: _window(some, lines) for name, some in seen.items()}, negatives
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{log} is damaged: {type(error).__name__} {error}") from error


class _Part(NamedTuple):
    """Some steps whose comparison is one line."""

    first: int
    last: int
    line: Line


def _window(parts: Sequence[_Part], lines: Sequence[Line]) -> Window:
    of_parts = [part.line["comparison"] for part in parts if part.line["comparison"]["batches"]]
    weights = [comparison["batches"] for comparison in of_parts]

    def mean(values: Sequence[Any]) -> Floats:
        return np.asarray(np.average(np.array(values, dtype=float), axis=0, weights=weights))

    taus, moved = np.array(of_parts[0]["tau"], dtype=float), mean([c["moved"] for c in of_parts])
    tau, least = nearest_constant(taus, moved)
    by_constant = mean(
        [[_spread(row, c["first_bin"]) for row in c["constants"]] for c in of_parts]
    )  # (constants, BINS)
    first, last = parts[0].first, parts[-1].last
    negative = [line["negative"] for line in lines if first <= line["step"] <= last and line["negative"] is not None]
    return Window(
        (first, last), tau, least, float(mean([c["pull"] for c in of_parts])), float(np.mean(negative)), taus, moved,
        mean([_spread(c["rule"], c["first_bin"]) for c in of_parts]), _between(taus, by_constant, tau),
    )  # fmt: skip


def _spread(shares: Sequence[float], first_bin: int) -> Floats:
    bins = np.zeros(BINS)
    bins[first_bin : first_bin + len(shares)] = shares
    return bins


def nearest_constant(taus: Floats, moved: Floats) -> tuple[float, float]:
    """The constant with the least moved share, and this share, between the constants that were tried.

    For a rule that is a constant the share is a V over the logarithm of tau, for others a rounded V: its square is
    smooth in both cases. A polynomial through the squares at the five constants around the least one gives the minimum.

    Args:
        taus: (constants,), at equal steps of their logarithm.
        moved: of each, (constants,).
    """
    least = int(np.argmin(moved))
    if least in (0, len(taus) - 1):
        return float(taus[least]), float(moved[least])
    start = min(max(least - 2, 0), len(taus) - 5)
    through = np.polyfit(np.arange(start, start + 5) - least, moved[start : start + 5] ** 2, 4)
    places = np.linspace(-1, 1, 2001)
    squares = np.polyval(through, places)
    best = int(np.argmin(squares))
    step = math.log(taus[-1] / taus[0]) / (len(taus) - 1)
    return float(taus[least] * math.exp(places[best] * step)), math.sqrt(max(0.0, float(squares[best])))


def _between(taus: Floats, rows: Floats, tau: float) -> Floats:
    """The row (BINS,) of a constant between those of ``rows`` (constants, BINS), by the logarithm of tau."""
    return np.array([np.interp(math.log(tau), np.log(taus), column) for column in rows.T])


# ---- what a reader gets ----------------------------------------------------------------------------------------------


def in_words(audit: Audit) -> list[str]:
    """The audit in a few lines; the first one says what the rule amounts to."""
    window, name = audit.windows["all"], tau_in_words(audit.windows["all"])
    moved, expected = f"{100 * window.moved:.1f} % of the gradient", "expected to train like it"
    if window.moved < EQUIVALENT_MOVED:
        verdict = f"On these {audit.data} this rule is the constant {name} to within {moved}"
        lines = [f"{verdict}; it is {'' if window.equivalent else 'not '}{expected}."]
    else:
        verdict = f"On these {audit.data} this rule is no constant: the nearest is {name}, and {moved} must be moved"
        lines = [f"{verdict}; it is not {expected}."]
    if abs(window.pull - 1) >= EQUIVALENT_PULL:
        times = f"{window.pull:.2f} times that of its negatives"
        lines.append(f"The gradient of its positives is {times}; that of InfoNCE is 1.00 times.")
    differences = window.differences()
    if differences:
        lines.append(f"Of the gradient it has {' and '.join(map(str, differences))}.")
    return lines


def tau_in_words(window: Window) -> str:
    """The nearest constant, with a word if it is the first or the last one that was tried."""
    ends = {float(window.taus[0]): " or less", float(window.taus[-1]): " or more"}
    return f"{window.tau:.4f}{ends.get(window.tau, '')}"


def table(audit: Audit) -> list[list[str]]:
    """The windows side by side, the header first."""
    header = ["steps", "nearest constant", "moved", "along s", "pull", "mean s of negatives"]
    return [
        header,
        *(
            [
                f"{w.steps[0]:,} to {w.steps[1]:,}", tau_in_words(w), f"{100 * w.moved:.1f} %",
                f"{100 * w.along_axis:.1f} %", f"{w.pull:.2f}", f"{w.negative:.3f}",
            ]
            for w in audit.windows.values()
        ),
    ]  # fmt: skip


def record_of(audit: Audit) -> dict[str, Any]:
    """The audit as ``audit.json`` holds it."""
    of_all = audit.windows["all"]
    return {
        "source": audit.source,
        "rule": audit.rule,
        "objective": audit.objective,
        "data": audit.data,
        "negatives": audit.negatives,
        "nearest_constant": round(of_all.tau, 5),
        "moved": round(of_all.moved, 5),
        "pull": round(of_all.pull, 5),
        "equivalent": of_all.equivalent,
        "equivalent_below": {"moved": EQUIVALENT_MOVED, "pull": EQUIVALENT_PULL},
        "windows": {name: _window_record(window) for name, window in audit.windows.items()},
    }


def _window_record(window: Window) -> dict[str, Any]:
    return {
        "steps": list(window.steps),
        "nearest_constant": round(window.tau, 5),
        "moved": round(window.moved, 5),
        "moved_along_similarity": round(window.along_axis, 5),
        "pull": round(window.pull, 5),
        "negative_similarity": round(window.negative, 5),
        "differences": [{"low": d.low, "high": d.high, "share": round(d.share, 5)} for d in window.differences()],
        "moved_by_constant": dict(zip(map(str, window.taus.tolist()), _rounded(window.moved_by_constant), strict=True)),
        "gradient": {
            "edges": _rounded(np.linspace(-1, 1, BINS + 1)),
            "rule": _rounded(window.rule),
            "constant": _rounded(window.constant),
        },
    }


def _rounded(values: Floats) -> list[float]:
    return [round(float(value), 5) for value in values]
