"""Training samples: tokenised once and memory-mapped, or kept as text for crops.

The cache key is the content of the text, the tokenizer and the length; for crops, which are
tokenised per batch, the text alone. A :class:`CorpusReport` counts what is skipped or noteworthy.

``datasets.map`` is not used: its batches take three times as long, it trains on a damaged cache,
and report and duplicates would need files of their own (docs/performance.md).
"""

from __future__ import annotations

import hashlib
import json
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.cli.progress import progress_bar
from dystress_text.data.crops import Crops, too_short
from dystress_text.data.texts import TrainingText
from dystress_text.errors import ParameterError
from dystress_text.evaluation.random_pairs import MOST_SENTENCES
from dystress_text.io.atomic import atomic_folder, sha256_of
from dystress_text.io.lock import LOCK, locked
from dystress_text.io.paths import cache_error, cache_root
from dystress_text.io.text_lines import CorpusReport
from dystress_text.models.static import unknown_token
from dystress_text.training.batches import Batch

FORMAT = 14  # version of the cache; raise it when the files or the reading of a text change
TOKENS = "tokens.bin"  # memory-mapped
REST = "rest.npz"  # the other arrays; the format has checksums
CHUNK = 256  # sentences tokenised at a time
# shares of unknown tokens, or of different sentences with equal tokens
WARNED = 0.05
REFUSED = 0.5


