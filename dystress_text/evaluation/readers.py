"""Readers of SentEval's files and of tables of the user's own: pairs with a similarity score, and
texts with a class.

In SentEval's files lines end at line feeds alone. Each run of white space within a sentence becomes
one space. A file that is missing or damaged is a DataError that names file and line.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError, ParameterError
from dystress_text.io.text_lines import is_blank

POSITIVE_SCORE = 4.0  # as is usual for SimCSE, alignment is that of the pairs scored above it
BINARY = ("0", "1")
COLUMNS = ("sentence1", "sentence2", "score")  # as sentence-transformers' data sets name them
HUB_SPLIT = "validation"
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")

Row = tuple[Any, ...]  # file and line for errors, and cells


@dataclass(frozen=True)
class StsPairs:
    """Sentence pairs with gold scores."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    # (pairs,): 0 to 5 for STS, 1 to 5 for SICK, any finite numbers for a user's file
    scores: NDArray[np.float64]
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

    @property
    def checksum(self) -> str:
        """SHA-256 of the content."""
        content = repr((self.first, self.second, self.scores.tolist()))
        return hashlib.sha256(content.encode()).hexdigest()


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
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(parameter, f"two sets would have the name {name!r}; rename one")


def one_spaced(text: str) -> str:
    """The text with each run of white space as one space, and none at its ends."""
    return " ".join(text.split())


