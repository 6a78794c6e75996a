"""Tables: csv, tsv, jsonl and parquet files, and data sets on the hub, as rows of ``datasets``."""

from __future__ import annotations

import csv
import glob
import io
import re
import shlex
import shutil
import tempfile
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from dystress_text.errors import DataError, reason_of
from dystress_text.files.hub import hub_reachable
from dystress_text.files.places import cache_root
from dystress_text.files.text_lines import PACKINGS, is_packed, not_utf8, open_text

if TYPE_CHECKING:
    from datasets import Dataset

SEPARATORS = {".csv": ",", ".tsv": "\t"}
LOADERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}  # of datasets
ENDINGS = (*SEPARATORS, *LOADERS)
_MOST_IN_A_CELL = (
    1 << 26
)  # characters: an unpaired quotation mark makes one cell of all that follows
_FIRST_ROW = re.compile(rb"(\xef\xbb\xbf)?\s*(\[\s*)?\{")


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
    named = (
        len(words) == 2 and all(words) and not name.startswith((".", "~")) and not Path(name).suffix
    )
    return named and not Path(name).exists()


def load_table(source: str, split: str = "train") -> Dataset:
    """The rows of a table: a file with one of the :data:`ENDINGS`, packed or not, or ``split`` of a
    hub's data set.

    The cells of a .csv or .tsv file are all texts.
    """
    import datasets  # slow to import

    datasets.disable_progress_bars()
    on_hub, ending = is_hub_name(source), _ending(source)
    if on_hub and not hub_reachable():
        raise DataError(f"no file {source!r}, and no hub to look for a data set of that name")
    try:
        if on_hub:
            return datasets.load_dataset(source, split=split)
        if ending in SEPARATORS:
            return datasets.Dataset(_separated(Path(source), ending))
        if LOADERS[ending] == "json":
            with open_text(Path(source)) as file:
                if not _FIRST_ROW.match(file.read(2**20)):  # pyarrow crashes where null comes first
                    raise ValueError(
                        "it must be in UTF-8 and begin with a row, as an object or in a list of objects"
                    )
        with read_once(Path(source)) as (file, cache):
            rows = datasets.load_dataset(
                LOADERS[ending], data_files=file, split="train", cache_dir=cache
            )
            rows.data.table.validate(full=True)  # pyarrow reads texts of any bytes
            return rows
    except Exception as error:  # the libraries that read tables have many kinds
        found = error.__cause__ or error
        encoded = not (isinstance(found, UnicodeDecodeError) or "Invalid UTF8" in str(found))
        reason = reason_of(found) if encoded or on_hub else f"it {not_utf8(Path(source))}"
        raise DataError(f"cannot read {source!r}: {reason}") from error


@contextmanager
def read_once(path: Path) -> Iterator[tuple[str, str]]:
    """A new name for a file, and a place for a copy: datasets takes names as patterns, and knows
    its copies by them.
    """
    (root := cache_root() / "datasets").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as folder, open_text(path) as file:
        name = Path(folder) / "table"
        if isinstance(file, io.BufferedReader):
            name.symlink_to(path.absolute())
        else:
            with name.open("wb") as unpacked:
                shutil.copyfileobj(file, unpacked, 1 << 20)
        yield glob.escape(str(name)), folder


def _separated(path: Path, ending: str) -> pa.Table:
    # the libraries' readers guess a type for each column, and fill up or join rows that do not fit
    # without a word
    rows = (
        cells
        for cells, _ in _rows(path, SEPARATORS[ending], ending == ".csv" or _cells_in_marks(path))
    )
    names = next(rows, [])
    if len(set(names)) < max(1, len(names)):
        raise ValueError(
            f"its header names a column twice: {', '.join(names)}" if names else "it is empty"
        )
    if len(names) == 1 and re.search(r"[\t,;|^~]|\w: ?\w", names[0]):
        way = (
            f"; for commas: {with_commas(path)}" if ";" in names[0] and not is_packed(path) else ""
        )
        raise ValueError(
            f"its header is one cell, {names[0]!r:.60}: a .csv has commas between cells, a .tsv tabs{way}"
        )
    schema = pa.schema([(name, pa.string()) for name in names])
    batches = []
    while some := list(islice(rows, 10_000)):
        columns = [pa.array(cells, pa.string()) for cells in zip(*some, strict=True)]
        batches.append(pa.record_batch(columns, schema=schema))
    return pa.Table.from_batches(batches, schema)


def with_commas(path: Path) -> str:
    """The command that makes a .csv of a table with semicolons between its cells."""
    code = "import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, delimiter=';'))"
    new = path.with_name(f"commas-{path.stem}.csv")
    return f'python -c "{code}" < {shlex.quote(str(path))} > {shlex.quote(str(new))}'


def _cells_in_marks(path: Path) -> bool:
    """Whether quotation marks of a .tsv stand around cells, as pandas writes them, or are text, as
    in GLUE's files.

    They stand around cells if each row is what csv's writer makes of its cells, with marks where
    they are needed, or if all cells of the header have them, or if the rows have one width in this
    way alone. Where it matters, a warning says which it was.
    """
    as_needed, everywhere, differ = True, False, False
    try:
        for number, (cells, line) in enumerate(_rows(path, "\t", True)):
            if '"' in line:
                differ |= line != "\t".join(cells)
                as_needed &= line == _written(cells, csv.QUOTE_MINIMAL)
                everywhere |= number == 0 and line == _written(cells, csv.QUOTE_ALL)
    except ValueError:
        return False
    if not differ:
        return False
    quoted = as_needed or everywhere
    if not quoted:
        try:
            deque(_rows(path, "\t", False), maxlen=0)
        except ValueError:
            quoted = True
    taken = "taken off, as pandas writes them" if quoted else "taken as text, as in GLUE's files"
    warnings.warn(
        f"{str(path)!r}: quotation marks around cells are {taken}; if they are not meant so, save it as .jsonl",
        stacklevel=2,
    )
    return quoted


def _written(cells: list[str], quoting: Literal[0, 1]) -> str:
    csv.writer(line := io.StringIO(), delimiter="\t", quoting=quoting).writerow(cells)
    return line.getvalue().removesuffix("\r\n")


def _rows(path: Path, separator: str, quoted: bool) -> Iterator[tuple[list[str], str]]:
    """The header and the rows, each with its text; blank lines are left out, a row of another width
    is a ValueError.
    """
    lines: list[str] = []  # of the row that is being read
    width, number, hint = 0, 1, "" if quoted else " (quotation marks are read as text)"

    def read(text: Iterable[str]) -> Iterator[str]:
        for line in text:
            lines.append(line)
            yield line

    limit = csv.field_size_limit(_MOST_IN_A_CELL)  # of the whole process
    with open_text(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(
            read(text),
            delimiter=separator,
            quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
            strict=True,
        )
        try:
            for row in reader:
                width = width or len(row)
                if row and len(row) != width:
                    raise ValueError(
                        f"line {number} does not have the header's {width} cells but {len(row)}{hint}"
                    )
                if row:
                    yield row, "".join(lines).rstrip("\r\n")
                lines.clear()
                number = reader.line_num + 1
        except csv.Error as error:
            raise ValueError(f"line {number}: {error} (an unpaired quotation mark?)") from None
        finally:
            csv.field_size_limit(limit)