@dataclass(eq=False)
class Corpus:
    """Training samples in a memory-mapped file, one after another.

    Attributes:
        content: token ids or UTF-8 bytes of all sentences, (total,).
        offsets: start of each sentence, (samples * columns + 1,).
        first: indices of the samples that equal no earlier one, (distinct samples,).
        some: distinct first sentences of random samples; the same for all seeds.
        report: counts of what was read.
        identity: checksums of the text and of the tokenizer.
        columns: number of sentences in a sample.
        chosen: indices of the samples to use; None for all.
    """

    content: NDArray[np.integer]
    offsets: NDArray[np.int64]
    first: NDArray[np.int64]
    some: list[str]
    report: CorpusReport
    identity: str
    columns: int = 1
    chosen: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        if self.chosen is not None:
            return len(self.chosen)
        return (len(self.offsets) - 1) // self.columns

    @property
    def rows(self) -> int:
        """Rows of a batch per sample; one row is encoded twice, under two dropout masks."""
        return 2

    def numbers(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of samples (n,) in the whole text, (n,)."""
        if self.chosen is None:
            return samples
        return self.chosen[samples]

    def distinct(self) -> Self:
        """Return the corpus without samples that have the tokens of an earlier one."""
        return replace(self, chosen=self.first)

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        """Return the rows of samples (n,): first rows of all samples, then second rows and so on.

        Returns:
            ``token_ids`` (tokens,), the rows concatenated; ``lengths`` (n * rows,); ``longest``,
            the greatest length.
        """
        raise NotImplementedError


@dataclass(eq=False)
class TokenizedCorpus(Corpus):
    """Samples as token ids, special tokens included."""

    @property
    def rows(self) -> int:
        return self.columns

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        columns = np.arange(self.columns)[:, None]
        sentences = (self.numbers(samples) * self.columns + columns).ravel()
        starts = self.offsets[sentences]
        return self._spans(starts, self.offsets[sentences + 1] - starts)

    def _spans(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Batch:
        """Return a batch of spans of tokens with ``starts`` (n,) and ``lengths`` (n,)."""
        shifts = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)  # (tokens,)
        indices = shifts + np.arange(lengths.sum())
        return {
            "token_ids": torch.from_numpy(self.content[indices].astype(np.int64)),
            "lengths": torch.from_numpy(lengths),
            "longest": int(lengths.max()),
        }

    def document_frequencies(self, vocabulary: int) -> Tensor:
        """Return the document frequency of each token, (vocabulary,)."""
        counts = np.zeros(vocabulary, np.int64)
        for start in range(0, len(self.offsets) - 1, 10_000):
            ends = self.offsets[start : start + 10_001]
            sentence = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
            tokens = self.content[ends[0] : ends[-1]]
            pairs = np.unique(sentence * vocabulary + tokens)  # (sentence, token) as one number
            counts += np.bincount(pairs % vocabulary, minlength=vocabulary)
        return torch.from_numpy(counts)


@dataclass(eq=False, kw_only=True)
class TokenCroppedCorpus(TokenizedCorpus):
    """Token ids cropped for each batch; for static models, which see no context."""

    crops: Crops

    @property
    def rows(self) -> int:
        return 2

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        numbers = self.numbers(samples)
        starts = self.offsets[numbers]
        lengths = self.offsets[numbers + 1] - starts
        firsts, counts = self.crops.spans(lengths, step, numbers)  # (2, n) each
        return self._spans((starts + firsts).ravel(), counts.ravel())


@dataclass(eq=False, kw_only=True)
class TextCroppedCorpus(Corpus):
    """Text whose crops are tokenised for each batch.

    Attributes:
        crops: draws the crops.
        backend: the tokenizer, truncating at the training length.
        padding: id of the token for a crop without tokens.
    """

    crops: Crops
    backend: Tokenizer
    padding: int

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        views = [self.crops.views(self.text(i), step, i) for i in self.numbers(samples).tolist()]
        crops = [first for first, _ in views] + [second for _, second in views]
        encodings = self.backend.encode_batch_fast(crops)
        ids = [torch.tensor(encoding.ids or [self.padding]) for encoding in encodings]
        lengths = [len(of_crop) for of_crop in ids]
        return {
            "token_ids": torch.cat(ids),
            "lengths": torch.tensor(lengths),
            "longest": max(lengths),
        }

    def text(self, sample: int) -> str:
        """Return a sample's text."""
        start, end = self.offsets[sample : sample + 2]
        return self.content[start:end].tobytes().decode()


def load_corpus(
    text: TrainingText,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    max_samples: int | None = None,
    cache_dir: str | Path | None = None,
    crops: Crops | None = None,
) -> Corpus:
    """Read and tokenise a training text, or load it from the cache.

    Args:
        text: the source.
        tokenizer: the model's tokenizer.
        max_seq_length: greatest length in tokens, special tokens included.
        max_samples: number of samples to read; None for all.
        cache_dir: cache folder; default :func:`cache_root`.
        crops: settings of the crops; None for whole samples.

    Raises:
        ParameterError: the text cannot be used, or the tokenizer cannot read it.
    """
    if not tokenizer.is_fast:
        reason = f"{type(tokenizer).__name__} has no fast (tokenizers) form"
        raise ParameterError("model_name_or_path", reason)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.enable_truncation(max_seq_length)
    backend.no_padding()
    checksum = text.checksum()
    identity = f"{checksum}, tokenizer {_hash(backend.to_str())}"
    tokenise = partial(_encoded, tokenizer, backend)
    encode: Encode = tokenise
    content = f"{identity} {tokenizer.pad_token_id}"
    if crops is not None:
        encode = _utf8
        content = checksum
    most = None if max_samples is None else max_samples * text.columns
    key = f"{FORMAT} {most} {text.columns} {text.unit} {content}"
    folder = Path(cache_dir or cache_root()) / "corpus" / _hash(key)
    try:
        # another run may be reading the same text now
        with locked(folder.with_name(f".{folder.name}{LOCK}"), wait=True):
            corpus = _open_cached(folder, identity, text.columns)
            if corpus is None:
                report = text.report(checksum)
                with atomic_folder(folder) as staging:
                    _write(text, most, encode, staging, report)
                corpus = _open(folder, identity, text.columns)
    except OSError as error:
        raise cache_error(folder.parent, error) from error
    if crops is None:
        _check(corpus.report, text.name)
        return TokenizedCorpus(**vars(corpus))
    padding = tokenizer.pad_token_id or 0
    cropped = TextCroppedCorpus(**vars(corpus), crops=crops, backend=backend, padding=padding)
    cropped.report = _report_of_crops(cropped, tokenise)
    _check(cropped.report, text.name)
    return cropped


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


Row = tuple[str, NDArray[np.integer]]  # a sentence, and its tokens or bytes
Encode = Callable[[Iterable[str], CorpusReport], Iterator[Row]]


def _encoded(
    tokenizer: PreTrainedTokenizerBase,
    backend: Tokenizer,
    sentences: Iterable[str],
    report: CorpusReport,
) -> Iterator[Row]:
    """Yield sentences with their token ids, and count truncated ones and unknown tokens."""
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    special = backend.num_special_tokens_to_add(False)
    # not the tokenizer's: GPT-2's names its end token, but has no unknown bytes
    token = unknown_token(backend)
    unknown: Any = None if token is None else backend.token_to_id(token)
    remaining = iter(sentences)
    number = 0
    cut = -1  # the last truncated sample
    while chunk := list(islice(remaining, CHUNK)):
        try:
            encodings = backend.encode_batch_fast(chunk)
        except Exception as error:  # tokenizers raises no subclass
            # such as a model without an unknown token
            reason = f"its tokenizer cannot read the text: {error}"
            raise ParameterError("model_name_or_path", reason) from error
        for sentence, encoding in zip(chunk, encodings, strict=True):
            ids = encoding.ids
            sample = number // report.columns
            number += 1
            if encoding.overflowing and sample != cut:
                report.truncated += 1
                cut = sample
            report.tokens += len(ids) - special
            report.unknown += ids.count(unknown)
            yield sentence, np.array(ids or [tokenizer.pad_token_id or 0], dtype)


def _utf8(sentences: Iterable[str], report: CorpusReport) -> Iterator[Row]:
    for sentence in sentences:
        report.short += too_short(sentence)
        yield sentence, np.frombuffer(sentence.encode(), np.uint8)


def _write(
    text: TrainingText, most: int | None, encode: Encode, folder: Path, report: CorpusReport
) -> None:
    """Write the files of the cache and fill in the report."""
    offsets = array("q", [0])
    hashes = array("q")
    dtype = ""
    bar = progress_bar(text.sentences(report, most), desc="reading", unit=" samples", total=most)
    with (folder / TOKENS).open("wb") as sink:
        for sentence, kept in encode(bar, report):
            sink.write(kept.data)
            offsets.append(offsets[-1] + len(kept))
            hashes.extend(_hashes(sentence, kept))
            dtype = kept.dtype.name
    unusable = report.over_long + report.invalid_utf8 + report.nul
    if report.sentences == 0 or unusable > report.sentences:
        expected = "expected UTF-8 with a sentence on each line or in each cell"
        raise ParameterError(text.parameter, f"{text.name!r} gives {report.summary()}; {expected}")
    if report.invalid_utf8:
        warnings.warn(
            f"{text.name!r}: {report.invalid_utf8:,} lines that are not UTF-8 are left out",
            stacklevel=2,
        )
    by_sample = np.frombuffer(hashes, np.int64).reshape(-1, text.columns, 2)
    report.equal = _equal_share(by_sample)
    _, first = np.unique(by_sample[:, :, 1], axis=0, return_index=True)
    metadata = {
        "dtype": dtype,
        "sha256": sha256_of(folder / TOKENS),
        "report": asdict(report),
        "some": _some_sentences(text, report.sentences),
    }
    np.savez(
        folder / REST,
        offsets=offsets,
        first=np.sort(first),
        metadata=np.frombuffer(json.dumps(metadata).encode(), np.uint8),
    )


def _hashes(sentence: str, kept: NDArray[np.integer]) -> tuple[int, int]:
    """Return hashes of a sentence, ignoring white space, and of its tokens or bytes."""
    return hash(" ".join(sentence.split())), hash(kept.tobytes())


def _equal_share(hashes: NDArray[np.int64]) -> float:
    """Return the share of sentences with the tokens of an earlier, different sentence.

    ``hashes`` are (samples, columns, 2); the result is the maximum over columns.
    """
    shares = []
    for sentences, kept in hashes.transpose(1, 2, 0):  # (samples,) each
        _, first, inverse = np.unique(kept, return_index=True, return_inverse=True)
        shares.append(np.mean(sentences != sentences[first[inverse]]))
    return float(max(shares))


def _some_sentences(text: TrainingText, sentences: int) -> list[str]:
    samples = np.random.default_rng(0).permutation(sentences // text.columns)
    wanted = set((samples[:MOST_SENTENCES] * text.columns).tolist())
    read = text.sentences(text.report(), max(wanted) + 1)
    return list(dict.fromkeys(sentence for i, sentence in enumerate(read) if i in wanted))


def _open_cached(folder: Path, identity: str, columns: int) -> Corpus | None:
    """Return a cached corpus; None if there is none, or a damaged one."""
    if not folder.is_dir():
        return None
    try:
        return _open(folder, identity, columns)
    except Exception as error:  # zip, NumPy and JSON raise many types
        warnings.warn(
            f"the corpus cache {str(folder)!r} is damaged ({error}) and made again", stacklevel=3
        )
        return None


def _open(folder: Path, identity: str, columns: int) -> Corpus:
    with np.load(folder / REST, allow_pickle=False) as rest:
        offsets = rest["offsets"]
        first = rest["first"]
        metadata = json.loads(rest["metadata"].tobytes())
    if sha256_of(folder / TOKENS) != metadata["sha256"]:
        raise ValueError("the tokens are not what was written")
    tokens = np.memmap(folder / TOKENS, metadata["dtype"], "r")
    report = CorpusReport(**metadata["report"])
    return Corpus(tokens, offsets, first, metadata["some"], report, identity, columns)


def _report_of_crops(corpus: TextCroppedCorpus, encode: Encode) -> CorpusReport:
    """Return the report with the tokenizer's losses estimated on crops of some sentences."""
    crops = replace(corpus.crops, seed=0)
    views: list[str] = []
    for i, text in enumerate(corpus.some):
        views += dict.fromkeys(crops.views(text, 0, i))
    lost = CorpusReport()
    hashes = np.array([_hashes(*row) for row in encode(views, lost)])  # (views, 2)
    equal = _equal_share(hashes[:, None])
    return replace(
        corpus.report, tokens=lost.tokens, unknown=lost.unknown, equal=equal, crops=len(views)
    )


def _check(report: CorpusReport, name: str) -> None:
    """Refuse a text without crops or one that the tokenizer cannot read; warn if it loses much."""
    lost = max(report.unknown / max(1, report.tokens), report.equal)
    problem = (
        f"its tokenizer loses much of {name!r} ({report.summary()}): name an encoder whose "
        "vocabulary has the script and the case of the text (static with --vocabulary text has), "
        "or raise max_seq_length if sentences begin alike"
    )
    if lost >= REFUSED:
        raise ParameterError("model_name_or_path", problem)
    if report.short == report.sentences:
        raise ParameterError("views", f"{name!r} has nothing to crop: {report.summary()}")
    if lost >= WARNED:
        warnings.warn(f"model_name_or_path: {problem}", stacklevel=3)
