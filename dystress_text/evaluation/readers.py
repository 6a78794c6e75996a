"""Readers of SentEval's files: pairs with a similarity score, and texts with a class.

Lines end at line feeds alone, and each run of white space within a sentence becomes one space.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """The lines of a file, split at line feeds alone, without an empty last one.

    Raises:
        DataError: the file cannot be read or decoded, or is empty.
    """
    try:
        with path.open(encoding=encoding, newline="\n") as file:
            text = file.read()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    if not text:
        raise DataError(f"{path} is empty")
    return text.removesuffix("\n").split("\n")


def _rows(path: Path, columns: int, header: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and tab-separated columns; a line may have more columns than are needed."""
    for number, line in enumerate(read_lines(path), 1):
        if not (header and number == 1):
            yield number, _columns(line, columns, path, number)


def _columns(line: str, columns: int, path: Path, number: int) -> list[str]:
    row = line.split("\t")
    if len(row) < columns:
        raise DataError(f"{path}, line {number}: {columns} tab-separated columns expected, {len(row)} found")
    return row


# ---- pairs with scores -----------------------------------------------------------------------------------------------


def read_sts_benchmark(path: str | Path, name: str = "STS-B") -> StsPairs:
    """Read the STS Benchmark's layout: tabs, no header, no quoting, score in column 5, sentences in 6 and 7.

    Raises:
        DataError: the file cannot be read or is damaged.
    """
    path = Path(path)
    return _pairs(name, path, [(row[5], row[6], row[4], number) for number, row in _rows(path, 7)])


def read_sick(path: str | Path, name: str = "SICK-R") -> StsPairs:
    """Read a SICK file: tabs, a header, sentences in columns 2 and 3, relatedness in column 4.

    Raises:
        DataError: the file cannot be read or is damaged.
    """
    path = Path(path)
    return _pairs(name, path, [(row[1], row[2], row[3], number) for number, row in _rows(path, 4, header=True)])


def read_sts_year(folder: str | Path, name: str) -> dict[str, StsPairs]:
    """Read the subsets of one of STS12 to STS16, by name; pairs without a score are dropped.

    Args:
        folder: SentEval's folder, such as ``STS/STS12-en-test``.
        name: such as ``STS12``.

    Raises:
        DataError: a file cannot be read or is damaged.
    """
    subsets = {}
    for subset in STS_SUBSETS[name]:
        inputs, golds = Path(folder) / f"STS.input.{subset}.txt", Path(folder) / f"STS.gs.{subset}.txt"
        pairs, scores = read_lines(inputs), read_lines(golds)
        if len(pairs) != len(scores):
            raise DataError(f"{inputs} has {len(pairs)} lines and {golds} has {len(scores)}: they must be equally long")
        rows = []
        for number, (pair, score) in enumerate(zip(pairs, scores, strict=True), 1):
            if score.strip():
                first, second, *_ = _columns(pair, 2, inputs, number)
                rows.append((first, second, score, number))
        subsets[subset] = _pairs(f"{name} {subset}", golds, rows)
    return subsets


def concatenate(name: str, sets: Sequence[StsPairs]) -> StsPairs:
    """All pairs of several sets as one set, for the "all" score."""
    return StsPairs(
        name,
        tuple(sentence for pairs in sets for sentence in pairs.first),
        tuple(sentence for pairs in sets for sentence in pairs.second),
        np.concatenate([pairs.scores for pairs in sets]),
    )


def _pairs(name: str, path: Path, rows: Sequence[tuple[str, str, str, int]]) -> StsPairs:
    """Pairs from texts (first, second, score) and line numbers; ``path`` is the file with the scores."""
    scores = np.empty(len(rows))
    for i, (_, _, score, number) in enumerate(rows):
        try:
            scores[i] = float(score)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {score!r} is not a score") from error
    if len(rows) == 0:
        raise DataError(f"{path}: no pair with a score")
    if not np.isfinite(scores).all():
        raise DataError(f"{path}: a score is not finite")
    return StsPairs(name, tuple(one_spaced(row[0]) for row in rows), tuple(one_spaced(row[1]) for row in rows), scores)


# ---- texts with classes ----------------------------------------------------------------------------------------------


def read_two_classes(positive: Path, negative: Path) -> Labelled:
    """Read one file for each class, a text a line, Latin-1; the positive class is 1."""
    texts = [[one_spaced(line) for line in read_lines(file, "latin-1")] for file in (positive, negative)]
    return _ordered([[*texts[0], *texts[1]]], [1] * len(texts[0]) + [0] * len(texts[1]))


def read_sst(path: Path) -> Labelled:
    """Read lines of text, tab, 0 or 1."""
    rows = list(_rows(path, 2))
    labels = [_class_of(row[1], ("0", "1"), path, number) for number, row in rows]
    return _ordered([[one_spaced(row[0]) for _, row in rows]], labels)


def read_trec(path: Path) -> Labelled:
    """Read lines of ``COARSE:fine text``, Latin-1."""
    rows = [line.partition(" ") for line in read_lines(path, "latin-1")]
    labels = [
        _class_of(label.partition(":")[0], TREC_CLASSES, path, number) for number, (label, _, _) in enumerate(rows, 1)
    ]
    return _ordered([[one_spaced(text) for _, _, text in rows]], labels)


def read_mrpc(path: Path) -> Labelled:
    """Read tabs and a header: label in column 1, texts in columns 4 and 5."""
    rows = list(_rows(path, 5, header=True))
    labels = [_class_of(row[0], ("0", "1"), path, number) for number, row in rows]
    return _ordered([[one_spaced(row[column]) for _, row in rows] for column in (3, 4)], labels)


def _class_of(label: str, known: Sequence[str], path: Path, number: int) -> int:
    if label.strip() not in known:
        raise DataError(f"{path}, line {number}: {label!r} is none of the classes {', '.join(known)}")
    return known.index(label.strip())


def _ordered(columns: Sequence[Sequence[str]], labels: Sequence[int]) -> Labelled:
    """Sort by (token counts, label); equal texts keep the order of the file."""

    def key(i: int) -> tuple[int, ...]:
        return (*(len(column[i].split()) for column in columns), labels[i])

    order = sorted(range(len(labels)), key=key)
    return Labelled(
        tuple(tuple(column[i] for i in order) for column in columns), np.array([labels[i] for i in order], np.int64)
    )
