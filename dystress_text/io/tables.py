"""Read tables with named columns: files, data sets of ``datasets``, and Python lists.

The extension of a file decides how it is read. All files are in UTF-8.

- ``.csv``: commas and quotation marks, as in RFC 4180.
- ``.tsv``: tabs without quotation marks, as in GLUE's files.
- ``.jsonl``: one object per line; the first one names the columns.
- ``.parquet``.

``datasets`` does not read these files: it infers the types of cells, takes file names as patterns,
and identifies its cached copies by name and time.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyarrow import ArrowException

from dystress_text.errors import DataError, ParameterError, reason_of
from dystress_text.io.hub import hub_reachable
from dystress_text.io.text_lines import UNPACK_ERRORS, ending_of, not_utf8, open_text

if TYPE_CHECKING:
    from datasets import Dataset

MAX_CELL = 1 << 26  # characters; an unpaired quotation mark puts the rest of the file in one cell
BATCH = 1000  # rows
DIALECTS: dict[str, dict[str, Any]] = {
    ".csv": {"strict": True, "delimiter": ","},
    ".tsv": {"strict": True, "delimiter": "\t", "quoting": csv.QUOTE_NONE},
}

_UNREADABLE = (OSError, ValueError, RecursionError, csv.Error, ArrowException, *UNPACK_ERRORS)

Record = dict[str, Any]  # a row: cells by column
Columns = Sequence[str] | None  # those to read; None for all


@dataclass(frozen=True)
class Table:
    """Rows with named columns, which can be read repeatedly."""

    source: str  # in messages
    columns: tuple[str, ...]
    read: Callable[[Columns], Iterator[Record]]  # may yield further columns too

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield the cells of some columns, row by row; None for a missing cell."""
        with _readable(self.source):
            for record in self.read(columns):
                yield tuple(map(record.get, columns))


def is_table(source: str) -> bool:
    """Return whether a source is a file with a table's extension, or a data set on the hub."""
    return ending_of(source) in READERS or is_hub_name(source)


def is_hub_name(name: str) -> bool:
    """Return whether a name is ``owner/name`` without an extension, and no local file."""
    parts = name.split("/")
    if len(parts) != 2 or not all(parts) or name.startswith((".", "~")):
        return False
    return not Path(name).suffix and not Path(name).exists()


def open_table(source: str, split: str = "train") -> Table:
    """Open a table: a file with an extension in :data:`READERS`, or a split of a hub data set."""
    if is_hub_name(source):
        return dataset_table(_from_hub(source, split), source)
    read = partial(READERS[ending_of(source)], Path(source))
    with _readable(source):
        first = next(read(None), None)
        if first is None:
            raise ValueError("it has no rows")
    return Table(source, tuple(first), read)


def dataset_table(data: Dataset, source: str) -> Table:
    """Return a ``datasets.Dataset`` as a table; its transform and format apply."""
    names = data.format["columns"]
    if data.format["output_all_columns"]:
        names = data.column_names
    plain = data.with_format(None)
    if data.format["type"] == "custom":  # set_transform: what it returns, from all its columns
        plain = data
        names = list(data[:1])

    def read(columns: Columns) -> Iterator[Record]:
        chosen = plain
        if plain is not data:
            chosen = plain.select_columns(list(columns or names))
        for batch in chosen.iter(BATCH):
            yield from _records(batch)

    return Table(source, tuple(names), read)


def python_table(texts: object) -> Table:
    """Return a list of strings, pairs or triplets, or a ``datasets.Dataset``, as a table.

    A list may be any iterable, such as a tuple, an iterator or a pandas Series. Its columns are
    ``text``, or ``anchor``, ``positive``, ``negative``, ``negative_2`` and so on. Errors name the
    index and type of an item, but not its content.
    """
    listed = getattr(texts, "tolist", lambda: texts)()
    is_table = hasattr(listed, "column_names") or hasattr(listed, "columns")
    if isinstance(listed, Iterable) and not isinstance(listed, str | bytes) and not is_table:
        return _list_table(list(listed))
    from datasets import Dataset  # slow to import

    if not isinstance(texts, Dataset):
        expected = "a list or Series of strings, pairs or triplets, or a datasets.Dataset"
        raise ParameterError("texts", f"expected {expected}, got {type(texts).__name__}")
    return dataset_table(texts, f"data set of {len(texts):,} rows")


