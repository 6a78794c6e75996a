"""WIN, TIE or WORSE: a tuned model beside its base, from measures without labels.

Contrastive training helps a model whose vectors crowd together: it opens the space, and what belongs together must stay
together (alignment and uniformity, Wang and Isola 2020; Gao et al. 2021). So a model wins where its space opens for
certain and its score does not fall, and nothing that must stay was lost. It is worse where its score falls, something
that must stay was lost, or its space closes, for certain. All else is a tie.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from dystress_text.adaptation.intervals import CONFIDENCE, Estimate, Part, of_agreement, of_means
from dystress_text.adaptation.measures import LOG_RANK, UNIFORMITY, Better, Measured
from dystress_text.adaptation.probes import DROPPED, GENERAL, HALVES, NEIGHBOURS, TRUNCATED
from dystress_text.cli.text_table import lay_out
from dystress_text.errors import UserError
from dystress_text.evaluation.sts import spearman

FORMAT = 1  # of the record
POINTS = 100  # all figures of a record are x 100


class Outcome(StrEnum):
    """What is said about a tuned model."""

    WIN = "WIN"
    TIE = "TIE"
    WORSE = "WORSE"


@dataclass(frozen=True)
class Bars:
    """What decides; figures in points, x 100. docs/adapt.md says on which runs they were set, and what they held on.

    Attributes:
        weights: of the measures whose mean difference is the score; those that a text does not have are left out.
        least_opening: fall of the uniformity, for a WIN; a rise by as much is WORSE.
        most_doubt: the score's interval may not reach further below 0, for a WIN.
        least_fall: of the score, for WORSE.
        guarded: measures, and the most by which each may fall.
        least_agreement: Spearman's correlation of the similarities of general pairs with the base's, for a WIN.
        ruined_agreement: for certain below it, the general similarities are lost. Between the two a model has changed
            much, and may be better or worse.
    """

    weights: Mapping[str, float] = field(
        default_factory=lambda: _log_ranks({NEIGHBOURS: 1.0, HALVES: 1.0, TRUNCATED: 0.5, GENERAL: 0.5})
    )
    least_opening: float = 20.0
    most_doubt: float = 10.0
    least_fall: float = 2.0
    guarded: Mapping[str, float] = field(
        default_factory=lambda: _log_ranks({DROPPED: 10.0, TRUNCATED: 10.0, GENERAL: 2.5})
    )
    least_agreement: float = 93.0
    ruined_agreement: float = 50.0

    def __post_init__(self) -> None:
        if not self.weights or min(self.weights.values()) <= 0:
            raise ValueError("the score needs measures with weights above 0")


def _log_ranks(figures: Mapping[str, float]) -> dict[str, float]:
    return {f"{name} {LOG_RANK}": figure for name, figure in figures.items()}


@dataclass(frozen=True)
class Change:
    """A measure of the base and the tuned model.

    Attributes:
        name: of the measure.
        base: figure of the base, x 100.
        tuned: figure of the tuned model, x 100.
        difference: tuned minus base, x 100, paired by item.
        better: which figures are better.
    """

    name: str
    base: float
    tuned: float
    difference: Estimate
    better: Better


@dataclass(frozen=True)
class Compared:
    """A tuned model beside its base.

    Attributes:
        score: the mean difference of the deciding measures by their weights, x 100.
        deciding: their names.
        changes: of all measures.
        agreement: Spearman's correlation of the similarities of general pairs with the base's, x 100.
    """

    score: Estimate
    deciding: tuple[str, ...]
    changes: tuple[Change, ...]
    agreement: Estimate

    @property
    def opening(self) -> Estimate:
        """The fall of the uniformity, x 100."""
        known = self.change(UNIFORMITY).difference
        return Estimate(-known.figure, -known.high, -known.low, known.items, known.units)

    def change(self, name: str) -> Change:
        """A measure's change."""
        return next(change for change in self.changes if change.name == name)


@dataclass(frozen=True)
class Verdict:
    """What is said, and why.

    Attributes:
        outcome: the word.
        reasons: sentences, the deciding ones first.
        compared: the figures.
        bars: that decided.
    """

    outcome: Outcome
    reasons: tuple[str, ...]
    compared: Compared
    bars: Bars

    def record(self) -> dict[str, Any]:
        """The content of ``verdict.json``: plain types, and null in place of what is not finite."""
        return {
            "format": FORMAT, "verdict": self.outcome.value, "reasons": list(self.reasons), "confidence": CONFIDENCE,
            "score": _plain(asdict(self.compared.score)), "deciding": list(self.compared.deciding),
            "opening": _plain(asdict(self.compared.opening)),
            "agreement": _plain(asdict(self.compared.agreement)),
            "measures": [_plain(asdict(change)) for change in self.compared.changes], "bars": _plain(asdict(self.bars)),
        }  # fmt: skip

    def words(self) -> str:
        """Lines for the terminal: the word, the reasons, and a table of the measures, x 100."""
        table = [["measure x 100", "base", "tuned", "difference", f"{CONFIDENCE:.0%} interval"]]
        for change in self.compared.changes:
            known = change.difference
            between = f"{known.low:+.2f} to {known.high:+.2f}"
            figures = [f"{change.base:.2f}", f"{change.tuned:.2f}", f"{known.figure:+.2f}", between]
            table.append([change.name, *figures])
        return "\n".join([f"{self.outcome}: {self.reasons[0]}", *self.reasons[1:], "", lay_out(table)])