def score_of(cell: Any) -> float:
    """A finite number; anything else is a ValueError, which does not show it."""
    try:
        score = float(cell)
    except (ValueError, TypeError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError("the score is not a finite number")
    return score


def read_rows(
    path: Path,
    columns: Sequence[int],
    separator: str = "\t",
    encoding: str = "utf-8",
    header: bool = False,
) -> list[Row]:
    """Return the cells of some columns, line after line."""
    try:
        with path.open(encoding=encoding, newline="\n") as file:
            lines = file.read().removesuffix("\n").split("\n")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    expected = max(columns) + 1
    rows = []
    for number, line in enumerate(lines, 1):
        if header and number == 1:
            continue
        where = f"{path}, line {number}"
        cells = line.split(separator)
        if len(cells) < expected:
            reason = f"{expected} tab-separated columns expected, {len(cells)} found"
            raise DataError(f"{where}: {reason}")
        rows.append((where, *(cells[column] for column in columns)))
    return rows


# ---- pairs with scores


def read_sts_benchmark(path: Path) -> StsPairs:
    """Read the STS Benchmark's layout: tabs, no header, no quoting, score in column 5, sentences in
    6 and 7.
    """
    return scored(read_rows(path, (5, 6, 4)))


def read_sick(path: Path) -> StsPairs:
    """Read a SICK file: tabs, a header, sentences in columns 2 and 3, relatedness in column 4."""
    return scored(read_rows(path, (1, 2, 3), header=True))


def read_sts_subset(inputs: Path, golds: Path) -> StsPairs:
    """Read a subset of STS12 to STS16: two columns of sentences, and the scores; a pair without one
    is dropped.
    """
    pairs = read_rows(inputs, (0, 1))
    scores = read_rows(golds, (0,))
    if len(pairs) != len(scores):
        raise DataError(
            f"{inputs} has {len(pairs)} lines and {golds} has {len(scores)}: they must be equally "
            "long"
        )
    together = zip(pairs, scores, strict=True)
    return scored(
        (*score[:1], *pair[1:], *score[1:]) for pair, score in together if score[1].strip()
    )


def scored(rows: Iterable[Row]) -> StsPairs:
    """Pairs from rows of (place for errors, first, second, score)."""
    pairs = []
    scores = []
    for where, first, second, score in rows:
        try:
            scores.append(score_of(score))
        except ValueError as error:
            raise DataError(f"{where}: {error}") from error
        pairs.append((one_spaced(first), one_spaced(second)))
    firsts, seconds = zip(*pairs, strict=True) if pairs else ((), ())
    return StsPairs(firsts, seconds, np.array(scores))


def joined(subsets: Iterable[StsPairs], name: str) -> StsPairs:
    """Return the pairs of all subsets as one set."""
    subsets = list(subsets)
    first = tuple(text for pairs in subsets for text in pairs.first)
    second = tuple(text for pairs in subsets for text in pairs.second)
    return StsPairs(first, second, np.concatenate([pairs.scores for pairs in subsets]), name)


def read_scored_pairs(source: str, parameter: str = "eval_file") -> StsPairs:
    """Read pairs with scores, named by their file or data set (see :func:`name_of`).

    The columns are sentence1, sentence2 and score. Alignment uses the pairs in the top fifth of the
    scores, from the lowest to the highest, as STS-B uses those above 4 of 0 to 5.

    Args:
        source: a .csv, .tsv, .jsonl or .parquet file, or a hub data set as ``OWNER/NAME``
            (its ``validation`` split) or ``OWNER/NAME:SPLIT``.
        parameter: what errors name.
    """
    try:
        return _own_pairs(_rows_of_table(source), source, name_of(source))
    except DataError as error:
        raise ParameterError(parameter, str(error)) from error


def pairs_from(rows: object) -> StsPairs:
    """Return pairs with scores from Python, of the name ``pairs``; errors never show the data.

    Args:
        rows: (text, text, score) each, or a table under the names of :func:`read_scored_pairs`, of
            pandas or ``datasets``.
    """
    try:
        return _own_pairs(_rows_from(rows), "the table", "pairs")
    except DataError as error:
        raise ParameterError("pairs", str(error)) from error


def _own_pairs(rows: Iterable[Row], source: str, name: str) -> StsPairs:
    pairs = scored(_with_texts(rows))
    if len(np.unique(pairs.scores)) < 2:
        raise DataError(f"the {len(pairs)} pairs of {source} have no two different scores")
    low, high = pairs.scores.min(), pairs.scores.max()
    return replace(pairs, name=name, positive_above=float(0.8 * high + 0.2 * low))


def name_of(source: str) -> str:
    """Return a file's or data set's name in metrics."""
    name = slug_of(Path(_file_and_split(source)[0]).stem)
    if not name:
        raise DataError(f"the name of {source!r} has no letter or digit to name its metrics by")
    return name


def _file_and_split(source: str) -> tuple[str, str]:
    """Return a file and "", or the name of a data set on the hub and its split."""
    from dystress_text.io.tables import is_hub_name  # pyarrow is slow to import

    name, _, split = source.partition(":")
    if is_hub_name(name):
        return name, split or HUB_SPLIT
    return source, ""


def _rows_of_table(source: str) -> Iterator[Row]:
    """Yield the place of each row for errors, its two texts and its score."""
    from dystress_text.io.tables import READERS, is_table, open_table  # slow to import

    name, split = _file_and_split(source)
    if not is_table(name) or not (split or Path(name).is_file()):
        raise DataError(f"no table {source!r} ({', '.join(READERS)}) and no such data set")
    table = open_table(name, split)
    _check_columns(table.columns, repr(source))
    for number, row in enumerate(table.rows(COLUMNS), 1):
        yield f"row {number} of {source!r}", *row


def _rows_from(rows: Any) -> Iterator[Row]:
    """Yield what :func:`_rows_of_table` does, from a list or a table in memory."""
    columns = getattr(rows, "column_names", getattr(rows, "columns", None))
    if columns is not None:
        _check_columns(list(map(str, columns)), "the table")
        rows = zip(*(rows[name] for name in COLUMNS), strict=True)
    elif not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        expected = "rows of two texts and a number, or a table of pandas or datasets"
        raise DataError(f"expected {expected}, got {type(rows).__name__}")
    for index, row in enumerate(rows):
        if not isinstance(row, list | tuple) or len(row) != len(COLUMNS):
            raise DataError(f"item {index}: expected two texts and a number, as a list or tuple")
        yield f"item {index}", *row


def _check_columns(found: Sequence[str], source: str) -> None:
    if not set(COLUMNS) <= set(found):
        expected = ", ".join(COLUMNS)
        raise DataError(f"{source}: expected the columns {expected}; found {', '.join(found)}")


def _with_texts(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows, whose texts must be texts."""
    for where, *cells in rows:
        for name, text in zip(COLUMNS[:2], cells, strict=False):
            if not _is_text(text):
                raise DataError(f"{where}: {name} is not a text, or an empty one")
        yield where, *cells


def _is_text(cell: Any) -> bool:
    # half of a surrogate pair is no text either
    return (
        isinstance(cell, str)
        and not is_blank(cell)
        and cell.encode(errors="ignore").decode() == cell
    )


# ---- texts with classes


def read_two_classes(positive: Path, negative: Path) -> Labelled:
    """Read one file for each class, a text a line, Latin-1; the positive class is 1."""
    rows = [(*row, "1") for row in _latin_1(positive)]
    rows += [(*row, "0") for row in _latin_1(negative)]
    return _labelled(rows, BINARY)


def read_sst(path: Path) -> Labelled:
    """Read lines of text, tab, 0 or 1."""
    return _labelled(read_rows(path, (0, 1)), BINARY)


def read_trec(path: Path) -> Labelled:
    """Read lines of ``COARSE:fine text``, Latin-1."""
    rows = []
    for where, line in _latin_1(path):
        label, _, text = line.partition(" ")
        rows.append((where, text, label.partition(":")[0]))
    return _labelled(rows, TREC_CLASSES)


def read_mrpc(path: Path) -> Labelled:
    """Read tabs and a header: label in column 1, texts in columns 4 and 5."""
    return _labelled(read_rows(path, (3, 4, 0), header=True), BINARY)


def _latin_1(path: Path) -> list[Row]:
    return read_rows(path, (0,), "\n", "latin-1")


def _labelled(rows: Iterable[Row], classes: Sequence[str]) -> Labelled:
    """Return texts from rows of (place, texts, label), sorted by (token counts, label); equal ones
    keep the file's order.
    """
    labelled = []
    for where, *texts, label in rows:
        if label.strip() not in classes:
            raise DataError(f"{where}: {label!r} is none of the classes {', '.join(classes)}")
        labelled.append(([one_spaced(text) for text in texts], classes.index(label.strip())))
    labelled.sort(key=lambda row: (*(len(text.split()) for text in row[0]), row[1]))
    columns = tuple(zip(*(texts for texts, _ in labelled), strict=True))
    return Labelled(columns, np.array([label for _, label in labelled], np.int64))
