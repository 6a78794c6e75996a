"""A training corpus from text of any of the usual forms: clean sentences, one a line, each once.

:func:`build_corpus` reads WikiExtractor's output (``<doc ...>`` or ``--json``) and plain text, compressed or not,
cleans and splits it in several processes, and writes the sentences in the order of the input, the same bytes whatever
the number of processes. Nothing is left out silently: every reason is counted in a :class:`BuildReport`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import UserError
from dystress_text.files.whole import whole_file
from dystress_text.preparation.corpus_cleaner import MAX_CHARACTERS, Block, clean_block
from dystress_text.preparation.corpus_reader import list_files, read_blocks
from dystress_text.preparation.ordered_map import ordered_map

REASONS = {
    "too_short": "sentences with too few words",
    "too_long": f"sentences with too many words or over {MAX_CHARACTERS:,} characters",
    "no_letters": "sentences without a letter",
    "few_letters": "sentences that are mostly not letters",
    "undecodable": "sentences with characters lost to a wrong encoding",
    "duplicate": "sentences that came before",
    "heading": "headings and titles",
    "category": "category lines",
    "list_item": "list items that are not sentences",
    "markup": "paragraphs with templates, tables or links",
    "html": "paragraphs with HTML tags",
    "not_json": "lines that are not JSON documents with a text",
}
INVALID_UTF8 = "invalid_utf8"


@dataclass(frozen=True)
class CorpusBuildSettings:
    """Which sentences are written, and how many processes work.

    Attributes:
        min_words: words between white space that a sentence has at least.
        max_words: and at most.
        workers: processes that clean text; with 1, this process does the work.
        overwrite: replace an output that exists.

    Raises:
        UserError: a number below 1, or a minimum above the maximum.
    """

    min_words: int = 6
    max_words: int = 80
    workers: int = os.cpu_count() or 1
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_words <= self.max_words:
            raise UserError(
                f"--min_words {self.min_words} --max_words {self.max_words}: must be 1 <= minimum <= maximum"
            )
        if self.workers < 1:
            raise UserError(f"--workers {self.workers}: must be 1 or more")


@dataclass
class BuildReport:
    """What became of the input.

    Attributes:
        files: read.
        bytes_read: of text, unpacked.
        sentences: written.
        invalid_utf8: lines with bytes that are not UTF-8; U+FFFD replaces them.
        dropped: how many items were left out for each reason, in the order of ``REASONS``.
        first: ``file:line`` of the first of each reason; of a paragraph over several lines, its first line.
    """

    files: int = 0
    bytes_read: int = 0
    sentences: int = 0
    invalid_utf8: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    first: dict[str, str] = field(default_factory=dict)

    def note(self, reason: str, count: int, block: Block, line: int) -> None:
        """Count findings of one reason in a block whose first one is at ``line``, from 0."""
        if reason == INVALID_UTF8:
            self.invalid_utf8 += count
        else:
            self.dropped[reason] += count
        self.first.setdefault(reason, f"{block.path}:{block.line + line}")

    def summary(self) -> list[str]:
        """Lines for the user: what was written and what was left out, and where first."""
        lines = [f"{self.sentences:,} sentences from {self.files:,} files with {self.bytes_read / 1e6:,.1f} MB of text"]
        for reason, count in self.dropped.items():
            if count:
                lines.append(f"left out: {count:,} {REASONS[reason]}, the first at {self.first[reason]}")
        if self.invalid_utf8:
            lines.append(f"not UTF-8: {self.invalid_utf8:,} lines, the first at {self.first[INVALID_UTF8]}")
        return lines

    def to_json(self) -> dict[str, object]:
        """The report as JSON's types."""
        return asdict(self)


def build_corpus(files: Sequence[Path], output: Path, settings: CorpusBuildSettings, progress: bool) -> BuildReport:
    """Write the clean sentences of files and folders to ``output``, UTF-8, one a line, each once.

    The output appears under its name when it is complete; after an error or an interruption there is none. Memory is
    some 20 bytes a sentence and some 20 MB a worker, however large the files.

    Args:
        files: WikiExtractor's output, plain text, their .gz, .bz2 or .xz forms, or folders of these.
        output: the corpus.
        settings: which sentences are written, and the number of processes.
        progress: show a progress bar.

    Raises:
        UserError: an input cannot be read or is empty, no sentence is left, or the output exists or cannot be written.
    """
    inputs = list_files(files)
    _check_output(output, inputs, settings.overwrite)
    try:
        with whole_file(output, "wb") as sink:
            report = _build(inputs, sink, settings, progress)
            if not report.bytes_read:
                raise UserError(f"no text in {str(files[0])!r}" + (" and the other inputs" if len(files) > 1 else ""))
            if not report.sentences:
                raise UserError(f"no sentence is left: {'; '.join(report.summary()[1:]) or 'nothing but white space'}")
    except BrokenProcessPool as error:
        raise UserError("a worker was ended from outside, perhaps as memory ran out: try --workers 1") from error
    except OSError as error:
        raise UserError(f"--output: cannot write {str(output)!r}: {error.strerror}") from error
    return report


def _build(inputs: Sequence[Path], sink: IO[bytes], settings: CorpusBuildSettings, progress: bool) -> BuildReport:
    report = BuildReport(files=len(inputs))
    seen = SeenHashes()
    total = sum(path.stat().st_size for path in inputs)
    clean = partial(clean_block, min_words=settings.min_words, max_words=settings.max_words)
    results = ordered_map(clean, read_blocks(inputs), settings.workers)
    with closing(results), progress_bar(None, progress, total=total, unit="B", unit_scale=True) as bar:
        for block, cleaned in results:
            repeated = seen.add(np.asarray(cleaned.hashes))
            sink.write(_without(cleaned.text, repeated))
            report.bytes_read += len(block.data)
            report.sentences += len(cleaned.hashes) - len(repeated)
            for reason, count in cleaned.counts.items():
                report.note(reason, count, block, cleaned.first[reason])
            if repeated:
                report.note("duplicate", len(repeated), block, cleaned.lines[repeated[0]])
            bar.update(block.position - bar.n)
    return report


class SeenHashes:
    """A set of 64-bit hashes: sorted arrays of growing size, 8 bytes a member and up to 20 while two are merged."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.uint64]] = []  # each at least twice as long as the next

    def add(self, hashes: NDArray[np.uint64]) -> list[int]:
        """Add the hashes in turn; return the positions of those that had been there before."""
        values, first = np.unique(hashes, return_index=True)
        new = np.ones(len(values), dtype=bool)
        for members in self._arrays:
            places = np.searchsorted(members, values)
            new &= members.take(places, mode="clip") != values
        merged = values[new]
        while self._arrays and len(self._arrays[-1]) < 2 * len(merged):
            merged = np.sort(np.concatenate([self._arrays.pop(), merged]), kind="stable")
        if len(merged):
            self._arrays.append(merged)
        return np.delete(np.arange(len(hashes)), first[new]).tolist()


def _without(text: bytes, lines: list[int]) -> bytes:
    """A text without some of its lines."""
    if not lines:
        return text
    left_out = set(lines)
    return b"".join(line for number, line in enumerate(text.splitlines(True)) if number not in left_out)


def _check_output(output: Path, inputs: Sequence[Path], overwrite: bool) -> None:
    if output.is_dir():
        raise UserError(f"--output {str(output)!r} is a folder")
    if output.exists() and not overwrite:
        raise UserError(f"--output {str(output)!r} exists already; name another or remove it")
    if output.resolve() in {path.resolve() for path in inputs}:
        raise UserError(f"--output {str(output)!r} is one of the inputs")
