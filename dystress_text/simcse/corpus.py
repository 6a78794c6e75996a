"""Training sentences: read one a line, tokenised once, cached and memory-mapped.

Nothing is changed silently. What is left out or noteworthy is counted in a :class:`CorpusReport` that the training
program prints. The cache is keyed by the content of the file, the tokenizer and the length, so a second run starts at
once and holds no text in memory.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import json
import lzma
import shutil
import tempfile
import warnings
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import UserError
from dystress_text.files.places import cache_error, cache_root
from dystress_text.files.whole import sha256_of

FORMAT = 3  # of the cache; a change of the files' layout or of what is read from a text raises it
TOKENS, OFFSETS = "tokens.bin", "offsets.npy"
MAX_LINE_BYTES = 65_536
CHUNK = 20_000  # sentences tokenised at a time

_DAMAGE = (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
_WIDTHS = {"uint16": np.uint16, "uint32": np.uint32}  # of the token ids in a cache
_OPENERS: dict[str, Callable[..., object]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
UNPACK_ERRORS = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)


@dataclass
class CorpusReport:
    """What reading a text file found. Each line is a sentence or left out for exactly one reason.

    Attributes:
        sha256: of the file as it lies on disk.
        lines: lines read.
        sentences: lines kept.
        empty: left out, nothing but white space.
        over_long: left out, more than 65,536 bytes.
        invalid_utf8: left out, not UTF-8.
        nul: left out, holding a NUL byte.
        bom: a UTF-8 byte order mark, removed from the start of the first line.
        crlf: kept without the carriage return at the end.
        duplicates: kept, though the same sentence came before.
        truncated: kept, but more tokens than the training length.
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
        """One line for the user: what was found, what became of it, and where it was found first."""
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
        parts = [f"{count:,} {text} from line {self.first_line[kind]:,}" for kind, text, count in counts if count]
        return f"{self.sentences:,} sentences in {self.lines:,} lines" + (f"; {', '.join(parts)}" if parts else "")


def read_sentences(
    stream: BinaryIO, report: CorpusReport, max_sentences: int | None = None, places: array[int] | None = None
) -> Iterator[str]:
    """Sentences of a binary stream, one a line, with the findings counted in ``report``.

    Lines end at a line feed alone. Memory is bounded however long a line is. Stops after ``max_sentences``. Each
    sentence's line number is appended to ``places``, an ``array("q")``.
    """
    places = array("q") if places is None else places
    hashes = array("q")  # sorting 8 bytes a sentence at the end is far smaller than a set of strings
    while report.sentences != max_sentences and (raw := stream.readline(MAX_LINE_BYTES + 1)):
        report.lines += 1
        if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            report.note("over_long")
            continue
        line = raw.removesuffix(b"\n")
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
    repeated = np.ones(len(hashes), dtype=bool)
    repeated[np.unique(np.frombuffer(hashes, dtype=np.int64), return_index=True)[1]] = False  # all but the first ones
    if repeated.any():
        report.duplicates = int(repeated.sum())
        report.first_line["duplicates"] = places[int(repeated.argmax())]


class TokenSink(Protocol):
    """What token ids are written to."""

    def write(self, data: bytes, /) -> int: ...


class TokenizedCorpus:
    """Sentences as token ids, special tokens included, in two memory-mapped arrays.

    Args:
        tokens: (total,) ids of all sentences, one after another.
        offsets: (sentences + 1,) where each sentence starts.
        pad_token_id: fills up the shorter rows of a batch.
        report: what reading the text found.
    """

    def __init__(
        self, tokens: NDArray[np.unsignedinteger], offsets: NDArray[np.int64], pad_token_id: int, report: CorpusReport
    ) -> None:
        self.tokens = tokens
        self.offsets = offsets
        self.pad_token_id = pad_token_id
        self.report = report

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def batch(self, indices: NDArray[np.int64]) -> dict[str, Tensor]:
        """The sentences at ``indices`` (n,), padded to the longest.

        Returns:
            ``input_ids`` and ``attention_mask``, (n, length), and ``places`` (tokens,), where the mask has its ones
            among all n * length positions; all int64.
        """
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts  # (n,)
        mask = np.arange(lengths.max()) < lengths[:, None]  # (n, length)
        ids = np.full(mask.shape, self.pad_token_id, dtype=np.int64)
        places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        ids[mask] = self.tokens[places]
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
            "places": torch.from_numpy(np.flatnonzero(mask)),
        }

    def digests(self, indices: NDArray[np.int64]) -> Tensor:
        """Numbers that are the same for the same tokens, and for no others but by an accident of 2^-64; (n,) int64."""
        rows = (self.tokens[self.offsets[i] : self.offsets[i + 1]].tobytes() for i in indices)
        digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in rows)
        return torch.frombuffer(bytearray(digests), dtype=torch.int64)


