"""The sources of training text: files with one sentence per line, tables, and the hub."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.errors import UserError
from dystress_text.files.hub import published_file
from dystress_text.files.places import data_root
from dystress_text.files.tables import LOADERS, is_table, load_table
from dystress_text.files.text_lines import MAX_LINE_BYTES, CorpusReport, LineStream, read_sentences
from dystress_text.simcse.corpus import TextFile, TrainingText
from dystress_text.simcse.quickstart import write_documentation_corpus
from dystress_text.simcse.settings import TextSettings

if TYPE_CHECKING:
    from datasets import Dataset

WIKI1M = "wiki1m_for_simcse.txt"
TEXT_COLUMNS = ("text", "sentence", "sent0")  # tried in this order if no column is named
HARD_NEGATIVES = "hard_neg"  # a column of SimCSE's NLI file, whose rows are not single sentences


@dataclass(frozen=True)
class TableText:
    """Columns of a table as a training text, row after row; line feeds within a cell become spaces.

    Attributes:
        name: of the file, or of the data set on the hub.
        rows: the table, with only these columns.
        may_be_empty: leave out empty cells; otherwise they are refused, because their row would be incomplete.
    """

    name: str
    rows: Dataset
    may_be_empty: bool

    @property
    def columns(self) -> int:
        return len(self.rows.column_names)

    def checksum(self) -> str:
        digest = hashlib.sha256()
        for cell in self._cells():
            digest.update(cell)
        return digest.hexdigest()

    def sentences(self, report: CorpusReport, most: int | None, places: array[int]) -> Iterator[str]:
        yield from read_sentences(LineStream(self._cells()), report, most, places)
        for kind, what in (("over_long", f"more than {MAX_LINE_BYTES:,} bytes"), ("nul", "a NUL byte")):
            if kind in report.first_line and not self.may_be_empty:  # later rows would be shifted
                row, column = divmod(report.first_line[kind] - 1, self.columns)
                raise UserError(f"--train_file: row {row + 1} has {what} in column {column + 1}")

    def _cells(self) -> Iterator[bytes]:
        """The cells in UTF-8, each with a line feed at its end."""
        names, row = self.rows.column_names, 0
        try:
            for batch in self.rows.iter(batch_size=1000):
                for row, cells in enumerate(zip(*(batch[name] for name in names), strict=True), row + 1):  # noqa: B020
                    for name, cell in zip(names, cells, strict=True):
                        yield self._line(row, name, cell)
        except UnicodeError as error:
            raise UserError(f"--train_file: {self.name!r}, near row {row + 1}: not Unicode text: {error}") from error

    def _line(self, row: int, column: str, cell: Any) -> bytes:
        if cell is not None and not isinstance(cell, str):
            raise UserError(
                f"--train_file: row {row} of {self.name!r} holds {cell!r} in {column!r}, which is not a text"
            )
        text = "" if cell is None else cell.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")
        if not self.may_be_empty and not text.strip():
            raise UserError(f"--train_file: row {row} of {self.name!r} has an empty cell in {column!r}")
        return text.encode() + b"\n"  # fails for half a surrogate pair


def training_text(text: TextSettings) -> TrainingText:
    """The training text that the settings name.

    Raises:
        UserError: there is no such text; the message says what to do.
    """
    name = text.train_file
    if text.supervised:
        if name is None or not is_table(name):
            raise UserError(f"--supervised: needs a table as --train_file ({', '.join(LOADERS)}, or one on the hub)")
        return rows_of_table(name, text.text_columns)
    if name is None:
        return TextFile(wiki1m(text.data_dir))
    if name == "python-documentation":
        return TextFile(write_documentation_corpus())
    if is_table(name):
        return column_of_table(name, text.text_column)
    if text.text_column is not None:
        raise UserError(f"--text_column: {name!r} is a text file without columns")
    if not os.path.isfile(name):
        raise UserError(f"--train_file: no file {name!r}")
    return TextFile(Path(name))


def column_of_table(train_file: str, column: str | None) -> TableText:
    """A column of a table, each cell a sentence.

    Args:
        train_file: a table, or a hub data set's name (its ``train`` split).
        column: its name; None takes the only column, or one called text, sentence or sent0.

    Raises:
        UserError: the file, data set or column does not exist, or the table cannot be read.
    """
    rows = load_table(train_file)
    return TableText(train_file, rows.select_columns([_column(train_file, column, rows.column_names)]), True)


def rows_of_table(train_file: str, columns: Sequence[str] | None) -> TableText:
    """Rows of a table, each an anchor, a positive and any number of hard negatives.

    Args:
        train_file: a table, or a hub data set's name (its ``train`` split).
        columns: names of anchor, positive and any number of hard negatives; None takes all columns in their order.

    Raises:
        UserError: as for :func:`column_of_table`, or fewer than two columns.
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
    return TableText(train_file, rows.select_columns(names), False)


def _column(train_file: str, column: str | None, known: list[str]) -> str:
    if column is None:
        if HARD_NEGATIVES in known:
            raise UserError(
                f"--train_file: {train_file!r} has hard negatives ({', '.join(known)}): add --supervised, or name the "
                "sentences with --text_column"
            )
        candidates = known if len(known) == 1 else [name for name in TEXT_COLUMNS if name in known]
        if not candidates:
            raise UserError(f"--text_column: {train_file!r} has the columns {', '.join(known)}; name one")
        return candidates[0]
    if column not in known:
        raise UserError(f"--text_column: {train_file!r} has no column {column!r}; it has {', '.join(known)}")
    return column


def wiki1m(data_dir: str | Path | None = None) -> Path:
    """SimCSE's training text, one million Wikipedia sentences: the prepared file, else the hub's.

    Raises:
        UserError: neither is available; the message says what to do.
    """
    prepared = data_root(data_dir) / "wiki1m" / WIKI1M
    if prepared.is_file():
        return prepared
    return published_file(
        WIKI1M,
        Path,
        f"no training text: {prepared} does not exist. Three ways on: prepare the data (dystress prepare "
        "wiki1m); --train_file FILE with one sentence per line; or --preset quickstart, which needs no network",
    )
