"""Training text: lines of a file, columns of a table, or texts from Python.

A column is the one that is named, or the only one, or the one called text or sentence. With
supervision the columns are those that are named, or anchor, positive and negatives by these names,
or all in order. A run prints the first samples as it has read them, by column.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dystress_text.errors import ParameterError
from dystress_text.files.hub import published_file
from dystress_text.files.places import data_root
from dystress_text.files.tables import READERS, Table, is_table, open_table, python_table
from dystress_text.files.text_lines import (
    MAX_LINE_BYTES,
    UNPACK_ERRORS,
    CorpusReport,
    bounded_lines,
    ending_of,
    is_blank,
    joined_lines,
    open_text,
    read_sentences,
)
from dystress_text.files.whole import sha256_of
from dystress_text.simcse.quickstart import write_documentation_corpus
from dystress_text.simcse.settings import RunSettings, TextSettings

WIKI1M = "wiki1m_for_simcse.txt"
TEXT_COLUMNS = "text", "sentence"
FORMATS = f".txt (UTF-8, one sentence a line), {', '.join(READERS)}, or OWNER/NAME on the hub"
SHOWN = 3  # samples that a run prints
SHOWN_LENGTH = 100  # characters of each text


@dataclass(frozen=True)
class TextFile:
    """A text file with one sample a line, or as a document between blank lines."""

    path: Path
    documents: bool = False
    column_names = ()
    columns = 1  # sentences of a sample
    parameter = "train_file"  # for errors

    @property
    def name(self) -> str:
        return str(self.path)

    def checksum(self) -> str:
        with self._readable():
            return sha256_of(self.path)

    def sentences(self, report: CorpusReport, most: int | None) -> Iterator[str]:
        """Yield at most ``most`` sentences; count the lines of each kind in ``report``."""
        split = joined_lines if self.documents else bounded_lines
        with self._readable(), open_text(self.path) as stream:
            yield from read_sentences(split(stream), report, most)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, *UNPACK_ERRORS) as error:
            reason = getattr(error, "strerror", None) or error
            raise ParameterError("train_file", f"cannot read {self.name!r}: {reason}") from error


@dataclass(frozen=True)
class TableText:
    """Columns of a table as samples; line breaks within a cell become spaces.

    Of one column empty cells are left out. Of several they are refused: one sentence less would
    shift all others.
    """

    table: Table
    column_names: tuple[str, ...]  # one, or anchor, positive and hard negatives
    parameter: str = "train_file"  # for errors
    documents = False

    @property
    def name(self) -> str:
        return self.table.source

    @property
    def columns(self) -> int:
        return len(self.column_names)

    def checksum(self) -> str:
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(line)
        return digest.hexdigest()

    def sentences(self, report: CorpusReport, most: int | None) -> Iterator[str]:
        """Yield at most ``most`` sentences, row after row; count them in ``report``."""
        return read_sentences(self._lines(), report, most)

    def _lines(self) -> Iterator[bytes]:
        """Yield the cells in UTF-8, each with a line feed at its end."""
        for index, row in enumerate(self.table.rows(self.column_names)):
            for name, cell in zip(self.column_names, row, strict=True):
                try:
                    yield _line(cell, self.columns > 1)
                except ValueError as error:  # UnicodeEncodeError too: half a surrogate pair
                    place = f"row {index + 1} of {self.name!r}, column {name!r}"
                    if self.parameter == "texts":
                        place = f"item {index}, {name}"
                    raise ParameterError(self.parameter, f"{place}: {error}") from error


TrainingText = TextFile | TableText


def _line(cell: Any, in_row: bool) -> bytes:
    """Return a cell as a line, or say without its content what is wrong with it."""
    text = "" if cell is None else cell
    if not isinstance(text, str):
        raise ValueError(f"expected a text, got a value of type {type(text).__name__}")
    line = re.sub(r"\r\n?|\n", " ", text).encode()
    if in_row and (is_blank(text) or len(line) > MAX_LINE_BYTES or b"\0" in line):
        raise ValueError(f"it is empty, has a NUL byte, or more than {MAX_LINE_BYTES:,} bytes")
    return line + b"\n"


def reading_lines(text: TrainingText, counts: CorpusReport, dropped: bool) -> list[str]:
    """Return lines for the user: what a text has, and its first samples, read again.

    Of ``dropped`` duplicates another line says how many.
    """
    lines = [f"{counts.summary(dropped)} ({text.name})"]
    most = min(SHOWN * text.columns, counts.sentences)
    for i, sentence in enumerate(text.sentences(CorpusReport(), most)):
        row, column = divmod(i, text.columns)
        place = f"sample {row + 1}"
        if text.column_names:
            place += f", {text.column_names[column]}"
        lines.append(f"{place}: {shortened(sentence)}")
    return lines


def shortened(text: str) -> str:
    """Return a text in quotes on one line that standard output can show, cut where it is long."""
    shown = repr(text[:SHOWN_LENGTH])
    if len(text) > SHOWN_LENGTH:
        shown += "..."
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def training_text(text: TextSettings) -> TrainingText:
    """Return the training text that the settings name."""
    name = text.train_file
    if name is None or name == "python-documentation":
        if text.supervised:
            raise ParameterError("supervised", f"needs rows of texts as --train_file: {FORMATS}")
        path = wiki1m(text.data_dir) if name is None else write_documentation_corpus()
        return TextFile(path, text.sample == "document")
    path = Path(name)
    if is_table(name):
        if not path.suffix or path.is_file():
            return table_text(open_table(name), text)
    elif path.is_file():
        if ending_of(name) not in ("", ".txt"):
            raise ParameterError("train_file", f"{name!r}: expected {FORMATS}")
        if text.supervised:
            reason = f"needs a table as --train_file: {', '.join(READERS)}"
            raise ParameterError("supervised", reason)
        if text.text_columns is not None:
            raise ParameterError("text_columns", f"{name!r} is a text file without columns")
        return TextFile(path, text.sample == "document")
    problem = "is no file"
    if path.is_dir():
        problem = "is a folder; name a file in it"
    raise ParameterError("train_file", f"{name!r} {problem}")


def with_texts(settings: RunSettings, texts: object) -> tuple[RunSettings, TableText]:
    """Return texts from Python, and the settings with their name and checksum as ``train_file``.

    Pairs and triplets of a list are training with supervision.
    """
    if "train_file" in settings.given:
        raise ParameterError("texts", "give texts or train_file, not both")
    table = python_table(texts)
    in_rows = isinstance(texts, Sequence) and len(table.columns) > 1
    text = replace(settings.text, supervised=settings.text.supervised or in_rows)
    read = table_text(table, text, "texts")
    name = f"{read.name}, sha256 {read.checksum()[:16]}"  # by which a finished run is known again
    return replace(settings, text=replace(text, train_file=name)), read


def table_text(table: Table, settings: TextSettings, parameter: str = "train_file") -> TableText:
    """Return the columns of a table that the settings name, or the usual ones."""
    if settings.sample == "document":
        reason = "a cell of a table is a sample; documents are those of text files"
        raise ParameterError("sample", reason)
    known = f"{table.source!r} has the columns {', '.join(table.columns)}"
    names = settings.text_columns or usual_columns(table.columns, settings.supervised)
    if not names or not set(names) <= set(table.columns):
        more = "" if settings.supervised else ", or train on rows with supervised"
        raise ParameterError("text_columns", f"{known}; name the one to train on{more}")
    if settings.supervised and (len(names) < 2 or len(set(names)) < len(names)):
        expected = "an anchor, a positive and any number of hard negatives, a column each"
        raise ParameterError("supervised", f"expected {expected}; {known}")
    return TableText(table, tuple(names), parameter)


def usual_columns(columns: Sequence[str], supervised: bool) -> list[str]:
    """Return the columns to read where none is named; [] if that is not clear."""
    if not supervised:
        if len(columns) == 1:
            return list(columns)
        return [name for name in TEXT_COLUMNS if name in columns][:1]
    if not {"anchor", "positive"} <= set(columns):
        return list(columns)
    negatives = [name for name in columns if re.fullmatch(r"negative(_\d+)?", name)]
    return ["anchor", "positive", *negatives]


def wiki1m(data_dir: str | Path | None = None) -> Path:
    """Return SimCSE's text, a million Wikipedia sentences: the prepared file, else the hub's."""
    prepared = data_root(data_dir) / "wiki1m" / WIKI1M
    if prepared.is_file():
        return prepared
    otherwise = (
        f"no training text: {prepared} does not exist. Three ways on: prepare the data (dystress "
        "prepare wiki1m); --train_file FILE with one sentence per line; or --preset quickstart, "
        "which needs no network"
    )
    return published_file(WIKI1M, Path, otherwise)
