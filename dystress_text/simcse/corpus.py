"""Training sentences: tokenised once, cached and memory-mapped.

Nothing is changed silently: a :class:`CorpusReport`, which the training program prints, counts what is left out or
noteworthy. The key of the cache is the content of the file, the tokenizer and the length. A second run starts at once
and has no text in memory.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import BytesIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import UserError
from dystress_text.files.places import cache_error, cache_root
from dystress_text.files.text_lines import UNPACK_ERRORS, CorpusReport, open_text, read_sentences
from dystress_text.files.whole import locked, sha256_of, whole_folder

FORMAT = 3  # version of the cache; raise it with the layout of the files or the reading of a text
TOKENS, OFFSETS = "tokens.bin", "offsets.npy"
CHUNK = 20_000  # sentences tokenised at a time

_DAMAGE = (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
_WIDTHS = {"uint16": np.uint16, "uint32": np.uint32}  # of the token ids in a cache


class TokenSink(Protocol):
    """A binary file, as far as token ids need it."""

    def write(self, data: bytes, /) -> int: ...


class TrainingText(Protocol):
    """A source of training sentences.

    Attributes:
        name: for messages.
        columns: sentences per sample; 1 if each sentence is a sample.
    """

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> int: ...

    def checksum(self) -> str:
        """The SHA-256 of the text."""

    def sentences(self, report: CorpusReport, most: int | None, places: array[int]) -> Iterator[str]:
        """At most ``most`` sentences, sample after sample; see :func:`read_sentences`."""


@dataclass(frozen=True)
class TextFile:
    """A text file, plain or compressed, with one sentence per line.

    Attributes:
        path: of the file.
    """

    path: Path
    columns: int = field(default=1, init=False)

    @property
    def name(self) -> str:
        return str(self.path)

    def checksum(self) -> str:
        with self._readable():
            if not self.path.is_file():
                raise UserError(f"--train_file: no file {self.name!r}")
            return sha256_of(self.path)

    def sentences(self, report: CorpusReport, most: int | None, places: array[int]) -> Iterator[str]:
        with self._readable(), open_text(self.path) as stream:
            yield from read_sentences(stream, report, most, places)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn errors of opening, reading and unpacking the file into a :class:`UserError`."""
        try:
            yield
        except (OSError, *UNPACK_ERRORS) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"--train_file: cannot read {self.name!r}: {reason}") from error


