"""Read texts of one sentence a line in bounded memory, and count the lines that are skipped."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

MAX_LINE_BYTES = 65_536
OPENERS: dict[str, Callable[..., object]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
}
UNSEEN = {"Cc", "Cf", "Zl", "Zp", "Zs"}  # Unicode categories of controls and spaces
# for a regular expression: scripts without spaces (Thai, Lao, Burmese, Khmer, Chinese, Japanese)
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
ICONV = "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW converts it (or -f UTF-16, if it is that)"
UNPACK_ERRORS = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)


@dataclass
class LineCounts:
    """Counts of lines. A line is a sentence, or is skipped for one reason."""

    lines: int = 0
    sentences: int = 0  # lines kept
    empty: int = 0  # skipped
    over_long: int = 0  # skipped, more than MAX_LINE_BYTES
    invalid_utf8: int = 0  # skipped
    first_invalid: int = 0  # number of the first such line
    nul: int = 0  # skipped, with a NUL byte


def read_sentences(
    lines: Iterable[bytes], counts: LineCounts, most: int | None = None
) -> Iterator[str]:
    """Yield at most ``most`` sentences, one per line, and add the lines to ``counts``.

    Only a line feed ends a line; a carriage return before it is dropped.
    """
    for line in lines:
        counts.lines += 1
        line = line.removesuffix(b"\n")
        if len(line) > MAX_LINE_BYTES:
            counts.over_long += 1
            continue
        if b"\0" in line:
            counts.nul += 1
            continue
        try:
            sentence = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            counts.invalid_utf8 += 1
            counts.first_invalid = counts.first_invalid or counts.lines
            continue
        if is_blank(sentence):
            counts.empty += 1
            continue
        counts.sentences += 1
        yield sentence
        if counts.sentences == most:
            break


def not_utf8(path: Path) -> str:
    """Return a message: the first line of a file that is not UTF-8, and how to convert the file."""
    with open_text(path) as file:
        valid = (line.decode(errors="ignore").encode() == line for line in file)
        number = 1 + next(index for index, is_valid in enumerate(valid) if not is_valid)
    return f"line {number} of {str(path)!r} is not UTF-8; {ICONV}"


def is_text(value: object) -> bool:
    """Return whether a value is a string that UTF-8 can encode, without unpaired surrogates."""
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()


def is_blank(text: str) -> bool:
    """Return whether a text contains nothing but spaces and control characters."""
    return all(unicodedata.category(character) in UNSEEN for character in text)


def bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a stream without its byte order mark.

    A longer line is cut to ``MAX_LINE_BYTES`` + 1 bytes, so that readers still find it too long.
    """
    if stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        stream.seek(0)
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line
        rest = line
        while len(rest) >= MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(MAX_LINE_BYTES)


def ending_of(source: str | Path) -> str:
    """Return a file's extension in lower case, without that of a compression."""
    path = Path(str(source).lower())
    return Path(path.stem).suffix if path.suffix in OPENERS else path.suffix


def open_text(path: Path) -> BinaryIO:
    """Open a file, decompressed according to its extension; reading may raise ``UNPACK_ERRORS``."""
    return cast(BinaryIO, OPENERS.get(path.suffix.lower(), open)(path, "rb"))