def score(base: Measured, tuned: Measured, bars: Bars, seed: int = 0) -> Estimate:
    """The mean difference of the deciding measures by their weights, x 100.

    Args:
        base: measures of the base.
        tuned: of the tuned model, with the same probes.
        bars: weights.
        seed: of the draws.

    Raises:
        UserError: none of the deciding measures was taken.
    """
    names = [name for name in bars.weights if name in base.values]
    _check_deciding(names)
    total = sum(bars.weights[name] for name in names)
    parts = [
        Part(bars.weights[name] / total, tuned.values[name].values - base.values[name].values, base.values[name].units)
        for name in names
    ]
    return of_means(parts, seed).times(POINTS)


def merit(base: Measured, tuned: Measured, bars: Bars) -> float:
    """Points to choose a model by, without intervals.

    A model that breaks what a WIN asks for has as many points below 0 as it breaks; one that opens the space by too
    little has none; any other has the points by which it opens it.

    See :func:`score` for arguments and errors. NaN where the agreement is not a number.
    """
    differences = {
        name: POINTS * (tuned.values[name].figure - before.figure) for name, before in base.values.items()
    }  # fmt: skip
    weights = {name: weight for name, weight in bars.weights.items() if name in differences}
    _check_deciding(weights)
    gain = sum(weight * differences[name] for name, weight in weights.items()) / sum(weights.values())
    broken = [-gain, bars.least_agreement - spearman(base.general, tuned.general)]
    broken += [-differences[name] - most for name, most in bars.guarded.items() if name in differences]
    lost, opening = float(np.maximum(broken, 0).sum()), -differences[UNIFORMITY]
    if not lost <= 0:
        return -lost
    return opening if opening >= bars.least_opening else 0.0


def compare(base: Measured, tuned: Measured, bars: Bars, seed: int = 0) -> Compared:
    """All differences with their intervals; see :func:`score` for arguments and errors."""
    changes = []
    for name, before in base.values.items():
        after = tuned.values[name]
        difference = of_means([Part(1.0, after.values - before.values, before.units)], seed).times(POINTS)
        changes.append(Change(name, POINTS * before.figure, POINTS * after.figure, difference, before.better))
    return Compared(
        score(base, tuned, bars, seed),
        tuple(name for name in bars.weights if name in base.values),
        tuple(changes),
        of_agreement(base.general, tuned.general, seed).times(POINTS),
    )


def decide(compared: Compared, bars: Bars) -> Verdict:
    """The verdict; the same figures give the same one."""
    score, opening = compared.score, compared.opening
    over = f"the score ({', '.join(compared.deciding)}) changes by {score} points"
    opens = f"the space opens by {opening} points of uniformity"
    lost, doubtful = _guards(compared, bars)
    if score.high < 0 and score.figure <= -bars.least_fall:
        lost.insert(0, f"{over}, which is below the base for certain")
    if opening.high < -bars.least_opening:
        lost.append(f"{opens}: it closes")
    if lost:
        return Verdict(Outcome.WORSE, (*lost, *doubtful), compared, bars)
    if not opening.low >= bars.least_opening:
        doubtful.insert(0, f"{opens}; a WIN needs {bars.least_opening:g} for certain")
    if not (score.figure >= 0 and score.low >= -bars.most_doubt):
        doubtful.insert(0, f"{over}; a WIN needs 0, and an interval above -{bars.most_doubt:g}")
    if doubtful:
        return Verdict(Outcome.TIE, tuple(doubtful), compared, bars)
    return Verdict(Outcome.WIN, (opens, over), compared, bars)


def _guards(compared: Compared, bars: Bars) -> tuple[list[str], list[str]]:
    """What was lost for certain, and what was lost as far as one can tell; in words."""
    # each a margin above its bar: lost where even the interval's upper end is below 0
    known, bar = compared.agreement, bars.least_agreement
    text = f"the similarities of general pairs agree with the base's at {known}, below {bar:g}"
    margins = [(text, known.figure - bar, known.high - bars.ruined_agreement)]
    for change in compared.changes:
        if change.name in bars.guarded:
            known, most = change.difference, bars.guarded[change.name]
            text = f"{change.name} falls: it changes by {known}, a loss of more than {most:g}"
            margins.append((text, known.figure + most, known.high + most))
    lost = [text for text, _, best in margins if best < 0]
    return lost, [text for text, figure, best in margins if not figure >= 0 and not best < 0]  # NaN is in doubt


def _check_deciding(names: Collection[str]) -> None:
    if not names:
        raise UserError("none of the measures that decide was taken")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
