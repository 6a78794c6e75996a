"""Check the choice of the best configuration.

Is it at the end of the range that was tried, and is its figure inflated by the choice?
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dystress_text.analysis.finished_run import differing
from dystress_text.evaluation.results import Result
from dystress_text.evaluation.sts import spearman

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
_FEWEST = 10  # queries or pairs, five in each half


def end_of_range(settings: Mapping[str, Mapping[str, Any]], best: str) -> list[str]:
    """Return a line if the best configuration has the largest or smallest value that was tried.

    Args:
        settings: the settings of each configuration; if they differ in more than one number, there
            is no line.
        best: a configuration.
    """
    varied = differing(list(settings.values()))
    texts = {
        name: ", ".join(str(each.get(key)) for key in varied) for name, each in settings.items()
    }
    if len({_NUMBER.sub("", text) for text in texts.values()}) > 1:
        return []
    numbers = np.array([[float(each) for each in _NUMBER.findall(text)] for text in texts.values()])
    (columns,) = np.nonzero((numbers != numbers[0]).any(0))
    if len(columns) != 1:
        return []
    values = dict(zip(texts, numbers[:, columns[0]], strict=True))
    lines = []
    for end, extreme in (("largest", max), ("smallest", min)):
        if values[best] == extreme(values.values()):
            lines.append(f"{best} has the {end} value that was tried, {values[best]:g}")
    return lines


def by_halves(results: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return a line with the best figure, measured on queries or pairs that did not choose it.

    There is no line if results lack ``each``, or if all scores of a half are equal.

    Args:
        results: the results of each configuration, for all seeds and tasks.
    """
    measured = [each.each.get("model", ()) for several in results.values() for each in several]
    if min(map(len, measured)) < _FEWEST:
        return []
    halves = [
        {
            name: float(np.mean([_on_half(each, half) for each in several]))
            for name, several in results.items()
        }
        for half in (0, 1)
    ]
    if not np.isfinite([figure for figures in halves for figure in figures.values()]).all():
        return []
    chosen = [max(figures, key=lambda name: figures[name]) for figures in halves]
    figure = (halves[1][chosen[0]] + halves[0][chosen[1]]) / 2
    names = " and ".join(dict.fromkeys(chosen))
    return [f"{figure:.1f} if chosen on one half and measured on the other, both ways ({names})"]


def _on_half(result: Result, half: int) -> float:
    """Return the figure x 100 on every second query or pair, in a fixed random order."""
    values = np.array(result.each["model"])
    units = np.random.default_rng(0).permutation(len(values))[half::2]
    if "scores" in result.each:
        return spearman(values[units], np.array(result.each["scores"])[units])
    return 100 * float(values[units].mean())
