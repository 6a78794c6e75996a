"""Reads text files with one sentence per line, in bounded memory, and counts what is left out or noteworthy."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

MAX_LINE_BYTES = 65_536
_OPENERS: dict[str, Callable[..., object]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
UNPACK_ERRORS = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)


@dataclass
class CorpusReport:
    """What the lines of a text file are. Each line is a sentence, or is left out for exactly one reason.

    Attributes:
        sha256: of the file as it lies on disk.
        lines: lines read.
        sentences: lines kept.
        empty: left out, only white space.
        over_long: left out, more than 65,536 bytes.
        invalid_utf8: left out, not UTF-8.
        nul: left out, with a NUL byte.
        bom: a UTF-8 byte order mark, removed from the start of the first line.
        crlf: kept without the carriage return at the end.
        duplicates: kept, equal to an earlier sentence.
        truncated: kept, but cut to the training length in tokens.
        first_line: the first line number (from 1) of each kind of finding.
    """

    sha256: str = ""
    lines: int = 0
    sentences: int = 0
    empty: int = 0
    over_long: int = 0
    invalid_utf8: int = 0
    nul: int = 0
    bom: int = 0
    crlf: int = 0
    duplicates: int = 0
    truncated: int = 0
    first_line: dict[str, int] = field(default_factory=dict)

    def note(self, kind: str) -> None:
        """Count a finding at the current line."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.first_line.setdefault(kind, self.lines)

    def summary(self) -> str:
        """One line for the user: the number of lines of each kind, what was done with them, and the first of them."""
        findings = [
            ("empty", "empty (left out)"),
            ("over_long", f"over {MAX_LINE_BYTES:,} bytes (left out)"),
            ("invalid_utf8", "not UTF-8 (left out)"),
            ("nul", "with a NUL byte (left out)"),
            ("bom", "byte order mark (removed)"),
            ("crlf", "with CRLF ends (kept)"),
            ("duplicates", "duplicates (kept)"),
            ("truncated", "cut at the training length (kept)"),
        ]
        counts = [(kind, text, getattr(self, kind)) for kind, text in findings]
        notes = [f"{count:,} {text} from line {self.first_line[kind]:,}" for kind, text, count in counts if count]
        return f"{self.sentences:,} sentences in {self.lines:,} lines" + (f"; {', '.join(notes)}" if notes else "")


def read_sentences(
    source: BinaryIO | Iterable[bytes],
    report: CorpusReport,
    max_sentences: int | None = None,
    places: array[int] | None = None,
) -> Iterator[str]:
    """Sentences of a binary stream or of lines, one per line; counts the lines of each kind in ``report``.

    Only a line feed ends a line. Of a stream, memory is bounded for lines of any length. Stops after ``max_sentences``.
    Each sentence's line number is appended to ``places``, an ``array("q")``.
    """
    places = array("q") if places is None else places
    hashes = array("q")  # 8 bytes per sentence, sorted at the end; a set of strings would be far larger
    for line in _bounded(cast(BinaryIO, source)) if hasattr(source, "readline") else source:
        report.lines += 1
        line = line.removesuffix(b"\n")
        if len(line) > MAX_LINE_BYTES:
            report.note("over_long")
            continue
        if report.lines == 1 and line.startswith(codecs.BOM_UTF8):
            line = line.removeprefix(codecs.BOM_UTF8)
            report.note("bom")
        if line.endswith(b"\r"):
            line = line.removesuffix(b"\r")
            report.note("crlf")
        if b"\0" in line:
            report.note("nul")
            continue
        try:
            sentence = line.decode("utf-8")
        except UnicodeDecodeError:
            report.note("invalid_utf8")
            continue
        if not sentence.strip():
            report.note("empty")
            continue
        report.sentences += 1
        hashes.append(hash(sentence))
        places.append(report.lines)
        yield sentence
        if report.sentences == max_sentences:
            break
    repeated = np.ones(len(hashes), dtype=bool)
    repeated[np.unique(np.frombuffer(hashes, dtype=np.int64), return_index=True)[1]] = False  # the first of each hash
    if repeated.any():
        report.duplicates = int(repeated.sum())
        report.first_line["duplicates"] = places[int(repeated.argmax())]


def _bounded(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream; of one that is too long only the beginning, which is too long too."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line
        rest = line
        while len(rest) >= MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(MAX_LINE_BYTES)


def open_text(path: Path) -> BinaryIO:
    """Open a text, unpacked if its name ends in .gz, .xz or .bz2; reading may raise ``UNPACK_ERRORS``."""
    return cast(BinaryIO, _OPENERS.get(path.suffix, open)(path, "rb"))
