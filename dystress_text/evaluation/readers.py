"""Readers of SentEval's files: pairs with a similarity score, and texts with a class.

Lines end at line feeds alone, and each run of white space within a sentence becomes one space. A file that is missing
or damaged is a DataError that names file and line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError

POSITIVE_SCORE = 4.0  # as is usual for SimCSE, alignment is that of the pairs scored above it

STS_SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")

Row = tuple[str, list[str]]  # file and line for errors, and the columns


@dataclass(frozen=True)
class StsPairs:
    """Sentence pairs with gold scores.

    Attributes:
        name: the set's name in tables.
        first: the first sentence of each pair.
        second: the second sentence of each pair.
        scores: (pairs,) gold similarity: 0 to 5 for STS, 1 to 5 for SICK, any finite numbers for a user's file.
        positive_above: alignment uses the pairs scored above this value.
    """

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: NDArray[np.float64]
    positive_above: float = POSITIVE_SCORE

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def slug(self) -> str:
        """The name inside metric names: ``STS-B dev`` becomes ``sts_b_dev``."""
        return self.name.lower().replace("-", "_").replace(" ", "_")

    @property
    def sentences(self) -> list[str]:
        """The distinct sentences, in order of appearance."""
        return list(dict.fromkeys([*self.first, *self.second]))


@dataclass(frozen=True)
class Labelled:
    """Texts with classes, sorted as the protocol asks.

    Attributes:
        columns: one tuple of sentences, or two for a task whose texts are pairs.
        labels: (texts,) classes from 0.
    """

    columns: tuple[tuple[str, ...], ...]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def one_spaced(text: str) -> str:
    """The text with each run of white space as one space, and none at its ends."""
    return " ".join(text.split())


def read_rows(
    path: Path, columns: int = 1, separator: str = "\t", encoding: str = "utf-8", header: bool = False
) -> list[Row]:
    """The lines of a file in columns, at least so many."""
    try:
        with path.open(encoding=encoding, newline="\n") as file:
            text = file.read()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    if not text:
        raise DataError(f"{path} is empty")
    lines = text.removesuffix("\n").split("\n")
    rows = [(f"{path}, line {number}", line.split(separator)) for number, line in enumerate(lines, 1)][header:]
    for where, row in rows:
        if len(row) < columns:
            raise DataError(f"{where}: {columns} tab-separated columns expected, {len(row)} found")
    return rows


# ---- pairs with scores -----------------------------------------------------------------------------------------------


def read_sts_benchmark(path: str | Path, name: str = "STS-B") -> StsPairs:
    """Read the STS Benchmark's layout: tabs, no header, no quoting, score in column 5, sentences in 6 and 7."""
    return _pairs(name, Path(path), ((where, row[5], row[6], row[4]) for where, row in read_rows(Path(path), 7)))


def read_sick(path: str | Path, name: str = "SICK-R") -> StsPairs:
    """Read a SICK file: tabs, a header, sentences in columns 2 and 3, relatedness in column 4."""
    rows = read_rows(Path(path), 4, header=True)
    return _pairs(name, Path(path), ((where, row[1], row[2], row[3]) for where, row in rows))


def read_sts_year(folder: str | Path, name: str) -> dict[str, StsPairs]:
    """Read the subsets of one of STS12 to STS16 from a folder such as ``STS/STS12-en-test``, by name.

    A pair without a score (an empty line) is dropped.
    """
    subsets = {}
    for subset in STS_SUBSETS[name]:
        inputs, golds = Path(folder) / f"STS.input.{subset}.txt", Path(folder) / f"STS.gs.{subset}.txt"
        pairs, scores = read_rows(inputs, 2), read_rows(golds)
        if len(pairs) != len(scores):
            raise DataError(f"{inputs} has {len(pairs)} lines and {golds} has {len(scores)}: they must be equally long")
        together = ((where, *pair[:2], gold[0]) for (_, pair), (where, gold) in zip(pairs, scores, strict=True))
        subsets[subset] = _pairs(f"{name} {subset}", golds, (row for row in together if row[3].strip()))
    return subsets


def concatenate(name: str, sets: Sequence[StsPairs]) -> StsPairs:
    """All pairs of several sets as one set, for the "all" score."""
    return StsPairs(
        name,
        tuple(sentence for pairs in sets for sentence in pairs.first),
        tuple(sentence for pairs in sets for sentence in pairs.second),
        np.concatenate([pairs.scores for pairs in sets]),
    )


def _pairs(name: str, path: Path, rows: Iterable[tuple[str, ...]]) -> StsPairs:
    """Pairs from rows of (place, first, second, score)."""
    first, second, scores = [], [], []
    for where, a, b, score in rows:
        try:
            scores.append(float(score))
        except ValueError as error:
            raise DataError(f"{where}: {score!r} is not a score") from error
        if not math.isfinite(scores[-1]):
            raise DataError(f"{where}: the score {score!r} is not finite")
        first.append(one_spaced(a))
        second.append(one_spaced(b))
    if not scores:
        raise DataError(f"{path}: no pair with a score")
    return StsPairs(name, tuple(first), tuple(second), np.array(scores))


# ---- texts with classes ----------------------------------------------------------------------------------------------


def read_two_classes(positive: Path, negative: Path) -> Labelled:
    """Read one file for each class, a text a line, Latin-1; the positive class is 1."""
    rows = [[row[0] for _, row in read_rows(file, 1, "\n", "latin-1")] for file in (positive, negative)]
    return _ordered([[*rows[0], *rows[1]]], [1] * len(rows[0]) + [0] * len(rows[1]))


def read_sst(path: Path) -> Labelled:
    """Read lines of text, tab, 0 or 1."""
    return _labelled(read_rows(path, 2), (0,), ("0", "1"), lambda row: row[1])


def read_trec(path: Path) -> Labelled:
    """Read lines of ``COARSE:fine text``, Latin-1."""
    rows = [(where, line.partition(" ")) for where, (line,) in read_rows(path, 1, "\n", "latin-1")]
    return _labelled(rows, (2,), TREC_CLASSES, lambda row: row[0].partition(":")[0])


def read_mrpc(path: Path) -> Labelled:
    """Read tabs and a header: label in column 1, texts in columns 4 and 5."""
    return _labelled(read_rows(path, 5, header=True), (3, 4), ("0", "1"), lambda row: row[0])


def _labelled(
    rows: Sequence[tuple[str, Sequence[str]]],
    columns: Sequence[int],
    classes: Sequence[str],
    label_of: Callable[[Sequence[str]], str],
) -> Labelled:
    labels = []
    for where, row in rows:
        label = label_of(row).strip()
        if label not in classes:
            raise DataError(f"{where}: {label!r} is none of the classes {', '.join(classes)}")
        labels.append(classes.index(label))
    return _ordered([[row[column] for _, row in rows] for column in columns], labels)


def _ordered(columns: Sequence[Sequence[str]], labels: Sequence[int]) -> Labelled:
    """Sort by (token counts, label); equal texts keep the order of the file."""
    columns = [[one_spaced(text) for text in column] for column in columns]

    def key(i: int) -> tuple[int, ...]:
        return (*(len(column[i].split()) for column in columns), labels[i])

    order = sorted(range(len(labels)), key=key)
    return Labelled(
        tuple(tuple(column[i] for i in order) for column in columns), np.array([labels[i] for i in order], np.int64)
    )
