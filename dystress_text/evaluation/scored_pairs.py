"""Scored pairs of the user's own: tables of two sentences and a score.

Every row is checked; an error names the row, counted from 1 below the header.
"""

from __future__ import annotations

import csv
import json
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from dystress_text.errors import UserError
from dystress_text.evaluation.readers import StsPairs, one_spaced
from dystress_text.files.tables import LOADERS, is_hub_name, load_table

COLUMNS = ("sentence1", "sentence2", "score")  # as sentence-transformers' data sets name them
HUB_SPLIT = "validation"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read_scored_pairs(
    source: str, columns: Sequence[str] | None = None, score_range: tuple[float, float] | None = None
) -> StsPairs:
    """Read pairs with scores; each run of white space within a sentence becomes one space.

    Alignment uses the pairs in the top fifth of the scores' range, as STS-B uses those above 4 of 0 to 5. The range is
    ``score_range``, else from the lowest to the highest score.

    Args:
        source: a .csv, .tsv, .jsonl, .json or .parquet file, or a hub data set as ``OWNER/NAME`` (its ``validation``
            split) or ``OWNER/NAME:SPLIT``.
        columns: names of the columns with the first sentence, the second and the score; None for sentence1, sentence2
            and score, or for a table of three columns in that order.
        score_range: the lowest and the highest score that are accepted; None for any.

    Returns:
        The pairs, named by the file or data set (see :func:`slug_of`).

    Raises:
        UserError: the table cannot be read, a row is not two sentences and a score, or the rows cannot have a rank
            correlation.
    """
    known, rows = _read(source)
    places = _places(source, known, columns)
    first, second, scores = [], [], []
    for number, row in enumerate(rows, 1):
        if len(row) != len(known):
            raise UserError(f"--eval_file: row {number} of {source!r} has {len(row)} columns, {len(known)} expected")
        a, b, score = (_Cell(source, number, known[place], row[place]) for place in places)
        first.append(a.text())
        second.append(b.text())
        scores.append(score.number())
        if score_range is not None and not score_range[0] <= scores[-1] <= score_range[1]:
            raise UserError(
                f"--eval_score_range: row {number} of {source!r} has the score {scores[-1]:g}, outside "
                f"{score_range[0]:g} to {score_range[1]:g}"
            )
    _check(source, first, second, scores)
    low, high = score_range or (min(scores), max(scores))
    above = 0.8 * high + 0.2 * low
    return StsPairs(slug_of(source), tuple(first), tuple(second), np.array(scores), positive_above=above)


def slug_of(source: str) -> str:
    """A file's or data set's name in metrics: its stem in lower case, with ``_`` for all but letters and digits.

    Raises:
        UserError: the name has no letter or digit.
    """
    stem = source.partition(":")[0].split("/")[1] if _is_hub_set(source) else Path(source).stem
    slug = re.sub(r"\W+", "_", stem.lower()).strip("_")
    if not slug:
        raise UserError(f"--eval_file: the name of {source!r} has no letter or digit to name its metrics by")
    return slug


def _is_hub_set(source: str) -> bool:
    return is_hub_name(source.partition(":")[0]) and not Path(source).exists()


def _read(source: str) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """The names of a table's columns, and its rows."""
    ending = Path(source).suffix.lower()
    if _is_hub_set(source):
        name, _, split = source.partition(":")
        table = load_table(name, split or HUB_SPLIT)
    elif ending not in LOADERS:
        raise UserError(f"--eval_file: {source!r} is neither a table ({', '.join(LOADERS)}) nor a data set on the hub")
    elif not Path(source).is_file():
        raise UserError(f"--eval_file: no file {source!r}")
    elif ending in _DELIMITERS:
        return _read_csv(source, _DELIMITERS[ending])
    elif ending in (".jsonl", ".json"):
        return _read_json(source)
    else:
        table = load_table(source)
    names: list[str] = table.column_names
    return names, ([row[name] for name in names] for row in table)


