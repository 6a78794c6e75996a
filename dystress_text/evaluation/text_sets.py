"""Scored pairs and texts with classes, read from SentEval's files and the user's tables.

In SentEval's files only line feeds end a line, and each run of white space within a sentence
becomes one space; the user's texts stay as they are. A missing or damaged file raises a DataError
that names file and line.
"""

from __future__ import annotations

import codecs
import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError, ParameterError, naming
from dystress_text.io.text_lines import is_text, not_utf8
from dystress_text.training.run_record import Metric

POSITIVE_SCORE = 4.0  # alignment is measured on the pairs scored above it, as in SimCSE
BINARY = ("0", "1")
COLUMNS = ("sentence1", "sentence2", "score")  # as sentence-transformers' data sets name them
HUB_SPLIT = "validation"
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")

LocatedRow = tuple[Any, ...]  # location for errors, and cells


@dataclass(frozen=True)
class StsPairs:
    """Sentence pairs with gold scores, (pairs,) each."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    # (pairs,): 0 to 5 for STS, 1 to 5 for SICK, any finite numbers for a user's file
    scores: NDArray[np.float64]
    name: str = "STS"  # in tables
    kind: str = "sts"  # ``pairs``: the user's
    positive_above: float = POSITIVE_SCORE  # alignment uses the pairs with a higher score
    source: str = ""  # the user's file or hub data set

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def slug(self) -> str:
        """The name as a part of metric names, such as ``sts_b_dev`` for ``STS-B dev``."""
        return slug_of(self.name)

    def metric(self, measure: str) -> Metric:
        """Return the metric ``spearman``, ``alignment`` or ``uniformity`` on these pairs."""
        if measure == "spearman":
            title = f"{self.name}: Spearman x 100"
            return Metric(self.slug, measure, title, self.kind, lexical="TF-IDF")
        title = f"{self.name}: {measure}"
        return Metric(self.slug, measure, title, self.kind, higher_is_better=False)

    @property
    def sentences(self) -> list[str]:
        """The distinct sentences, in order of appearance."""
        return list(dict.fromkeys([*self.first, *self.second]))

    @property
    def checksum(self) -> str:
        """SHA-256 of the content."""
        return checksum_of((self.first, self.second, self.scores.tolist()))


@dataclass(frozen=True)
class Labelled:
    """Texts with class labels, in SentEval's order."""

    columns: tuple[tuple[str, ...], ...]  # one column of texts, or two for a task on pairs
    labels: NDArray[np.int64]  # (texts,) classes from 0

    def __len__(self) -> int:
        return len(self.labels)


def checksum_of(content: Any) -> str:
    """Return the SHA-256 of plain Python values, as ``repr`` writes them."""
    return hashlib.sha256(repr(content).encode()).hexdigest()


def slug_of(name: str) -> str:
    """Return a name in lower case, with ``_`` in place of all but letters and digits."""
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def check_distinct(parameter: str, names: Sequence[str]) -> None:
    """Refuse sets that share a name, as results are stored by name."""
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(parameter, f"two sets would have the name {name!r}; rename one")


def one_spaced(text: str) -> str:
    """Collapse white space to single spaces, and strip it at both ends."""
    return " ".join(text.split())