def load_corpus(
    path: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    max_samples: int | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = True,
) -> TokenizedCorpus:
    """Tokenise a text file (plain, .gz, .xz or .bz2), or find it tokenised in the cache.

    Args:
        path: the file, UTF-8, one sentence a line.
        tokenizer: a tokenizer with a ``tokenizers`` backend.
        max_seq_length: tokens a sentence, special tokens included.
        max_samples: keep the first so many sentences.
        cache_dir: where caches lie; None is :func:`cache_root`.
        progress: show a progress bar while tokenising.

    Raises:
        UserError: the file or the cache cannot be read or written, there is no sentence, or no such tokenizer backend.
    """
    path = Path(path)
    with _readable(path):
        if not path.is_file():
            raise UserError(f"--train_file: no file {str(path)!r}")
        digest = sha256_of(path)
    if not tokenizer.is_fast:
        raise UserError(f"--model_name_or_path: {type(tokenizer).__name__} has no fast (tokenizers) form")
    backend = training_tokenizer(tokenizer, max_seq_length)
    key = hashlib.sha256(f"{FORMAT} {digest} {max_samples} {backend.to_str()}".encode()).hexdigest()[:32]
    folder = Path(cache_dir or cache_root()) / "corpus" / key
    report = CorpusReport(sha256=digest)
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    try:
        if folder.is_dir():
            try:
                return _open_cached(folder, tokenizer)
            except _DAMAGE as error:
                warnings.warn(f"the corpus cache {str(folder)!r} is damaged ({error}) and made anew", stacklevel=2)
                shutil.rmtree(folder)
        with _staged(folder) as staging:
            _tokenize_file(path, backend, np.dtype(dtype), staging, report, max_samples, progress)
        return _open_cached(folder, tokenizer)
    except OSError as error:
        raise cache_error(folder.parent, error) from error


def training_tokenizer(tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> Tokenizer:
    """A copy of the tokenizer's backend that truncates and does not pad."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.enable_truncation(max_seq_length)
    backend.no_padding()
    return backend


def tokenizer_id(tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> str:
    """Names what the tokenizer makes of training sentences."""
    return hashlib.sha256(training_tokenizer(tokenizer, max_seq_length).to_str().encode()).hexdigest()[:16]


def _tokenize_file(
    path: Path,
    backend: Tokenizer,
    dtype: np.dtype[np.unsignedinteger],
    folder: Path,
    report: CorpusReport,
    max_samples: int | None,
    progress: bool,
) -> None:
    with (folder / TOKENS).open("wb") as sink:
        places = array("q")
        sentences = _sentences_of(path, report, max_samples, places)
        bar = progress_bar(sentences, progress, desc="tokenising", unit=" sentences", total=max_samples)
        offsets = tokenize(bar, backend, dtype, sink, report, places)
    if report.sentences == 0:
        raise UserError(f"--train_file: no usable sentence in {str(path)!r} ({report.summary()})")
    np.save(folder / OFFSETS, offsets)
    checksums = {name: sha256_of(folder / name) for name in (TOKENS, OFFSETS)}
    stored = {"dtype": dtype.name, "checksums": checksums, "report": asdict(report)}
    (folder / "report.json").write_text(json.dumps(stored, indent=1))


def _sentences_of(path: Path, report: CorpusReport, max_samples: int | None, places: array[int]) -> Iterator[str]:
    with _readable(path), open_text(path) as stream:
        yield from read_sentences(stream, report, max_samples, places)


def open_text(path: Path) -> BinaryIO:
    """A text for reading, unpacked where its name ends in .gz, .xz or .bz2; reading it may raise ``UNPACK_ERRORS``."""
    return cast(BinaryIO, _OPENERS.get(path.suffix, open)(path, "rb"))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of opening, reading and unpacking the training file, as one line for the user."""
    try:
        yield
    except (OSError, *UNPACK_ERRORS) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--train_file: cannot read {str(path)!r}: {reason}") from error


def tokenize(
    sentences: Iterable[str],
    backend: Tokenizer,
    dtype: np.dtype[np.unsignedinteger],
    sink: TokenSink,
    report: CorpusReport,
    places: array[int],
) -> NDArray[np.int64]:
    """Write the ids of all sentences to ``sink`` and return where each starts, (sentences + 1,).

    ``places`` holds the line number of every sentence that has been read.
    """
    max_length = backend.truncation["max_length"] if backend.truncation else None
    lengths: list[NDArray[np.int64]] = []
    remaining, done = iter(sentences), 0
    while chunk := list(islice(remaining, CHUNK)):
        encodings = backend.encode_batch_fast(chunk)
        ids = [encoding.ids for encoding in encodings]
        lengths.append(np.fromiter(map(len, ids), dtype=np.int64, count=len(ids)))
        sink.write(np.concatenate([np.asarray(row, dtype=dtype) for row in ids]).tobytes())
        cut = [i for i, row in enumerate(ids) if len(row) == max_length and len(encodings[i].overflowing) > 0]
        if cut:
            report.first_line.setdefault("truncated", places[done + cut[0]])
        report.truncated += len(cut)
        done += len(chunk)
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths))]) if lengths else np.zeros(1, dtype=np.int64)


def _open_cached(folder: Path, tokenizer: PreTrainedTokenizerBase) -> TokenizedCorpus:
    """The corpus in a folder of the cache.

    Raises:
        the errors of :data:`_DAMAGE`: a file is missing, or not what was written.
    """
    stored = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    for name, sha256 in stored["checksums"].items():
        if sha256_of(folder / name) != sha256:
            raise ValueError(f"{name} is not what was written")
    tokens = np.memmap(folder / TOKENS, dtype=_WIDTHS[stored["dtype"]], mode="r")
    offsets = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)
    report = CorpusReport(**stored["report"])
    report.summary()  # which is what the numbers must serve for
    whole = offsets.dtype == np.int64 and offsets.shape == (report.sentences + 1,) and (np.diff(offsets) > 0).all()
    if not whole or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise ValueError("the files do not fit each other")
    pad = tokenizer.pad_token_id
    return TokenizedCorpus(tokens, offsets, 0 if pad is None else int(pad), report)


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """A temporary folder beside ``folder`` that takes its name on success and disappears on failure."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder.parent))
    try:
        yield staging
        try:
            staging.rename(folder)
        except OSError:  # another process was faster: its files are the same
            if not (folder / "report.json").is_file():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
