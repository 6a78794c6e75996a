"""Read texts with one sentence a line, in bounded memory, and count what is left out."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import unicodedata
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

MAX_LINE_BYTES = 65_536
OPENERS: dict[str, Callable[..., object]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
}
UNSEEN = {"Cc", "Cf", "Zl", "Zp", "Zs"}  # categories of characters: controls and spaces
# of a character class: Thai, Lao, Burmese, Khmer, Chinese and Japanese stand without spaces
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
UNPACK_ERRORS = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)


@dataclass
class CorpusReport:
    """What the lines of a text are: each a sentence, or left out for exactly one reason.

    Of rows with several texts each text is a line. Duplicates, cut and short ones are counted as
    samples: lines, documents or rows.
    """

    sha256: str = ""  # of the lines
    unit: str = "sentence"  # a sample: that, a document between blank lines, or a row of a table
    columns: int = 1  # sentences of a sample
    lines: int = 0
    sentences: int = 0  # lines kept
    empty: int = 0  # left out, nothing to be seen
    over_long: int = 0  # left out, more than MAX_LINE_BYTES
    invalid_utf8: int = 0  # left out
    nul: int = 0  # left out, with a NUL byte
    duplicates: int = 0  # kept, equal to an earlier one
    truncated: int = 0  # kept, but cut to the training length in tokens
    short: int = 0  # kept, but too short to be cropped, and so used whole
    tokens: int = 0  # of the sentences, special tokens left out
    unknown: int = 0  # tokens that stand for what the tokenizer does not know
    equal: float = 0.0  # share of sentences with the tokens of an earlier one that is another text
    crops: int = 0  # where tokens, unknown and equal are those of some crops, how many

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
        summary = f"{self.sentences // self.columns:,} {self.unit}s"
        if self.unit == "sentence":
            summary += f" in {self.lines:,} lines"
        notes = [f"{count:,} {text}" for text, count in counts.items() if count]
        for text, share in shares.items():
            if round(share, 4):
                notes.append(f"{100 * share:.2f} % {text}{of}")
        if not notes:
            return summary
        return f"{summary}; {', '.join(notes)}"


def read_sentences(
    lines: Iterable[bytes], report: CorpusReport, most: int | None = None
) -> Iterator[str]:
    """At most ``most`` sentences, one a line; counts the lines of each kind in ``report``.

    Only a line feed ends a line; a carriage return before it is dropped.
    """
    hashes = array("q")  # 8 bytes per sentence; a set of strings would be far larger
    for line in lines:
        report.lines += 1
        line = line.removesuffix(b"\n")
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
            continue
        report.sentences += 1
        hashes.append(hash(sentence))
        yield sentence
        if report.sentences == most:
            break
    whole = len(hashes) // report.columns * report.columns
    samples = np.frombuffer(hashes, dtype=np.int64)[:whole].reshape(-1, report.columns)
    report.duplicates = len(samples) - len(np.unique(samples, axis=0))


def is_blank(text: str) -> bool:
    """Return whether a text has nothing but spaces, of any width, and control characters."""
    return all(unicodedata.category(character) in UNSEEN for character in text)


def joined_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the documents of a stream, which blank lines separate, as one line each.

    A document ends where a line would make it longer than 65,536 bytes; a longer line stays alone,
    and is too long as a document.
    """
    document = b""
    for line in bounded_lines(stream):
        if len(line.removesuffix(b"\n")) <= MAX_LINE_BYTES:  # else it is a beginning only
            line = line.strip()
        if is_blank(line.decode(errors="replace")):
            line = b""
        if document and (not line or len(document) + len(line) >= MAX_LINE_BYTES):
            yield document
            document = b""
        document = document + b" " + line if document else line
    if document:
        yield document


def bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream; of one that is too long only the beginning, which is too long too.

    A byte order mark is dropped.
    """
    if stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        stream.seek(0)
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line
        rest = line
        while len(rest) >= MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(MAX_LINE_BYTES)


def ending_of(source: str | Path) -> str:
    """Return the ending of a file's name in lower case, without that of a compressed file."""
    path = Path(str(source).lower())
    return Path(path.stem).suffix if path.suffix in OPENERS else path.suffix


def open_text(path: Path) -> BinaryIO:
    """Open a file, decompressed if its ending says so; reading may raise ``UNPACK_ERRORS``."""
    return cast(BinaryIO, OPENERS.get(path.suffix.lower(), open)(path, "rb"))