def score_of(cell: Any, where: str) -> float:
    """Return a cell as a finite number; errors begin with ``where``."""
    try:
        score = float(cell)
    except (ValueError, TypeError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{where}: the score is not a finite number")
    return score


def read_lines(path: Path, encoding: str = "utf-8") -> list[tuple[str, str]]:
    """Return each line of a file with its location, for errors; a byte order mark is removed."""
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8).decode(encoding)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(not_utf8(path)) from error
    lines = content.removesuffix("\n").split("\n")
    return [(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]


def read_rows(path: Path, columns: Sequence[int], header: bool = False) -> list[LocatedRow]:
    """Return some columns of a tab-separated file with single spaces, and each row's location."""
    rows = []
    for where, line in read_lines(path)[header:]:
        cells = line.split("\t")
        if len(cells) <= max(columns):
            reason = f"{max(columns) + 1} tab-separated columns expected, {len(cells)} found"
            raise DataError(f"{where}: {reason}")
        rows.append((where, *(one_spaced(cells[column]) for column in columns)))
    return rows


# ---- pairs with scores


def read_sts_benchmark(path: Path) -> StsPairs:
    """Read a file of the STS Benchmark: score in column 5, sentences in 6 and 7, no header."""
    return scored(read_rows(path, (5, 6, 4)))


def read_sick(path: Path) -> StsPairs:
    """Read a file of SICK: a header, sentences in columns 2 and 3, relatedness in column 4."""
    return scored(read_rows(path, (1, 2, 3), header=True))


def read_sts_subset(inputs: Path, golds: Path) -> StsPairs:
    """Read a subset of STS12 to STS16: two columns of sentences, and a file of scores.

    Pairs without a score are dropped.
    """
    pairs = read_rows(inputs, (0, 1))
    scores = read_rows(golds, (0,))
    if len(pairs) != len(scores):
        counts = f"{inputs} has {len(pairs)} lines, {golds} {len(scores)}"
        raise DataError(f"{counts}: they must have the same length")
    rows = []
    for (_, first, second), (where, score) in zip(pairs, scores, strict=True):
        if score:
            rows.append((where, first, second, score))
    return scored(rows)


def scored(rows: Iterable[LocatedRow]) -> StsPairs:
    """Return scored pairs from rows of (location for errors, first, second, score)."""
    firsts = []
    seconds = []
    scores = []
    for where, first, second, score in rows:
        scores.append(score_of(score, where))
        firsts.append(first)
        seconds.append(second)
    return StsPairs(tuple(firsts), tuple(seconds), np.array(scores))


def joined(subsets: Sequence[StsPairs], name: str) -> StsPairs:
    """Concatenate all subsets."""
    first = chain.from_iterable(pairs.first for pairs in subsets)
    second = chain.from_iterable(pairs.second for pairs in subsets)
    scores = np.concatenate([pairs.scores for pairs in subsets])
    return StsPairs(tuple(first), tuple(second), scores, name)


def read_scored_pairs(source: str) -> StsPairs:
    """Read scored pairs from the columns sentence1, sentence2 and score of a table.

    Alignment is measured on pairs with scores in the top fifth of the range; on STS-B these are
    the scores above 4 out of 5.

    Args:
        source: a .csv, .tsv, .jsonl or .parquet file, or a hub data set as ``OWNER/NAME``
            (its ``validation`` split) or ``OWNER/NAME:SPLIT``.

    Raises:
        ParameterError: the table cannot be read, or a row is not a pair with a score.
    """
    from dystress_text.io.tables import is_hub_name  # pyarrow is slow to import

    path, _, split = source.partition(":")
    if not is_hub_name(path):
        path, split = source, ""
    elif not split:
        split = HUB_SPLIT
    try:
        pairs = _own_pairs(_rows_of_table(path, split), slug_of(Path(path).stem))
    except DataError as error:
        raise ParameterError("pairs", f"{source!r}: {error}") from error
    return replace(pairs, source=source)


def pairs_from(rows: Any) -> StsPairs:
    """Return scored pairs, named ``pairs``, from data in memory.

    Args:
        rows: (text, text, score) each, or a table of pandas or ``datasets`` with the columns
            sentence1, sentence2 and score.

    Raises:
        ParameterError: the data have another form. The message does not quote them.
    """
    try:
        if hasattr(rows, "columns") or hasattr(rows, "column_names"):
            rows = zip(*(rows[name] for name in COLUMNS), strict=True)
        rows = list(rows)
        if any(isinstance(row, str) for row in rows):
            raise TypeError("a text is not a row")
        located = [(f"item {i}", first, second, x) for i, (first, second, x) in enumerate(rows)]
    except (KeyError, TypeError, ValueError) as error:
        reason = f"expected rows of two texts and a number, or a table with {', '.join(COLUMNS)}"
        raise ParameterError("pairs", reason) from error
    with naming("pairs"):
        return _own_pairs(located, "pairs")


def _own_pairs(rows: Iterable[LocatedRow], name: str) -> StsPairs:
    located = list(rows)
    for where, *texts, _ in located:
        for column, text in zip(COLUMNS, texts, strict=False):
            if not is_text(text) or not text.strip():
                raise DataError(f"{where}: {column} is empty or not a text")
    pairs = scored(located)
    if len(np.unique(pairs.scores)) < 2:
        reason = f"expected at least two different scores, got at most one in {len(pairs)} pairs"
        raise DataError(reason)
    low = float(pairs.scores.min())
    high = float(pairs.scores.max())
    return replace(pairs, name=name, kind="pairs", positive_above=0.8 * high + 0.2 * low)


def _rows_of_table(path: str, split: str) -> Iterator[LocatedRow]:
    from dystress_text.io.tables import READERS, is_table, open_table  # slow to import

    if not is_table(path) or not (split or Path(path).is_file()):
        raise DataError(f"no such table ({', '.join(READERS)}) and no such data set")
    table = open_table(path, split)
    if not set(COLUMNS) <= set(table.columns):
        found = ", ".join(table.columns)
        raise DataError(f"expected the columns {', '.join(COLUMNS)}; found {found}")
    for number, row in enumerate(table.rows(COLUMNS), 1):
        yield f"row {number}", *row


# ---- texts with classes


def read_two_classes(positive: Path, negative: Path) -> Labelled:
    """Read a file of positive and one of negative texts: Latin-1, one text a line."""
    rows = [(*row, "1") for row in _latin_1(positive)]
    rows += [(*row, "0") for row in _latin_1(negative)]
    return _labelled(rows, BINARY)


def read_sst(path: Path) -> Labelled:
    """Read lines that contain a text, a tab, and 0 or 1."""
    return _labelled(read_rows(path, (0, 1)), BINARY)


def read_trec(path: Path) -> Labelled:
    """Read lines such as ``COARSE:fine text``, in Latin-1."""
    rows = []
    for where, line in _latin_1(path):
        label, _, text = line.partition(" ")
        rows.append((where, text, label.partition(":")[0]))
    return _labelled(rows, TREC_CLASSES)


def read_mrpc(path: Path) -> Labelled:
    """Read a file of MRPC: a header, the label in column 1, texts in columns 4 and 5."""
    return _labelled(read_rows(path, (3, 4, 0), header=True), BINARY)


def _latin_1(path: Path) -> list[LocatedRow]:
    return [(where, one_spaced(line)) for where, line in read_lines(path, "latin-1")]


def _labelled(rows: Iterable[LocatedRow], classes: Sequence[str]) -> Labelled:
    """Return labelled texts from rows of (location, texts, label).

    As in SentEval they are sorted by number of tokens, then by label, with a stable sort.
    """
    labelled = []
    for where, *texts, label in rows:
        if label not in classes:
            raise DataError(f"{where}: {label!r} is none of the classes {', '.join(classes)}")
        labelled.append((texts, classes.index(label)))
    labelled.sort(key=lambda row: (*(len(text.split()) for text in row[0]), row[1]))
    columns = tuple(zip(*(texts for texts, _ in labelled), strict=True))
    return Labelled(columns, np.array([label for _, label in labelled], np.int64))
