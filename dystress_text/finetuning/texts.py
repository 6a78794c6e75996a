"""Read training text from files with a text on each line, from tables, or from Python lists.

The user may name the columns of a table. The default without supervision is the only column, or
``text`` or ``sentence``; for crops, ``title`` and ``text`` if both exist. With supervision it is
``anchor``, ``positive`` and ``negative``, or all columns if these are missing. Without supervision
several columns are joined by spaces. With crops the first of two columns is a title.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import glob, has_magic
from itertools import chain
from pathlib import Path
from typing import Any

from dystress_text.errors import ParameterError, reason_of
from dystress_text.finetuning.quickstart import write_documentation_corpus
from dystress_text.finetuning.settings import FineTuningSettings, TextSettings
from dystress_text.io.hub import published_file
from dystress_text.io.paths import data_root
from dystress_text.io.prepared_data import DOCUMENTATION, WIKI1M
from dystress_text.io.tables import READERS, Table, is_hub_name, is_table, open_table, python_table
from dystress_text.io.text_lines import (
    ICONV,
    MAX_LINE_BYTES,
    UNPACK_ERRORS,
    LineCounts,
    bounded_lines,
    ending_of,
    is_blank,
    open_text,
    read_sentences,
)

TEXT_COLUMNS = "text", "sentence"
FORMATS = f".txt (UTF-8, one sentence a line), {', '.join(READERS)}, or OWNER/NAME on the hub"
TITLED = ["title", "text"]
TITLE_END = "\r"  # between title and body in a line; cells have none
SHOWN = 3  # samples printed by a run
SHOWN_LENGTH = 100  # characters of each text


@dataclass
class CorpusReport(LineCounts):
    """Counts of a training text as it was read; each cell of a table counts as a line."""

    sha256: str = ""  # of the lines
    unit: str = "sentence"  # of samples: sentence or row
    columns: int = 1  # sentences per sample
    duplicates: int = 0  # samples kept, with the tokens of an earlier one
    truncated: int = 0  # sentences kept, but cut to the training length
    tokens: int = 0  # of all sentences, before the cut
    tokens_cut: int = 0
    short: int = 0  # sentences kept, but used whole, as too short for crops

    def summary(self) -> str:
        """Return the counts as one line."""
        cut = "cut at the training length (kept)"
        if 10 * self.truncated > self.sentences:
            share = 100 * self.tokens_cut / self.tokens
            cut = f"cut, which leaves out {share:.0f} % of all tokens (raise max_seq_length)"
        counts = {
            "empty (left out)": self.empty,
            f"over {MAX_LINE_BYTES:,} bytes (left out)": self.over_long,
            f"not UTF-8 (left out; first line {self.first_invalid}: {ICONV})": self.invalid_utf8,
            f"with a NUL byte (left out; {ICONV})": self.nul,
            "duplicates": self.duplicates,
            cut: self.truncated,
            "shorter than two crops (used whole)": self.short,
        }
        summary = f"{self.sentences // self.columns:,} {self.unit}s"
        if self.unit == "sentence":
            summary += f" in {self.lines:,} lines"
        notes = [f"{count:,} {text}" for text, count in counts.items() if count]
        if not notes:
            return summary
        return f"{summary}; {', '.join(notes)}"


@dataclass(frozen=True)
class TrainingText:
    """A training text: a source of samples.

    Attributes:
        name: its name in messages.
        unit: what a sample is: ``sentence`` (a line) or ``row``.
        column_names: the names of the sentences in a row; empty for lines.
        lines: yields the sentences as lines of UTF-8, sample after sample.
        parameter: the parameter that errors name.
        titled: whether a line may begin with a title, up to :data:`TITLE_END`.
        in_memory: whether the texts are objects of the caller, which must not be written to disk.
    """

    name: str
    unit: str
    column_names: tuple[str, ...]
    lines: Callable[[], Iterator[bytes]]
    parameter: str = "train_file"
    titled: bool = False
    in_memory: bool = False

    @property
    def columns(self) -> int:
        """The number of sentences in a sample."""
        return max(1, len(self.column_names))

    def checksum(self) -> str:
        """Return the SHA-256 of all lines."""
        digest = hashlib.sha256()
        deque(_hashed(self.lines(), digest), maxlen=0)
        return digest.hexdigest()

    def report(self) -> CorpusReport:
        """Return a report for :meth:`read` to fill."""
        return CorpusReport(unit=self.unit, columns=self.columns)

    def read(
        self, report: CorpusReport, max_samples: int | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yield :meth:`titled_sentences`; add their counts and the checksum to ``report``.

        The checksum is that of all lines, also if fewer samples are read.
        """
        digest = hashlib.sha256()
        lines = _hashed(self.lines(), digest)
        yield from self._split(lines, report, max_samples)
        deque(lines, maxlen=0)  # the rest of them
        report.sha256 = digest.hexdigest()

    def sentences(self, max_samples: int | None = None) -> Iterator[str]:
        """Yield the sentences of the first ``max_samples`` samples."""
        for _, sentence in self.titled_sentences(max_samples):
            yield sentence

    def titled_sentences(self, max_samples: int | None = None) -> Iterator[tuple[str, str]]:
        """Yield pairs of a title, or "", and the sentence that begins with it."""
        return self._split(self.lines(), self.report(), max_samples)

    def _split(
        self, lines: Iterator[bytes], report: CorpusReport, max_samples: int | None
    ) -> Iterator[tuple[str, str]]:
        most = None if max_samples is None else max_samples * self.columns
        for line in read_sentences(lines, report, most):
            title, end, body = line.partition(TITLE_END)
            if self.titled and end:
                yield title, f"{title} {body}"
            else:
                yield "", line


