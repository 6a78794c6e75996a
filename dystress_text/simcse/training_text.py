"""Training text: one sentence a line, wherever it comes from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import UserError
from dystress_text.files.hub import published_file
from dystress_text.files.places import cache_error, cache_root, data_root
from dystress_text.files.tables import load_table

if TYPE_CHECKING:
    from datasets import Dataset

FORMAT = 1  # of the files in the cache


TEXT_COLUMNS = ("text", "sentence", "sent0")  # looked for where no column is named


HARD_NEGATIVES = "hard_neg"  # of SimCSE's NLI file, whose rows are no single sentences


def text_of_table(train_file: str, column: str | None, progress: bool = True) -> Path:
    """A column as a text file of the cache, one row a line; line feeds within a row become spaces.

    Args:
        train_file: a table, or a hub data set's name (its ``train`` split).
        column: its name; None takes the only column, or one called text, sentence or sent0.
        progress: show a progress bar.

    Raises:
        UserError: no such file, data set or column, a table that cannot be read, or entries that are no texts.
    """
    rows = load_table(train_file)
    return _write(train_file, rows, [_column(train_file, column, rows.column_names)], True, progress)


def text_of_rows(train_file: str, columns: Sequence[str] | None, progress: bool = True) -> tuple[Path, int]:
    """Rows of sentences that belong together as a text file of the cache, one cell a line, row after row.

    Args:
        train_file: a table, or a hub data set's name (its ``train`` split).
        columns: names of anchor, positive and any number of hard negatives; None takes all columns in their order.
        progress: show a progress bar.

    Returns:
        The file, and how many cells a row has.

    Raises:
        UserError: as for :func:`text_of_table`, fewer than two columns, or an empty cell.
    """
    rows = load_table(train_file)
    known = rows.column_names
    names = known if columns is None else list(columns)
    for name in names:
        if name not in known:
            raise UserError(f"--text_columns: {train_file!r} has no column {name!r}; it has {', '.join(known)}")
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError(
            f"--supervised: a row is an anchor, a positive and any number of hard negatives, each in a column of its "
            f"own; {train_file!r} gives {', '.join(names)}"
        )
    return _write(train_file, rows, names, False, progress), len(names)


def _write(train_file: str, rows: Dataset, columns: Sequence[str], may_be_empty: bool, progress: bool) -> Path:
    rows = rows.select_columns(list(columns))
    target = cache_root() / "tables" / f"{rows._fingerprint}-format-{FORMAT}.txt"
    if not target.is_file():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            staging = target.with_suffix(f".{os.getpid()}")
            with staging.open("w", encoding="utf-8", newline="\n") as file:
                shown = progress_bar(rows, progress, desc=" ".join(columns), unit=" rows")
                for text in _texts(train_file, columns, shown, may_be_empty):
                    file.write(text + "\n")
            staging.replace(target)
        except OSError as error:
            raise cache_error(target.parent, error) from error
    return target


def _column(train_file: str, column: str | None, known: list[str]) -> str:
    if column is None:
        if HARD_NEGATIVES in known:
            raise UserError(
                f"--train_file: {train_file!r} has hard negatives ({', '.join(known)}): add --supervised, or name the "
                "sentences with --text_column"
            )
        found = known if len(known) == 1 else [name for name in TEXT_COLUMNS if name in known]
        if not found:
            raise UserError(f"--text_column: {train_file!r} has the columns {', '.join(known)}; name one")
        return found[0]
    if column not in known:
        raise UserError(f"--text_column: {train_file!r} has no column {column!r}; it has {', '.join(known)}")
    return column


def _texts(
    train_file: str, columns: Sequence[str], rows: Iterable[dict[str, Any]], may_be_empty: bool
) -> Iterable[str]:
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            for column in columns:
                value = row[column]
                if value is not None and not isinstance(value, str):
                    raise UserError(
                        f"--train_file: row {number} of {train_file!r} holds {value!r} in {column!r}, which is no text"
                    )
                text = "" if value is None else value.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")
                if not may_be_empty and not text.strip():
                    raise UserError(f"--train_file: row {number} of {train_file!r} has an empty cell in {column!r}")
                text.encode()  # a half of a surrogate pair has no UTF-8
                yield text
    except UnicodeError as error:
        raise UserError(f"--train_file: {train_file!r}, near row {number + 1}: no Unicode text: {error}") from error


WIKI1M = "wiki1m_for_simcse.txt"


def wiki1m(data_dir: str | Path | None = None) -> Path:
    """SimCSE's training text, one million Wikipedia sentences: prepared, else from the hub.

    Raises:
        UserError: neither; the message names the ways on.
    """
    prepared = data_root(data_dir) / "wiki1m" / WIKI1M
    if prepared.is_file():
        return prepared
    return published_file(
        WIKI1M,
        Path,
        f"no training text: {prepared} does not exist. Three ways on: prepare the data (python data/prepare.py "
        "wiki1m); --train_file FILE with one sentence a line; or --preset quickstart, which needs no network",
    )
