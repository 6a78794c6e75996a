"""Reads text files with one sentence per line, in bounded memory, and counts what is left out or
noteworthy.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import shlex
import unicodedata
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

MAX_LINE_BYTES = 65_536
_UTF16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
PACKINGS: dict[str, tuple[bytes, Callable[..., object]]] = {  # by their endings: how a file begins, and its opener
    ".gz": (rb"\x1f\x8b\x08", gzip.open), ".xz": (rb"\xfd7zXZ\0", lzma.open),
    ".bz2": (rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", bz2.open),
}  # fmt: skip
_FILLERS = frozenset(  # letters, marks and a symbol that show nothing
    map(chr, [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, *range(0xFE00, 0xFE10),
              0xFFA0, *range(0xE0100, 0xE01F0)])
)  # fmt: skip
_MARKS = {  # between cells; a comma or colon, except after a first number, neither before a space nor within a number
    "\t": r"\t", "{": r'^\s*\{\s*"[^"]*"\s*:', "__label__": "^__label__",
    "\x01": "\x01", "\x1f": "\x1f", "\xa6": "\xa6",
    "|": r"\|(?!\s*$)", ";": r"(?<!^);(?!\s*$)", "^": r"(?<!^)\^(?!\s*$)", "~": r"(?<=\S)~(?=\S)|(?<=\s)~(?=\s)",
    ",": r"^\s*\d+ *,(?=\s)|,(?![^\w\s]*(?:\s|$))(?!(?<=\d,)\d)",
    ":": r"^\s*\d+ *:(?=\s)|(?<=\S):(?![^\w\s]*(?:\s|$)|//)(?!(?<=\d:)\d)",
}  # fmt: skip
UNPACK_ERRORS = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)


@dataclass
class CorpusReport:
    """What the lines of a text file are. Each line is a sentence, or is left out for exactly one
    reason.
    """

    sha256: str = ""  # of the file as it lies on disk
    lines: int = 0
    sentences: int = 0  # lines kept
    empty: int = 0  # left out, nothing to be seen
    over_long: int = 0  # left out, more than MAX_LINE_BYTES
    invalid_utf8: int = 0  # left out
    nul: int = 0  # left out, with a NUL byte
    duplicates: int = 0  # kept, equal to an earlier sentence
    truncated: int = 0  # kept, but cut to the training length in tokens
    short: int = 0  # kept, but too short to be cropped, and so used whole
    tokens: int = 0  # of the sentences, special tokens left out
    unknown: int = 0  # tokens that stand for what the tokenizer does not know
    equal: float = (
        0.0  # share of sentences whose tokens are those of an earlier sentence that is another text
    )
    crops: int = 0  # where tokens, unknown and equal are those of some crops, how many
    documents: bool = False  # a line is a document between blank lines

    def summary(self, dropped: bool = False) -> str:
        """One line for the user; of ``dropped`` duplicates another line says how many."""
        counts = {
            "empty (left out)": self.empty,
            f"over {MAX_LINE_BYTES:,} bytes (left out)": self.over_long,
            "not UTF-8 (left out)": self.invalid_utf8,
            "with a NUL byte (left out)": self.nul,
            "duplicates" if dropped else "duplicates (kept)": self.duplicates,
            "cut at the training length (kept)": self.truncated,
            "shorter than two crops (used whole)": self.short,
        }
        shares = {
            "unknown tokens": self.unknown / max(1, self.tokens),
            "of the texts equal to others for the tokenizer": self.equal,
        }
        of = f" (estimated from {self.crops:,} crops)" if self.crops else ""
        notes = [f"{count:,} {text}" for text, count in counts.items() if count]
        notes += [
            f"{100 * share:.2f} % {text}{of}" for text, share in shares.items() if round(share, 4)
        ]
        kept = "documents" if self.documents else f"sentences in {self.lines:,} lines"
        return f"{self.sentences:,} {kept}" + (f"; {', '.join(notes)}" if notes else "")


def read_sentences(
    lines: Iterable[bytes], report: CorpusReport, most: int | None = None
) -> Iterator[str]:
    """At most ``most`` sentences, one a line; counts the lines of each kind in ``report``.

    Only a line feed ends a line; a carriage return before it and a byte order mark are dropped.
    """
    hashes = array("q")  # 8 bytes per sentence; a set of strings would be far larger
    for line in lines:
        report.lines += 1
        line = line.removesuffix(b"\n")
        if report.lines == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) > MAX_LINE_BYTES:
            report.over_long += 1
            continue
        if b"\0" in line:
            report.nul += 1
            continue
        try:
            sentence = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            report.invalid_utf8 += 1
            continue
        if is_blank(sentence):
            report.empty += 1
        else:
            report.sentences += 1
            hashes.append(hash(sentence))
            yield sentence
            if report.sentences == most:
                break
    report.duplicates = len(hashes) - len(np.unique(np.frombuffer(hashes, dtype=np.int64)))


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen: all is space, of any width or none, or controls the
    characters around.
    """
    return all(
        each in _FILLERS or unicodedata.category(each) in {"Cc", "Cf", "Zl", "Zp", "Zs"}
        for each in text
    )


