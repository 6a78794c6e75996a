"""Training text: where it comes from. A file with one sample a line, a column of a table, or rows
of a table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.errors import ParameterError
from dystress_text.files.hub import published_file
from dystress_text.files.places import data_root
from dystress_text.files.tables import ENDINGS, is_table, load_table, with_commas
from dystress_text.files.text_lines import (
    MAX_LINE_BYTES,
    UNPACK_ERRORS,
    CorpusReport,
    bounded_lines,
    cell_mark,
    is_blank,
    is_packed,
    joined_lines,
    open_text,
    read_sentences,
)
from dystress_text.files.whole import sha256_of
from dystress_text.simcse.crops import WORD
from dystress_text.simcse.quickstart import write_documentation_corpus
from dystress_text.simcse.settings import TextSettings

if TYPE_CHECKING:
    from datasets import Dataset

WIKI1M = "wiki1m_for_simcse.txt"
_TABLES = {"\t": ".tsv", ",": ".csv", "{": ".jsonl"}  # by the mark between their cells
_ANCHOR = re.compile(
    "(search[ _-]?)?(anchor|query|question)([ _-]?text)?", re.IGNORECASE
)  # names of columns
_POSITIVE = re.compile(r"pos(itive)?s?([\d _-].*)?", re.IGNORECASE)
_NEGATIVE = re.compile(r"(hard[ _-]?)?neg(ative)?s?([\d _-].*)?", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")
_ID = re.compile(
    r"\S*([\d_@]|\w[.:/\\]+\w)\S*", re.ASCII
)  # no space, but a digit or a sign that words do not have
_ADDRESS = re.compile(r"[a-z]+://\S+|www\.\S+", re.IGNORECASE)
_DATE = re.compile(  # with names of months and days, or in Chinese
    r"(?=.*\d)([\W\d]|(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun)[a-z]*"
    r"|[ap]m|utc|gmt|st|nd|rd|th|[年月日时時分秒])+",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TextFile:
    """A text file, plain or compressed, with one sample a line, or as a document between blank
    lines.
    """

    path: Path
    documents: bool = False
    columns = 1

    @property
    def name(self) -> str:
        return str(self.path)

    def checksum(self) -> str:
        with self._readable():
            return sha256_of(self.path)

    def sentences(self, report: CorpusReport, most: int | None) -> Iterator[str]:
        with self._readable(), open_text(self.path) as stream:
            yield from read_sentences(
                (joined_lines if self.documents else bounded_lines)(stream), report, most
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, *UNPACK_ERRORS) as error:
            reason = getattr(error, "strerror", None) or error
            raise ParameterError("train_file", f"cannot read {self.name!r}: {reason}") from error


@dataclass(frozen=True)
class TableText:
    """Columns of a table as a training text, row after row; line feeds within a cell become spaces."""

    name: str  # of the file, or of the data set on the hub
    rows: Dataset  # with only these columns; with one its empty cells are left out, with several refused

    @property
    def columns(self) -> int:
        return len(self.rows.column_names)

    def checksum(self) -> str:
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(line)
        return digest.hexdigest()

    def sentences(self, report: CorpusReport, most: int | None) -> Iterator[str]:
        return read_sentences(self._lines(), report, most)

    def _lines(self) -> Iterator[bytes]:
        """The cells in UTF-8, each with a line feed at its end."""
        names, row = self.rows.column_names, 0
        for batch in self.rows.iter(batch_size=1000):  # many times faster than row after row
            for cells in zip(*(batch[name] for name in names), strict=True):
                row += 1
                for name, cell in zip(names, cells, strict=True):
                    try:
                        yield self._line("" if cell is None else cell)
                    except (
                        TypeError,
                        ValueError,
                    ) as error:  # UnicodeError too: half a surrogate pair
                        where = f"row {row} of {self.name!r}, column {name!r}"
                        raise ParameterError(
                            "train_file", f"{where} is not a text to train on: {error}"
                        ) from error

    def _line(self, cell: Any) -> bytes:
        if not isinstance(cell, str):
            raise TypeError(f"it holds {cell!r:.40}; name a column of sentences")
        line = re.sub(r"\r\n?|\n", " ", cell).encode()
        if self.columns > 1 and (is_blank(cell) or len(line) > MAX_LINE_BYTES or b"\0" in line):
            raise ValueError(
                "it is empty, too long, or has a NUL byte"
            )  # one sentence less would shift all others
        return line + b"\n"


TrainingText = TextFile | TableText


def training_text(text: TextSettings) -> TrainingText:
    """The training text that the settings name."""
    name = text.train_file
    if text.supervised:
        if name is None or not is_table(name):
            known = ", ".join(ENDINGS)
            raise ParameterError(
                "supervised", f"needs a table as --train_file ({known}, or one on the hub)"
            )
        return rows_of_table(name, text.text_columns)
    documents = text.sample == "document"
    if name is None:
        return TextFile(wiki1m(text.data_dir), documents)
    if name == "python-documentation":
        return TextFile(write_documentation_corpus(), documents)
    if is_table(name):
        if documents:
            raise ParameterError(
                "sample", "a cell of a table is a sample; documents are those of text files"
            )
        return column_of_table(name, text.text_columns[0] if text.text_columns else None)
    if text.text_columns is not None:
        raise ParameterError("text_columns", f"{name!r} is a text file without columns")
    if not Path(name).is_file():  # said before a model is loaded
        problem = "is a folder; name a file in it" if Path(name).is_dir() else "is no file"
        raise ParameterError("train_file", f"{name!r} {problem}")
    with (
        suppress(OSError, *UNPACK_ERRORS),
        open_text(Path(name)) as stream,
    ):  # which are said when it is read
        if mark := cell_mark(stream):
            way = (
                f"name it {ending}"
                if (ending := _TABLES.get(mark))
                else "put tabs there and name it .tsv"
            )
            way += f", or with commas: {with_commas(Path(name))}" * (
                mark == ";" and not is_packed(Path(name))
            )
            header = "a .csv or .tsv begins with the names of its columns"
            other = (
                "; if its lines are sentences, put the line 'text' before them and name it .tsv"
                * (mark != "\t")
            )
            raise ParameterError(
                "train_file",
                f"{name!r} is a table, with {mark!r} in each line: {way}; {header}{other}",
            )
    return TextFile(Path(name), documents)


def column_of_table(train_file: str, column: str | None) -> TableText:
    """A column of a table, each cell a sentence; without a name the only one, or one called text,
    sentence or sent0.
    """
    table = load_table(train_file)
    known, named = table.column_names, column is not None
    if column is None and "hard_neg" in known:  # of SimCSE's NLI file
        raise ParameterError(
            "train_file",
            f"{train_file!r} has hard negatives ({', '.join(known)}): add --supervised, or name the sentences with "
            "--text_columns",
        )
    if column is None:
        usual = known if len(known) == 1 else ("text", "sentence", "sent0")
        column = next((name for name in usual if name in known), None)
    if column is None or column not in known:
        raise ParameterError(
            "text_columns", f"{train_file!r} has the columns {', '.join(known)}; name one"
        )
    return _text_of(train_file, table, [column], named)


def rows_of_table(train_file: str, columns: Sequence[str] | None) -> TableText:
    """Rows of a table: columns of anchor, positive and any number of hard negatives; without names
    all, in order.

    Of columns in their own order an ``anchor`` is put first, and a ``positive``, or else no
    ``negative``, second.
    """
    table = load_table(train_file)
    names, known = list(columns or _ordered(table.column_names)), ", ".join(table.column_names)
    if not set(names) <= set(table.column_names):
        raise ParameterError(
            "text_columns", f"{train_file!r} has the columns {known}; got {', '.join(names)}"
        )
    if len(names) < 2 or len(set(names)) < len(names):
        raise ParameterError(
            "supervised",
            "a row is an anchor, a positive and any number of hard negatives, each in a column of its own; "
            f"{train_file!r} gives {', '.join(names)}",
        )
    return _text_of(train_file, table, names, columns is not None)


def _ordered(names: Sequence[str]) -> list[str]:
    positives = [name for name in names if _POSITIVE.fullmatch(name)]
    others = [name for name in names if not _NEGATIVE.fullmatch(name) and name not in positives]
    anchors = [name for name in others if _ANCHOR.fullmatch(name)] or others[:1]
    return list(
        dict.fromkeys([*anchors[:1], *positives[:1], *others[: 2 - len(positives)], *names])
    )


def _text_of(train_file: str, table: Dataset, columns: list[str], named: bool) -> TableText:
    some = table.select(range(0, len(table), max(1, len(table) // 1000))).to_list()
    if len(table.column_names) > 1:  # rows that are repeated as a whole say nothing of a column
        some = list({repr(row): row for row in some}.values())
    for column in columns:  # in a .csv labels and scores are texts too
        cells = [str(row[column]) for row in some if isinstance(row[column], (str, int, float))]
        cells = [cell for cell in cells if not is_blank(cell)]
        if cells and (not any(map(_LETTER.search, cells)) or (not named and no_sentences(cells))):
            reason = f"no letter, or labels, ids or one source, such as {cells[0]!r:.40}"
            raise ParameterError(
                "text_columns",
                f"column {column!r} of {train_file!r} has {reason}; name columns of sentences",
            )
    return TableText(train_file, table.select_columns(columns))


def no_sentences(cells: Sequence[str]) -> bool:
    """Whether cells are labels, numbers, dates, ids or addresses, or always the same: five cells at
    least are so.

    Few words that come again and again are labels: one word twice, two or three ten times, any
    number twenty times if there is nothing else. A character of a script without spaces is a word.
    """
    longest, kinds = max((len(WORD.findall(cell)) for cell in cells), default=0), len(set(cells))
    least = 2 if longest < 2 else 10 if longest < 4 else 20
    labels = kinds * least <= len(cells) and kinds <= (100 if longest < 4 else 1)
    ids = sum(
        (cell.isascii() and _ID.fullmatch(cell) is not None)
        or any(kind.fullmatch(cell) for kind in (_ADDRESS, _DATE))
        for cell in map(str.strip, cells)
    )
    return len(cells) > 4 and (labels or ids > 0.8 * len(cells))


def wiki1m(data_dir: str | Path | None = None) -> Path:
    """SimCSE's training text, one million Wikipedia sentences: the prepared file, else the hub's."""
    prepared = data_root(data_dir) / "wiki1m" / WIKI1M
    if prepared.is_file():
        return prepared
    return published_file(
        WIKI1M,
        Path,
        f"no training text: {prepared} does not exist. Three ways on: prepare the data (dystress prepare "
        "wiki1m); --train_file FILE with one sentence per line; or --preset quickstart, which needs no network",
    )
