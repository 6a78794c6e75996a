"""Readers of SentEval's files: pairs with a similarity score, and texts with a class.

Lines end at line feeds alone, and each run of white space within a sentence becomes one space. A
file that is missing or damaged is a DataError that names file and line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError, ParameterError

POSITIVE_SCORE = 4.0  # as is usual for SimCSE, alignment is that of the pairs scored above it
BINARY = ("0", "1")
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")

Row = tuple[str, list[str]]  # file and line for errors, and the columns


@dataclass(frozen=True)
class StsPairs:
    """Sentence pairs with gold scores."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: NDArray[
        np.float64
    ]  # (pairs,): 0 to 5 for STS, 1 to 5 for SICK, any finite numbers for a user's file
    name: str = "STS"  # in tables
    positive_above: float = POSITIVE_SCORE  # alignment uses the pairs scored above this value

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def slug(self) -> str:
        """The name inside metric names: ``STS-B dev`` becomes ``sts_b_dev``."""
        return slug_of(self.name)

    def metric(self, kind: str) -> str:
        """The name of a metric of the set, such as ``sts_b_dev_spearman``."""
        return f"{self.slug}_{kind}"

    @property
    def sentences(self) -> list[str]:
        """The distinct sentences, in order of appearance."""
        return list(dict.fromkeys([*self.first, *self.second]))


@dataclass(frozen=True)
class Labelled:
    """Texts with classes, sorted as the protocol asks."""

    columns: tuple[tuple[str, ...], ...]  # one, or two for a task whose texts are pairs
    labels: NDArray[np.int64]  # (texts,) classes from 0

    def __len__(self) -> int:
        return len(self.labels)


def slug_of(name: str) -> str:
    """A name in lower case, with ``_`` for all but letters and digits."""
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def check_distinct(parameter: str, names: Sequence[str]) -> None:
    """Refuse sets that share a name, since results are kept by name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ParameterError(parameter, f"two sets would have the name {twice!r}; rename one")


def one_spaced(text: str) -> str:
    """The text with each run of white space as one space, and none at its ends."""
    return " ".join(text.split())


def score_of(cell: Any) -> float:
    """A finite number; anything else is a ValueError."""
    try:
        score = float(cell)
    except (ValueError, TypeError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError(f"{cell!r} is not a finite number")
    return score


def read_rows(
    path: Path,
    columns: int = 1,
    separator: str = "\t",
    encoding: str = "utf-8",
    header: bool = False,
) -> list[Row]:
    """The lines of a file in columns, at least so many."""
    try:
        with path.open(encoding=encoding, newline="\n") as file:
            lines = file.read().removesuffix("\n").split("\n")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    rows = [
        (f"{path}, line {number}", line.split(separator)) for number, line in enumerate(lines, 1)
    ][header:]
    for where, row in rows:
        if len(row) < columns:
            raise DataError(f"{where}: {columns} tab-separated columns expected, {len(row)} found")
    return rows


# ---- pairs with scores
# -----------------------------------------------------------------------------------------------


def read_sts_benchmark(path: Path) -> StsPairs:
    """Read the STS Benchmark's layout: tabs, no header, no quoting, score in column 5, sentences in
    6 and 7.
    """
    return scored((where, row[5], row[6], row[4]) for where, row in read_rows(path, 7))


def read_sick(path: Path) -> StsPairs:
    """Read a SICK file: tabs, a header, sentences in columns 2 and 3, relatedness in column 4."""
    return scored((where, row[1], row[2], row[3]) for where, row in read_rows(path, 4, header=True))


def read_sts_subset(inputs: Path, golds: Path) -> StsPairs:
    """Read a subset of STS12 to STS16: two columns of sentences, and the scores; a pair without one
    is dropped.
    """
    pairs, scores = read_rows(inputs, 2), read_rows(golds)
    if len(pairs) != len(scores):
        raise DataError(
            f"{inputs} has {len(pairs)} lines and {golds} has {len(scores)}: they must be equally long"
        )
    together = zip(pairs, scores, strict=True)
    return scored(
        (where, a, b, gold) for (_, (a, b, *_)), (where, (gold, *_)) in together if gold.strip()
    )


def scored(rows: Iterable[tuple[str, str, str, Any]]) -> StsPairs:
    """Pairs from rows of (place for errors, first, second, score)."""
    first, second, scores = [], [], []
    for where, a, b, score in rows:
        try:
            scores.append(score_of(score))
        except ValueError as error:
            raise DataError(f"{where}: {error}") from error
        first.append(one_spaced(a))
        second.append(one_spaced(b))
    return StsPairs(tuple(first), tuple(second), np.array(scores))


# ---- texts with classes
# ----------------------------------------------------------------------------------------------


def read_two_classes(positive: Path, negative: Path) -> Labelled:
    """Read one file for each class, a text a line, Latin-1; the positive class is 1."""
    files = ((positive, "1"), (negative, "0"))
    return _labelled(
        ((where, row, label) for file, label in files for where, row in _latin_1(file)), BINARY
    )


def read_sst(path: Path) -> Labelled:
    """Read lines of text, tab, 0 or 1."""
    return _labelled(((where, row[:1], row[1]) for where, row in read_rows(path, 2)), BINARY)


def read_trec(path: Path) -> Labelled:
    """Read lines of ``COARSE:fine text``, Latin-1."""
    rows = ((where, line.partition(" ")) for where, (line,) in _latin_1(path))
    return _labelled(
        ((where, [text], label.partition(":")[0]) for where, (label, _, text) in rows), TREC_CLASSES
    )


def read_mrpc(path: Path) -> Labelled:
    """Read tabs and a header: label in column 1, texts in columns 4 and 5."""
    return _labelled(
        ((where, row[3:5], row[0]) for where, row in read_rows(path, 5, header=True)), BINARY
    )


def _latin_1(path: Path) -> list[Row]:
    return read_rows(path, 1, "\n", "latin-1")


def _labelled(rows: Iterable[tuple[str, list[str], str]], classes: Sequence[str]) -> Labelled:
    """Texts from rows of (place, texts, label), sorted by (token counts, label); equal ones keep
    the file's order.
    """
    labelled = []
    for where, texts, label in rows:
        if label.strip() not in classes:
            raise DataError(f"{where}: {label!r} is none of the classes {', '.join(classes)}")
        labelled.append(([one_spaced(text) for text in texts], classes.index(label.strip())))
    labelled.sort(key=lambda row: (*(len(text.split()) for text in row[0]), row[1]))
    columns = tuple(zip(*(texts for texts, _ in labelled), strict=True))
    return Labelled(columns, np.array([label for _, label in labelled], np.int64))