def _hashed(lines: Iterator[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    """Yield lines, and add each to a digest with a line feed at its end."""
    for line in lines:
        digest.update(line.removesuffix(b"\n") + b"\n")
        yield line


def plain_text(path: Path) -> TrainingText:
    """Return the text in a file with a sentence on each line."""

    def lines() -> Iterator[bytes]:
        try:
            with open_text(path) as stream:
                yield from bounded_lines(stream)
        except (OSError, *UNPACK_ERRORS) as error:
            reason = f"cannot read {str(path)!r}: {reason_of(error)}"
            raise ParameterError("train_file", reason) from error

    return TrainingText(str(path), "sentence", (), lines)


def _concatenate(texts: Sequence[TrainingText]) -> TrainingText:
    """Concatenate texts that have the same columns."""
    first = texts[0]
    for text in texts:
        if text.column_names != first.column_names:
            columns = [", ".join(each.column_names) or "no columns" for each in (first, text)]
            both = f"{first.name!r} has {columns[0]}; {text.name!r} has {columns[1]}"
            raise ParameterError("train_file", f"expected files with the same columns; {both}")
    name = f"{first.name} to {texts[-1].name}, {len(texts)} files"
    return replace(first, name=name, lines=lambda: chain(*(text.lines() for text in texts)))


def _lines_of_rows(
    table: Table, columns: Sequence[str], supervised: bool, separator: bytes, parameter: str
) -> Iterator[bytes]:
    """Yield one line per cell with supervision, else one per row, with its cells joined.

    With supervision an empty cell is an error, as skipping it would shift all later cells.
    """
    for index, row in enumerate(table.rows(columns)):
        cells = []
        for name, cell in zip(columns, row, strict=True):
            try:
                cells.append(_line_of_cell(cell, supervised))
            except ValueError as error:  # also UnicodeEncodeError: half a surrogate pair
                position = f"row {index + 1} of {table.source!r}, column {name!r}"
                raise ParameterError(parameter, f"{position}: {error}") from error
        if not supervised:
            cells = [separator.join(filter(None, cells))]
        yield from cells


def _line_of_cell(cell: Any, supervised: bool) -> bytes:
    """Return a cell as one line. Errors do not quote its content, which may be private."""
    text = "" if cell is None else cell
    if not isinstance(text, str):
        raise ValueError(f"expected a text, got a value of type {type(text).__name__}")
    line = re.sub(r"\r\n?|\n", " ", text).encode()
    if supervised and (is_blank(text) or len(line) > MAX_LINE_BYTES or b"\0" in line):
        raise ValueError(
            f"the cell is empty, contains a NUL byte, or exceeds {MAX_LINE_BYTES:,} bytes"
        )
    return line


def first_samples(text: TrainingText, max_samples: int | None = None) -> list[str]:
    """Describe the first samples of a text, a line for each of their texts."""
    lines = []
    for i, sentence in enumerate(text.sentences(min(SHOWN, max_samples or SHOWN))):
        row, column = divmod(i, text.columns)
        position = f"sample {row + 1}"
        if text.column_names:
            position += f", {text.column_names[column]}"
        lines.append(f"{position}: {sentence[:SHOWN_LENGTH]!r}")
    return lines


def training_text(settings: TextSettings) -> TrainingText:
    """Open the training text that the settings name."""
    names = settings.train_file
    if names is None or names == [DOCUMENTATION]:
        if settings.supervised:
            raise ParameterError(
                "supervised", f"needs a `train_file` with rows of texts: {FORMATS}"
            )
        path = wiki1m(settings.data_dir) if names is None else write_documentation_corpus()
        return plain_text(path)
    files = [file for name in names for file in _files_of(name)]
    parts = [_text_of(file, settings) for file in files]
    return parts[0] if len(parts) == 1 else _concatenate(parts)


def _files_of(name: str) -> list[str]:
    """Expand a pattern such as ``tickets-*.csv``; the name of an existing file is not expanded."""
    if Path(name).exists() or not has_magic(name):
        return [name]
    files = sorted(glob(name))
    if not files:
        raise ParameterError("train_file", f"no file matches the pattern {name!r}")
    return files


def _text_of(name: str, settings: TextSettings) -> TrainingText:
    path = Path(name)
    if is_hub_name(name) or (path.is_file() and is_table(name)):
        return table_text(open_table(name), settings)
    if not path.is_file():
        raise ParameterError("train_file", f"{name!r} is not a file")
    if ending_of(name) not in ("", ".txt"):
        raise ParameterError("train_file", f"{name!r}: expected {FORMATS}")
    if settings.supervised:
        reason = f"needs a table ({', '.join(READERS)}) as `train_file`"
        raise ParameterError("supervised", reason)
    if settings.text_columns is not None:
        raise ParameterError("text_columns", f"{name!r} is a text file without columns")
    return plain_text(path)


def with_texts(
    settings: FineTuningSettings, texts: object
) -> tuple[FineTuningSettings, TrainingText]:
    """Return the settings of a run on texts from Python, and its training text.

    ``train_file`` becomes a name with the checksum of the texts, by which a finished run is
    recognised. A list of pairs or triplets sets ``supervised``; for a data set the user sets it.
    """
    if "train_file" in settings.given:
        raise ParameterError("texts", "give texts or `train_file`, not both")
    table = python_table(texts)
    in_rows = not hasattr(texts, "column_names") and len(table.columns) > 1
    text = replace(settings.text, supervised=settings.text.supervised or in_rows)
    opened = replace(table_text(table, text, "texts"), in_memory=True)
    name = f"{opened.name}, sha256 {opened.checksum()[:16]}"
    return replace(settings, text=replace(text, train_file=[name])), opened


def table_text(table: Table, settings: TextSettings, parameter: str = "train_file") -> TrainingText:
    """Return the text in the columns that the settings name, or in the default ones."""
    known = f"{table.source!r} has the columns {', '.join(table.columns)}"
    names = settings.text_columns or default_columns(table.columns, settings.supervised)
    if settings.text_columns is None and settings.cropped and {*TITLED} <= {*table.columns}:
        names = TITLED
    if not names or not set(names) <= set(table.columns):
        more = "" if settings.supervised else ", several to join them, or give supervised"
        raise ParameterError("text_columns", f"{known}; name the one to train on{more}")
    if settings.supervised and (len(names) < 2 or len(set(names)) < len(names)):
        expected = "an anchor, a positive and any number of hard negatives, a column each"
        raise ParameterError("supervised", f"expected {expected}; {known}")
    titled = settings.cropped and len(names) == 2
    separator = TITLE_END.encode() if titled else b" "
    lines = partial(_lines_of_rows, table, names, settings.supervised, separator, parameter)
    labels = names if settings.supervised else [" + ".join(names)]
    return TrainingText(table.source, "row", tuple(labels), lines, parameter, titled)


def default_columns(columns: Sequence[str], supervised: bool) -> list[str]:
    """Return the columns to read by default; [] if the choice is ambiguous."""
    if not supervised:
        if len(columns) == 1:
            return list(columns)
        return [name for name in TEXT_COLUMNS if name in columns][:1]
    if not {"anchor", "positive"} <= set(columns):
        return list(columns)
    negatives = [name for name in columns if re.fullmatch(r"negative(_\d+)?", name)]
    return ["anchor", "positive", *negatives]


def wiki1m(data_dir: str | Path | None = None) -> Path:
    """Return SimCSE's file of a million Wikipedia sentences, prepared or from the hub."""
    prepared = data_root(data_dir) / "wiki1m" / WIKI1M
    if prepared.is_file():
        return prepared
    otherwise = (
        f"no training text: {prepared} does not exist. Run dystress prepare wiki1m, give a file "
        "with `train_file`, or take `preset` quickstart, which needs no network"
    )
    return published_file(WIKI1M, Path, otherwise)