def _list_table(texts: Sequence[Any]) -> Table:
    if not texts:
        raise ParameterError("texts", "the list is empty")
    rows = [_row(index, item) for index, item in enumerate(texts)]
    width = len(rows[0])
    columns: tuple[str, ...] = ("text",)
    if width > 1:
        more = (f"negative_{number}" for number in range(2, width - 1))
        columns = ("anchor", "positive", "negative", *more)[:width]
    for index, row in enumerate(rows):
        if len(row) != width or not all(isinstance(cell, str) for cell in row):
            found = ", ".join(type(cell).__name__ for cell in row)
            reason = f"item {index}: expected {width} strings, got {found}"
            raise ParameterError("texts", reason)

    def read(_: Columns) -> Iterator[Record]:
        return (dict(zip(columns, row, strict=True)) for row in rows)

    return Table(f"list of {len(rows):,} {'texts' if width == 1 else 'rows'}", columns, read)


def _row(index: int, item: Any) -> tuple[Any, ...]:
    if isinstance(item, list | tuple) and len(item) > 1:
        return tuple(item)
    if isinstance(item, str):
        return (item,)
    reason = f"item {index}: expected a string or several, got {type(item).__name__}"
    raise ParameterError("texts", reason)


def _from_hub(name: str, split: str) -> Dataset:
    import datasets  # slow to import

    if not hub_reachable():
        raise DataError(f"no file {name!r}, and the hub cannot be reached")
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(name, split=split)
    except Exception as error:  # the library has many kinds
        reason = reason_of(error.__cause__ or error)
        raise DataError(f"cannot read {name!r}: {reason}") from error


@contextmanager
def _readable(source: str) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise DataError(f"cannot read {source!r}: {reason_of(error)}") from error


def _lines(path: Path) -> Iterator[str]:
    with io.TextIOWrapper(open_text(path), encoding="utf-8-sig", newline="") as text:
        try:
            yield from text
        except UnicodeDecodeError as error:
            raise DataError(not_utf8(path)) from error


def _delimited(path: Path, _: Columns) -> Iterator[Record]:
    """Yield the non-blank rows of a .csv or .tsv file; all cells are strings."""
    csv.field_size_limit(MAX_CELL)  # of the whole process
    dialect = DIALECTS[ending_of(path)]
    lines = _lines(path)
    header = next(lines, "")
    own = dialect["delimiter"]
    found = next((each for each in ";\t|," if each in header), own)
    if own not in header and found != own:
        raise ValueError(f"is the separator {found!r}? Expected {own!r}, which line 1 lacks")
    reader = csv.DictReader(chain([header], lines), **dialect)
    try:
        _check_names(reader.fieldnames or ())
        for row in reader:
            if None in row or None in row.values():  # more or fewer cells
                width = len(reader.fieldnames or ())
                raise ValueError(f"line {reader.line_num} does not have the header's {width} cells")
            yield row
    except csv.Error as error:
        reason = f"{error}; expected quotation marks in pairs"
        raise ValueError(f"after line {reader.line_num}: {reason}") from None


def _objects(path: Path, _: Columns) -> Iterator[Record]:
    """Yield the objects of a .jsonl file."""
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is not a JSON object")
        yield row


def _parquet(path: Path, columns: Columns) -> Iterator[Record]:
    with open_text(path) as file:
        table = pq.ParquetFile(file)
        _check_names(table.schema_arrow.names)
        for batch in table.iter_batches(BATCH, columns=columns and list(columns)):
            yield from _records(batch.to_pydict())


def _records(batch: Mapping[str, list[Any]]) -> Iterator[Record]:
    for row in zip(*batch.values(), strict=True):
        yield dict(zip(batch, row, strict=True))


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"duplicate column names: {', '.join(names)}")


READERS: dict[str, Callable[[Path, Columns], Iterator[Record]]] = {
    ".csv": _delimited,
    ".tsv": _delimited,
    ".jsonl": _objects,
    ".parquet": _parquet,
}
