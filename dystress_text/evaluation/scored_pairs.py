"""Scored pairs of the user's own: tables of two sentences and a score.

Every row is checked; an error names the row, counted from 1 below the header.
"""

from __future__ import annotations

import csv
import re
import reprlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.evaluation.readers import StsPairs, one_spaced, score_of
from dystress_text.files.tables import is_hub_name, is_table, load_table

COLUMNS = ("sentence1", "sentence2", "score")  # as sentence-transformers' data sets name them
HUB_SPLIT = "validation"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read_scored_pairs(
    source: str, columns: Sequence[str] | None = None, score_range: Sequence[float] | None = None
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
    """
    known, rows = _read(source)
    names = _chosen(source, known, columns)
    first: list[str] = []
    second: list[str] = []
    scores: list[float] = []
    for number, row in enumerate(rows, 1):
        where = f"row {number} of {source!r}"
        try:
            first.append(_text(row[names[0]]))
            second.append(_text(row[names[1]]))
            scores.append(score_of(row[names[2]]))
        except ValueError as error:
            raise ParameterError("eval_file", f"{where}: {error}") from error
        if score_range is not None and not score_range[0] <= scores[-1] <= score_range[1]:
            low, high = score_range
            raise ParameterError(
                "eval_score_range", f"{where} has the score {scores[-1]:g}, outside {low:g} to {high:g}"
            )
    if len(set(scores)) < 2:
        raise ParameterError("eval_file", f"the {len(scores)} pairs of {source!r} have no two different scores")
    low, high = score_range or (min(scores), max(scores))
    return StsPairs(tuple(first), tuple(second), np.array(scores), slug_of(source), 0.8 * high + 0.2 * low)


def slug_of(source: str) -> str:
    """A file's or data set's name in metrics: its stem in lower case, with ``_`` for all but letters and digits."""
    stem = Path(source.partition(":")[0] if _is_hub_set(source) else source).stem
    slug = re.sub(r"\W+", "_", stem.lower()).strip("_")
    if not slug:
        raise ParameterError("eval_file", f"the name of {source!r} has no letter or digit to name its metrics by")
    return slug


def _is_hub_set(source: str) -> bool:
    return is_hub_name(source.partition(":")[0]) and not Path(source).exists()


def _read(source: str) -> tuple[Sequence[str], Iterable[dict[str, Any]]]:
    """The names of a table's columns, and its rows."""
    name, _, split = source.partition(":") if _is_hub_set(source) else (source, "", "")
    if not is_table(name) or not (_is_hub_set(source) or Path(source).is_file()):
        raise ParameterError("eval_file", f"no table {source!r} (.csv, .tsv, .jsonl, .parquet) and no such data set")
    if delimiter := _DELIMITERS.get(Path(name).suffix.lower()):
        return _read_csv(source, delimiter)
    try:
        table = load_table(name, split=split or HUB_SPLIT)
    except UserError as error:
        raise ParameterError("eval_file", str(error)) from error
    return table.column_names, cast(Iterable[dict[str, Any]], table)


def _read_csv(source: str, delimiter: str) -> tuple[Sequence[str], list[dict[str, Any]]]:
    # datasets would guess a type for each column, and says of no row that it is too short
    try:
        with open(source, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter=delimiter, strict=True)
            names, rows = reader.fieldnames or (), list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise ParameterError("eval_file", f"cannot read {source!r}: {reason_of(error)}") from error
    for number, row in enumerate(rows, 1):
        if None in row:
            raise ParameterError("eval_file", f"row {number} of {source!r} has more than {len(names)} columns")
    return names, rows


def _chosen(source: str, known: Sequence[str], columns: Sequence[str] | None) -> Sequence[str]:
    """The columns of the two sentences and the score."""
    if columns is None and set(COLUMNS) <= set(known):
        return COLUMNS
    if columns is None and len(known) == 3:
        if re.fullmatch(r"[-+.\d\s]+", known[2]):
            raise ParameterError("eval_file", f"{source!r} has no header: its first row has the score {known[2]!r}")
        return known
    if columns is None or len(columns) != 3 or not set(columns) <= set(known):
        asked = "" if columns is None else f", not {', '.join(columns)}"
        raise ParameterError(
            "eval_columns",
            f"{source!r} has the columns {', '.join(known)}{asked}; name those of the first sentence, the second and "
            "the score",
        )
    return columns


def _text(cell: Any) -> str:
    if not isinstance(cell, str) or not cell.strip():
        raise ValueError(f"{reprlib.repr(cell)} is not a text")
    cell.encode()  # half of a surrogate pair is a ValueError too
    return one_spaced(cell)
