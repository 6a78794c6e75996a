"""Corpus files as blocks of whole lines: folders walked, compressed files opened, kinds told apart by their content."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, cast

from dystress_text.errors import UserError
from dystress_text.preparation.corpus_cleaner import Block, Kind

BLOCK_BYTES = 2**21
MAX_LINE_BYTES = 2**23  # what is longer is cut behind a sentence or a word
HEAD_BYTES = 2**16  # a file's kind is told by these
MAX_WRAP_BYTES = 140  # the longest lines of a hard-wrapped text

_OPENERS: tuple[tuple[re.Pattern[bytes], Callable[..., object]], ...] = (
    (re.compile(rb"\x1f\x8b"), gzip.open),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), bz2.open),
    (re.compile(rb"\xfd7zXZ\x00"), lzma.open),
)
_DOCUMENT = re.compile(rb"<doc [^>\n]*>")
_JSON = re.compile(rb'\{[^\n]*"text"\s*:')
_UNITS: dict[Kind, tuple[bytes, ...]] = {  # blocks end behind the last of these
    "wiki": (b"\n</doc>",),
    "json": (b"\n",),
    "lines": (b"\n",),
    "wrapped": (b"\n\n", b"\n\r\n"),
}


def list_files(paths: Sequence[Path]) -> list[Path]:
    """The files named and those in the folders named, in sorted order; names that begin with a dot are left out.

    Raises:
        UserError: a path does not exist, or a folder cannot be read or holds no file.
    """
    found: list[Path] = []
    for path in paths:
        with readable(path):
            if not path.is_dir():
                path.stat()
                found.append(path)
                continue
            inside = sorted(_walk(path))
        if not inside:
            raise UserError(f"no file in the folder {str(path)!r}")
        found += inside
    return found


def read_blocks(paths: Sequence[Path]) -> Iterator[Block]:
    """The files' content in blocks of about ``BLOCK_BYTES`` that end where a document or a paragraph does.

    Raises:
        UserError: a file cannot be read or unpacked.
    """
    position = 0
    for path in paths:
        with readable(path), path.open("rb") as raw, unpacked(raw) as stream:
            buffer = stream.read(BLOCK_BYTES).removeprefix(codecs.BOM_UTF8)
            kind = kind_of(buffer[:HEAD_BYTES])
            line = 1
            while more := stream.read(BLOCK_BYTES):
                if end := end_of_block(buffer, kind):
                    yield Block(path, line, kind, buffer[:end], position + _position(raw))
                    line += buffer.count(b"\n", 0, end)
                buffer = buffer[end:] + more
            position += _position(raw)
        if buffer:
            yield Block(path, line, kind, buffer, position)


def kind_of(head: bytes) -> Kind:
    """The kind of a file that begins so."""
    start = head.lstrip()
    if _DOCUMENT.match(start):
        return "wiki"
    if _JSON.match(start):
        return "json"
    return "wrapped" if is_wrapped(head) else "lines"


def is_wrapped(head: bytes) -> bool:
    """Whether the lines of a text are cut at some width: the next line's first word would mostly not have fitted."""
    lines = [line.strip() for line in head.split(b"\n")]
    inner = [(line, following.split(None, 1)[0]) for line, following in pairwise(lines) if line and following]
    if not inner:
        return False
    width = sorted(len(line) for line, _ in inner)[len(inner) * 9 // 10]
    full = sum(len(line) + 1 + len(word) > width for line, word in inner)
    unfinished = sum(not line.endswith((b".", b"!", b"?", b'"')) for line, _ in inner)
    return width <= MAX_WRAP_BYTES and full >= 0.6 * len(inner) and unfinished >= 0.5 * len(inner)


def end_of_block(buffer: bytes, kind: Kind) -> int:
    """Where a block is cut off the buffer; 0 if more must be read first."""
    if end := _behind_last(buffer, _UNITS[kind]):
        return end
    if len(buffer) < MAX_LINE_BYTES:
        return 0
    for separator in (b"\n", b". ", b" "):
        if end := _behind_last(buffer, (separator,)):
            return end
    tail = range(len(buffer) - 1, len(buffer) - 4, -1)
    return next((place for place in tail if buffer[place] & 0xC0 != 0x80), len(buffer))  # not within a character


def _behind_last(buffer: bytes, separators: tuple[bytes, ...]) -> int:
    places = [(buffer.rfind(separator), len(separator)) for separator in separators]
    return max(place + length if place >= 0 else 0 for place, length in places)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Errors of opening, reading and unpacking an input, as one line for the user."""
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {str(path)!r}: {reason}") from error


def unpacked(raw: BufferedReader) -> BinaryIO:
    """The stream itself or, where it begins as a compressed file does, what it unpacks to."""
    start = raw.peek(10)
    for magic, opener in _OPENERS:
        if magic.match(start):
            return cast(BinaryIO, opener(raw))
    return cast(BinaryIO, raw)


def _position(raw: BufferedReader) -> int:
    return raw.tell() if raw.seekable() else 0  # a pipe has none


def _walk(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise error

    for where, _, names in os.walk(folder, onerror=fail):
        yield from (Path(where, name) for name in names if not name.startswith("."))
