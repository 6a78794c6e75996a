"""Tables: csv, tsv, jsonl and parquet files, and data sets on the hub, as rows of ``datasets``."""

from __future__ import annotations

import csv
import io
import json
import mmap
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from dystress_text.errors import DataError, reason_of
from dystress_text.files.hub import hub_reachable
from dystress_text.files.places import cache_root
from dystress_text.files.text_lines import PACKINGS, open_text

if TYPE_CHECKING:
    from datasets import Dataset

SEPARATORS = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*SEPARATORS, ".jsonl", ".json", ".parquet")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')  # a cell in quotation marks, those inside doubled
_SPACE = re.compile(r"\s*")
_MOST_ROWS = 10_000  # that are in memory at a time
_MOST_IN_A_CELL = 1 << 26  # characters: an unpaired quotation mark makes one cell of all that follows


def is_table(source: str) -> bool:
    """Whether a source is a table, by its ending, or the name of a data set on the hub."""
    return _ending(source) in ENDINGS or is_hub_name(source)


def _ending(source: str) -> str:
    """The ending in lower case, without that of a packed file."""
    path = Path(source.lower())
    return Path(path.stem).suffix if path.suffix in PACKINGS else path.suffix


def is_hub_name(name: str) -> bool:
    """Whether a name has the form ``owner/name``, has no ending, and is not a file on this machine."""
    words = name.split("/")
    named = len(words) == 2 and all(words) and not name.startswith((".", "~")) and not Path(name).suffix
    return named and not Path(name).exists()


def load_table(source: str, split: str = "train", tsv_quoting: bool | None = None) -> Dataset:
    """The rows of a table; the cells of a .csv or .tsv file are all texts.

    Args:
        source: a file with one of the :data:`ENDINGS`, packed or not, or a hub data set's name.
        split: of a data set on the hub.
        tsv_quoting: whether quotation marks in a .tsv file stand around cells, as pandas writes it, or belong to the
            texts, as in GLUE's files; None is the latter, but refuses a cell that can hardly be anything but quoted.
    """
    import datasets  # slow to import

    datasets.disable_progress_bars()
    on_hub = is_hub_name(source)
    if on_hub and not hub_reachable():
        raise DataError(f"no file {source!r}, and no hub to look for a data set of that name")
    try:
        if on_hub:
            return datasets.load_dataset(source, split=split)
        # datasets itself takes the name of a file as a pattern, and keeps copies by name and time
        table = _mapped(_parts(Path(source), tsv_quoting))
        return datasets.Dataset(table, fingerprint=datasets.fingerprint.generate_random_fingerprint())
    except Exception as error:  # the libraries that read tables have many kinds
        found = error.__cause__ or error
        reason = "it is not in UTF-8; save it so" if isinstance(found, UnicodeDecodeError) else reason_of(found)
        raise DataError(f"cannot read {source!r}: {reason}") from error


def _parts(path: Path, tsv_quoting: bool | None) -> Iterator[pa.Table]:
    ending = _ending(path.name)
    with open_text(path) as file:
        if ending == ".parquet":
            stored = pq.ParquetFile(file)
            yield stored.schema_arrow.empty_table()
            yield from (pa.Table.from_batches([batch]) for batch in stored.iter_batches(_MOST_ROWS))
        elif ending in SEPARATORS:
            yield from _separated(io.TextIOWrapper(file, "utf-8-sig", newline=""), ending, tsv_quoting)
        else:
            yield from _of_objects(io.TextIOWrapper(file, "utf-8-sig", newline="\n"))