class TokenizedCorpus:
    """Samples of one or several sentences as token ids, special tokens included, in two memory-mapped arrays.

    Args:
        tokens: (total,) ids of all sentences, one after another.
        offsets: (samples * columns + 1,) the start of each sentence.
        report: of reading the text.
        columns: sentences per sample.
        chosen: the numbers of the samples that count, which are numbered anew from 0; None for all.
    """

    def __init__(
        self,
        tokens: NDArray[np.unsignedinteger],
        offsets: NDArray[np.int64],
        report: CorpusReport,
        columns: int = 1,
        chosen: NDArray[np.int64] | None = None,
    ) -> None:
        self.tokens = tokens
        self.offsets = offsets
        self.report = report
        self.columns = columns
        self.chosen = chosen

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // self.columns if self.chosen is None else len(self.chosen)

    def batch(self, samples: NDArray[np.int64]) -> dict[str, Tensor]:
        """The sentences of samples (n,): the first column of all samples, then the second, and so on.

        Returns:
            ``token_ids`` (tokens,), sentence after sentence, and ``attention_mask`` (n * columns, longest), 1 where a
            sentence has a token; int64.
        """
        sentences = self._sentences(samples)
        starts = self.offsets[sentences]
        lengths = self.offsets[sentences + 1] - starts  # (n * columns,)
        mask = np.arange(lengths.max()) < lengths[:, None]  # (n * columns, longest)
        places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        return {
            "token_ids": torch.from_numpy(self.tokens[places].astype(np.int64)),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        }

    def distinct(self) -> TokenizedCorpus:
        """The first of all samples with the same tokens."""
        bounds, first = self.offsets[:: self.columns].tolist(), dict[bytes, int]()
        for sample, (start, end) in enumerate(pairwise(bounds)):
            lengths = self.offsets[sample * self.columns : (sample + 1) * self.columns] - start
            row = lengths.tobytes() + self.tokens[start:end].tobytes()
            first.setdefault(hashlib.blake2b(row, digest_size=16).digest(), sample)
        chosen = np.fromiter(first.values(), np.int64)
        return TokenizedCorpus(self.tokens, self.offsets, self.report, self.columns, chosen)

    def _sentences(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        samples = samples if self.chosen is None else self.chosen[samples]
        return (samples * self.columns + np.arange(self.columns)[:, None]).ravel()


def load_corpus(
    text: TrainingText,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    max_samples: int | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = True,
) -> TokenizedCorpus:
    """Tokenise a training text, or load its tokens from the cache.

    Args:
        text: the source of the sentences.
        tokenizer: a tokenizer with a ``tokenizers`` backend.
        max_seq_length: most tokens of a sentence, special tokens included.
        max_samples: use only the first ``max_samples`` samples; None for all.
        cache_dir: the folder of caches; None is :func:`cache_root`.
        progress: show a progress bar while tokenising.

    Raises:
        UserError: the text or the cache cannot be read or written, the text has no sentence, or the tokenizer has no
            such backend.
    """
    digest = text.checksum()
    backend = training_tokenizer(tokenizer, max_seq_length)
    most = None if max_samples is None else max_samples * text.columns
    named = f"{FORMAT} {digest} {most} {backend.to_str()}"
    key = hashlib.sha256(named.encode()).hexdigest()[:32]
    folder = Path(cache_dir or cache_root()) / "corpus" / key
    report = CorpusReport(sha256=digest)
    dtype = _dtype_of(tokenizer)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock")):  # another run may be tokenising the same text
            if folder.is_dir():
                try:
                    return _open_cached(folder, text.columns)
                except _DAMAGE as error:
                    warnings.warn(f"the corpus cache {str(folder)!r} is damaged ({error}) and made again", stacklevel=2)
            with whole_folder(folder) as staging:
                _tokenize_text(text, backend, np.dtype(dtype), staging, report, most, progress)
            return _open_cached(folder, text.columns)
    except OSError as error:
        raise cache_error(folder.parent, error) from error


def corpus_in_memory(
    sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> TokenizedCorpus:
    """The tokens of a few sentences, without a cache.

    Raises:
        UserError: the tokenizer has no ``tokenizers`` backend.
    """
    backend, report, tokens = training_tokenizer(tokenizer, max_seq_length), CorpusReport(), BytesIO()
    dtype = np.dtype(_dtype_of(tokenizer))
    offsets = tokenize(sentences, backend, dtype, tokens, report, array("q", range(1, len(sentences) + 1)))
    return TokenizedCorpus(np.frombuffer(tokens.getvalue(), dtype), offsets, report)


def _dtype_of(tokenizer: PreTrainedTokenizerBase) -> type[np.unsignedinteger]:
    return np.uint16 if len(tokenizer) <= 2**16 else np.uint32


def training_tokenizer(tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> Tokenizer:
    """A copy of the tokenizer's backend that truncates but does not pad.

    Raises:
        UserError: the tokenizer has no such backend.
    """
    if not tokenizer.is_fast:
        raise UserError(f"--model_name_or_path: {type(tokenizer).__name__} has no fast (tokenizers) form")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.enable_truncation(max_seq_length)
    backend.no_padding()
    return backend


def tokenizer_id(tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> str:
    """A hash of all that decides how the tokenizer tokenises training sentences."""
    return hashlib.sha256(training_tokenizer(tokenizer, max_seq_length).to_str().encode()).hexdigest()[:16]


def _tokenize_text(
    text: TrainingText,
    backend: Tokenizer,
    dtype: np.dtype[np.unsignedinteger],
    folder: Path,
    report: CorpusReport,
    most: int | None,
    progress: bool,
) -> None:
    with (folder / TOKENS).open("wb") as sink:
        places = array("q")
        sentences = text.sentences(report, most, places)
        bar = progress_bar(sentences, progress, desc="tokenising", unit=" sentences", total=most)
        offsets = tokenize(bar, backend, dtype, sink, report, places)
    if report.sentences == 0:
        raise UserError(f"--train_file: no usable sentence in {text.name!r} ({report.summary()})")
    np.save(folder / OFFSETS, offsets)
    checksums = {name: sha256_of(folder / name) for name in (TOKENS, OFFSETS)}
    stored = {"dtype": dtype.name, "checksums": checksums, "report": asdict(report)}
    (folder / "report.json").write_text(json.dumps(stored, indent=1))


def tokenize(
    sentences: Iterable[str],
    backend: Tokenizer,
    dtype: np.dtype[np.unsignedinteger],
    sink: TokenSink,
    report: CorpusReport,
    places: array[int],
) -> NDArray[np.int64]:
    """Write the token ids of all sentences to ``sink`` and return the start of each sentence, (sentences + 1,).

    ``places`` holds the line number of every sentence read so far.
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


def _open_cached(folder: Path, columns: int) -> TokenizedCorpus:
    """The corpus in a folder of the cache.

    Raises:
        the errors of :data:`_DAMAGE`: a file is missing or damaged.
    """
    stored = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    for name, sha256 in stored["checksums"].items():
        if sha256_of(folder / name) != sha256:
            raise ValueError(f"{name} is not what was written")
    tokens = np.memmap(folder / TOKENS, dtype=_WIDTHS[stored["dtype"]], mode="r")
    offsets = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)
    report = CorpusReport(**stored["report"])
    report.summary()  # fails if the numbers are not numbers
    whole = offsets.dtype == np.int64 and offsets.shape == (report.sentences + 1,) and (np.diff(offsets) > 0).all()
    if not whole or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise ValueError("the files do not fit each other")
    if report.sentences % columns:
        raise ValueError("the last sample is incomplete")
    return TokenizedCorpus(tokens, offsets, report, columns)