def cell_mark(stream: BinaryIO) -> str:
    """The mark between the cells of a table, ``{`` for JSON, "" for text: nine lines of ten have it
    equally often.
    """
    first = (
        line.decode(errors="replace").rstrip("\r\n") for line in islice(bounded_lines(stream), 100)
    )
    lines = [line for line in first if not is_blank(line)]
    if re.match(
        r'\s*(\[\s*\{|\{\s*\n)\s*"[^"]*"\s*:', "\n".join(lines)
    ):  # rows of several lines, or in a list
        return "{"
    if not any("\t" in line.strip() for line in lines):
        lines = [line.strip() for line in lines]  # tabs at the ends alone are no cells
    for mark, pattern in _MARKS.items():
        counts = [len(re.findall(pattern, line)) for line in lines]
        usual = max(counts, key=counts.count, default=0)
        if usual and counts.count(usual) >= 0.9 * len(lines) and (mark in "\t{" or len(lines) > 4):
            return mark
    return ""


def joined_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The documents of a stream, each a line: what stands between blank lines. A long one is
    several.

    Ends where a line would make it longer than 65,536 bytes; a longer line stays alone, and is too
    long as a document.
    """
    document = b""
    for line in bounded_lines(stream):
        if (
            len(line.removesuffix(b"\n")) <= MAX_LINE_BYTES
        ):  # of another one this is only the beginning
            line = line.strip()
        if is_blank(line.decode(errors="replace")):
            line = b""
        if document and (not line or len(document) + len(line) >= MAX_LINE_BYTES):
            yield document
            document = b""
        document += b" " * bool(document) + line
    if document:
        yield document


def bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream; of one that is too long only the beginning, which is too long too."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line
        rest = line
        while len(rest) >= MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(MAX_LINE_BYTES)


def not_utf8(path: Path) -> str:
    """For a message: the encoding that a file probably has instead of UTF-8, and the command to
    convert it.
    """
    with open_text(path) as file:
        head = file.read(1 << 20)
    if (
        is_packed(path)
        or path.suffix == ".parquet"
        or (b"\0" in head and not head.startswith(_UTF16))
    ):
        return "is not in UTF-8; save it so"
    old, new = (shlex.quote(str(each)) for each in (path, path.with_name(f"utf8-{path.name}")))
    beyond = re.sub("[\0-\x7f]", "", head.decode(errors="replace"))
    if 2 * beyond.count("\ufffd") < len(beyond):
        return f"has damaged bytes among its UTF-8: iconv -c -f UTF-8 -t UTF-8 {old} > {new} leaves them out"
    if 3 * len(re.findall(rb"[\x80-\xff]", head)) > len(head) and not head.startswith(
        _UTF16
    ):  # no Western language
        return "is not in UTF-8; save it so"
    windows = re.search(rb"[\x80-\x9f]", head)  # nothing that shows in Latin-1
    encoding = "UTF-16" if head.startswith(_UTF16) else "CP1252" if windows else "LATIN1"
    sure = "" if encoding == "UTF-16" else " (if it is of Western Europe)"
    return f"is not in UTF-8 but probably in {encoding}{sure}: iconv -f {encoding} -t UTF-8 {old} > {new}"


def open_text(path: Path) -> BinaryIO:
    """Open a text, unpacked if its first bytes say that it is packed; reading may raise
    ``UNPACK_ERRORS``.
    """
    return cast(BinaryIO, _opener(path)(path, "rb"))


def is_packed(path: Path) -> bool:
    """Whether a file's first bytes say that it is packed, whatever its name."""
    return _opener(path) is not open


def _opener(path: Path) -> Callable[..., object]:
    with path.open("rb") as file:
        head = file.read(10)
    return next((opener for first, opener in PACKINGS.values() if re.match(first, head)), open)