def _mapped(parts: Iterator[pa.Table]) -> pa.Table:
    """Tables one under another, in a file without a name that is mapped, so that memory is bounded.

    A column that a part does not have is empty there; one of several types becomes bytes, which nobody takes for texts.
    """
    folder = cache_root() / "datasets"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        for part in parts:
            with pa.ipc.new_stream(file, part.schema) as stream:
                stream.write_table(part)
        if not file.tell():
            raise ValueError("it has no row")
        file.flush()
        whole = pa.BufferReader(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    tables: list[pa.Table] = []
    while whole.tell() < whole.size():
        tables.append(pa.ipc.open_stream(whole).read_all())
    types = {(field.name, field.type) for table in tables for field in table.schema if field.type != pa.null()}
    mixed = {name for name, count in Counter(name for name, _ in types).items() if count > 1}
    for i, table in enumerate(tables):
        for name in mixed.intersection(table.column_names):
            place, cells = table.column_names.index(name), tables[i][name].cast(pa.string()).cast(pa.binary())
            tables[i] = tables[i].set_column(place, name, cells)
    return pa.concat_tables(tables, promote_options="default")


def _of_objects(text: TextIO) -> Iterator[pa.Table]:
    rows = (row for value in _values(text) for row in (value if isinstance(value, list) else [value]))
    while some := list(islice(rows, _MOST_ROWS)):
        if (other := next((row for row in some if not isinstance(row, dict)), some)) is not some:
            raise ValueError(f"a row must be an object, with a name for each cell; {other!r:.40} is none")
        names = dict.fromkeys(name for row in some for name in row)
        yield pa.table({name: _column([row.get(name) for row in some]) for name in names})


def _column(cells: list[Any]) -> pa.Array:
    """Texts or numbers; where a cell is neither, or both occur, bytes."""
    kinds = {type(cell) for cell in cells} - {type(None)}
    if kinds <= {str}:
        return pa.array(cells, pa.string() if kinds else pa.null())
    if kinds <= {float, bool}:
        return pa.array([None if cell is None else float(cell) for cell in cells], pa.float64())
    texts = (cell if cell is None or isinstance(cell, str) else json.dumps(cell) for cell in cells)
    return pa.array(texts, pa.string()).cast(pa.binary())


def _values(text: TextIO) -> Iterator[Any]:
    """The values of JSON, one after another; the first that is not whole in its line takes in all that follows."""
    decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=float, strict=False)
    for number, line in enumerate(text, 1):
        place = _SPACE.match(line).end()
        while place < len(line):
            try:
                value, place = decoder.raw_decode(line, place)
            except json.JSONDecodeError as error:
                if not (more := text.read()):
                    raise ValueError(f"line {number - 1 + error.lineno} is no JSON: {error.msg}") from None
                line += more
            else:
                yield value
                place = _SPACE.match(line, place).end()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"a row names a column twice: {', '.join(name for name, _ in pairs)}")
    return found


def _separated(text: TextIO, ending: str, tsv_quoting: bool | None) -> Iterator[pa.Table]:
    # the libraries' readers guess a type for each column, and fill up or join rows that do not fit without a word
    rows = _rows(text, ending, tsv_quoting)
    names = next(rows, [])
    if len(set(names)) < max(1, len(names)):
        raise ValueError(f"its header names a column twice: {', '.join(names)}" if names else "it is empty")
    if len(names) == 1 and re.search(r"[\t,;|^~]|\w: ?\w", names[0]):
        raise ValueError(f"its header is one cell, {names[0]!r:.60}: a .csv has commas between cells, a .tsv tabs")
    schema = pa.schema([(name, pa.string()) for name in names])
    yield schema.empty_table()
    while some := list(islice(rows, _MOST_ROWS)):
        yield pa.table([pa.array(cells, pa.string()) for cells in zip(*some, strict=True)], schema=schema)


def _rows(text: TextIO, ending: str, tsv_quoting: bool | None) -> Iterator[list[str]]:
    """The header and the rows; blank lines are left out, and a row with more or fewer cells is a ValueError."""
    tabs = ending == ".tsv"
    quoted = tsv_quoting is True or not tabs
    other = "no takes quotation marks as text" if quoted else "yes reads cells in quotation marks"
    hint = f"; tsv_quoting {other}" if tabs else ""
    reader = csv.reader(
        text, delimiter=SEPARATORS[ending], quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True
    )
    width, line = 0, 1
    limit = csv.field_size_limit(_MOST_IN_A_CELL)  # of the whole process
    try:
        for row in reader:
            width = width or len(row)
            if row and len(row) != width:
                raise ValueError(f"line {line} does not have the header's {width} cells but {len(row)}{hint}")
            if tabs and tsv_quoting is None and any('""' in cell[1:-1] and _QUOTED.fullmatch(cell) for cell in row):
                raise ValueError(
                    f"line {line} has a cell in quotation marks with doubled ones inside: tsv_quoting yes takes off "
                    "what pandas adds, no takes it as text"
                )
            if row:
                yield row
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {line}: {error} (an unpaired quotation mark?){hint}") from None
    finally:
        csv.field_size_limit(limit)