@contextmanager
def _readable(source: str) -> Iterator[None]:
    """Turn the errors of a file that cannot be read or decoded into one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"--eval_file: cannot read {source!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--eval_file: {source!r} is not UTF-8: {error.reason} at byte {error.start}") from error


def _read_csv(source: str, delimiter: str) -> tuple[list[str], list[list[str]]]:
    # datasets, which reads training text, cannot say which row has too many columns
    with _readable(source), open(source, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            rows = [row for row in reader if row]  # empty lines are skipped
        except csv.Error as error:
            raise UserError(f"--eval_file: cannot read {source!r}, line {reader.line_num}: {error}") from error
    if not rows:
        raise UserError(f"--eval_file: {source!r} is empty")
    return rows[0], rows[1:]


def _read_json(source: str) -> tuple[list[str], list[list[Any]]]:
    """Read objects, one a line or in one list; a value that an object lacks is empty."""
    with _readable(source):
        text = Path(source).read_text(encoding="utf-8-sig")
    found: list[Any] = []
    try:
        if text.lstrip().startswith("["):
            found = json.loads(text)
        else:
            for line in text.split("\n"):
                if line.strip():
                    found.append(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise UserError(f"--eval_file: cannot read {source!r}, row {len(found) + 1}: {error}") from error
    for number, row in enumerate(found, 1):
        if not isinstance(row, dict):
            raise UserError(f"--eval_file: row {number} of {source!r} is not an object with named values")
    names = list(dict.fromkeys(name for row in found for name in row))
    return names, [[row.get(name) for name in names] for row in found]


def _places(source: str, known: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """The places of the two sentences and the score in a row."""
    if len(set(known)) < len(known):
        raise UserError(f"--eval_file: {source!r} has two columns of the same name: {', '.join(known)}")
    if columns is not None:
        for name in columns:
            if name not in known:
                raise UserError(f"--eval_columns: {source!r} has no column {name!r}; it has {', '.join(known)}")
        return [known.index(name) for name in columns]
    if set(COLUMNS) <= set(known):
        return [known.index(name) for name in COLUMNS]
    if len(known) != 3:
        raise UserError(
            f"--eval_columns: {source!r} has the columns {', '.join(known)}; name those of the first sentence, the "
            "second and the score"
        )
    if _as_number(known[2]) is not None:
        raise UserError(
            f"--eval_file: {source!r} has no header: its first row has {known[2]!r} in place of the score's name"
        )
    return [0, 1, 2]


class _Cell:
    """A cell and its place, for errors."""

    def __init__(self, source: str, row: int, column: str, value: Any) -> None:
        self.value = value
        self.where = f"--eval_file: row {row} of {source!r}"
        self.column = column
        if value is None or (isinstance(value, str) and not value.strip()):
            raise UserError(f"{self.where} has an empty cell in {column!r}")

    def text(self) -> str:
        """A sentence."""
        if not isinstance(self.value, str):
            raise self._wrong("which is not a text")
        text = one_spaced(self.value)
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise self._wrong("which is not Unicode text") from error
        if "\0" in text:
            raise self._wrong("which has a NUL character")
        return text

    def number(self) -> float:
        """A score."""
        score = _as_number(self.value)
        if score is None:
            raise self._wrong("which is not a number")
        if not math.isfinite(score):
            raise self._wrong("which is not a finite number")
        return score

    def _wrong(self, what: str) -> UserError:
        return UserError(f"{self.where} holds {reprlib.repr(self.value)} in {self.column!r}, {what}")


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _check(source: str, first: Sequence[str], second: Sequence[str], scores: Sequence[float]) -> None:
    """Check that the rows can have a rank correlation."""
    if len(scores) < 2:
        raise UserError(f"--eval_file: {source!r} has {len(scores)} pairs; at least 2 are needed")
    if min(scores) == max(scores):
        raise UserError(
            f"--eval_file: all {len(scores)} pairs of {source!r} have the score {scores[0]:g}; a rank correlation "
            "needs scores that differ"
        )
    # the similarity of a sentence to itself is 1, whatever the sentence is
    if len({frozenset((a, b)) if a != b else None for a, b in zip(first, second, strict=True)}) < 2:
        raise UserError(
            f"--eval_file: all rows of {source!r} are the same pair of sentences, or pair a sentence with itself"
        )
