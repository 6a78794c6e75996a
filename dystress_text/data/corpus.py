"""Training samples: tokenised once and memory-mapped, or kept as text of which each batch takes two
crops.

The tokens stay in the cache, by the content of the text, the tokenizer and the length; for crops,
which are tokenised later, the text itself. A :class:`CorpusReport` counts what is left out or
noteworthy.

``datasets.map`` is not used: its batches take three times as long, it trains on a damaged cache,
and report and equal samples would need files beside it (docs/performance.md).
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

FORMAT = 13  # version of the cache; raise it with the layout of the files or the reading of a text
TOKENS = "tokens.bin"  # memory-mapped
REST = "rest.npz"  # all else; the format has checksums of its own
CHUNK = 256  # sentences that are tokenised at a time
# shares of unknown tokens, or of sentences that the tokenizer makes equal
WARNED = 0.05
REFUSED = 0.5


@dataclass(eq=False)
class Corpus:
    """Training samples in a memory-mapped file, one after another.

    Attributes:
        content: (total,) of all sentences: token ids, or bytes of UTF-8.
        offsets: (samples * columns + 1,) where each sentence begins.
        first: (distinct samples,) numbers of the samples that equal no earlier one.
        some: distinct sentences from the whole text, each a sample's first; the same for all seeds.
        report: what was read, and what is noteworthy.
        identity: checksums of the text and of the tokenizer.
        columns: sentences of a sample.
        chosen: numbers of the samples that count, renumbered from 0; None for all.
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
        """Rows of a batch for each sample; of one row the encoder makes two dropout views."""
        return 2

    def numbers(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers that samples (n,) have in the text."""
        if self.chosen is None:
            return samples
        return self.chosen[samples]

    def distinct(self) -> Self:
        """Return the corpus with the first alone of samples with the same tokens."""
        return replace(self, chosen=self.first)

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        """Return the rows of samples (n,): the first row of all samples, then the second and so on.

        Returns:
            ``token_ids`` (tokens,), row after row; ``lengths`` (n * rows,) of the rows;
            ``longest``, the greatest of them, as a number.
        """
        raise NotImplementedError


@dataclass(eq=False)
class TokenizedCorpus(Corpus):
    """Samples of one or several sentences as token ids, special tokens included."""

    @property
    def rows(self) -> int:
        return self.columns

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        columns = np.arange(self.columns)[:, None]
        sentences = (self.numbers(samples) * self.columns + columns).ravel()
        starts = self.offsets[sentences]
        return self._spans(starts, self.offsets[sentences + 1] - starts)

    def _spans(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Batch:
        """Return a batch of spans of tokens that begin at ``starts`` (n,), of ``lengths`` (n,)."""
        shifts = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)  # (tokens,)
        indices = shifts + np.arange(lengths.sum())
        return {
            "token_ids": torch.from_numpy(self.content[indices].astype(np.int64)),
            "lengths": torch.from_numpy(lengths),
            "longest": int(lengths.max()),
        }

    def texts_with(self, vocabulary: int) -> Tensor:
        """Return the number of sentences that have each token, (vocabulary,)."""
        counts = np.zeros(vocabulary, np.int64)
        for start in range(0, len(self.offsets) - 1, 10_000):
            ends = self.offsets[start : start + 10_001]
            sentence = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
            tokens = self.content[ends[0] : ends[-1]]
            pairs = np.unique(sentence * vocabulary + tokens)  # of sentence and token
            counts += np.bincount(pairs % vocabulary, minlength=vocabulary)
        return torch.from_numpy(counts)


@dataclass(eq=False, kw_only=True)
class TokenCroppedCorpus(TokenizedCorpus):
    """Token ids of which each batch takes two crops, for a static model, which knows no context."""

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
    """Text of which each batch takes two crops; they are tokenised while earlier batches train.

    Attributes:
        crops: draws them.
        backend: the tokenizer, which cuts at the training length.
        padding: the token that stands for a crop without one.
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
    """Return the samples of a training text, from the cache if it has them.

    Args:
        text: the source.
        tokenizer: of the model.
        max_seq_length: special tokens included.
        max_samples: only the first ones, so many.
        cache_dir: in place of the user's cache.
        crops: each batch has two crops of each sample in its place.
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
        # another run may be reading the same text
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


Row = tuple[str, NDArray[np.integer]]  # a sentence, and what is kept of it
Encode = Callable[[Iterable[str], CorpusReport], Iterator[Row]]


def _encoded(
    tokenizer: PreTrainedTokenizerBase,
    backend: Tokenizer,
    sentences: Iterable[str],
    report: CorpusReport,
) -> Iterator[Row]:
    """Yield sentences as token ids, one of padding if there is none; count what is lost."""
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    special = backend.num_special_tokens_to_add(False)
    # the backend's own: GPT-2's tokenizer names its end token, and yet knows all bytes
    token = unknown_token(backend)
    unknown: Any = None if token is None else backend.token_to_id(token)
    remaining = iter(sentences)
    number = 0
    cut = -1  # the last sample that was
    while chunk := list(islice(remaining, CHUNK)):
        try:
            encodings = backend.encode_batch_fast(chunk)
        except Exception as error:  # the library has no other kind
            # such as a model without a token for the unknown
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
    """Write the files of the cache, and complete the report."""
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
    about = {
        "dtype": dtype,
        "sha256": sha256_of(folder / TOKENS),
        "report": asdict(report),
        "some": _some_sentences(text, report.sentences),
    }
    np.savez(
        folder / REST,
        offsets=offsets,
        first=np.sort(first),
        about=np.frombuffer(json.dumps(about).encode(), np.uint8),
    )


def _hashes(sentence: str, kept: NDArray[np.integer]) -> tuple[int, int]:
    """Return hashes of a sentence, white space aside, and of what is kept of it."""
    return hash(" ".join(sentence.split())), hash(kept.tobytes())


def _equal_share(hashes: NDArray[np.int64]) -> float:
    """Return the share of sentences of which the same is kept as of an earlier one that differs.

    It is that of the column that has most; ``hashes`` are (samples, columns, 2).
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
    """Return a corpus of the cache; None if it is not there or damaged."""
    if not folder.is_dir():
        return None
    try:
        return _open(folder, identity, columns)
    except Exception as error:  # zip, numpy and JSON have many kinds
        warnings.warn(
            f"the corpus cache {str(folder)!r} is damaged ({error}) and made again", stacklevel=3
        )
        return None


def _open(folder: Path, identity: str, columns: int) -> Corpus:
    with np.load(folder / REST, allow_pickle=False) as rest:
        offsets = rest["offsets"]
        first = rest["first"]
        about = json.loads(rest["about"].tobytes())
    if sha256_of(folder / TOKENS) != about["sha256"]:
        raise ValueError("the tokens are not what was written")
    tokens = np.memmap(folder / TOKENS, about["dtype"], "r")
    report = CorpusReport(**about["report"])
    return Corpus(tokens, offsets, first, about["some"], report, identity, columns)


def _report_of_crops(corpus: TextCroppedCorpus, encode: Encode) -> CorpusReport:
    """Return the report with what the tokenizer loses in crops of some sentences."""
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
    """Refuse a text that cannot be cropped, or of which the tokenizer loses most.

    Warn where it loses much.
    """
    lost = max(report.unknown / max(1, report.tokens), report.equal)
    problem = (
        f"its tokenizer loses much of {name!r} ({report.summary()}): name an encoder whose "
        "vocabulary has the script of the text (static with --vocabulary text has any), and its "
        "case where only case differs, or raise max_seq_length if sentences begin alike"
    )
    if lost >= REFUSED:
        raise ParameterError("model_name_or_path", problem)
    if report.short == report.sentences:
        raise ParameterError("views", f"{name!r} has nothing to crop: {report.summary()}")
    if lost >= WARNED:
        warnings.warn(f"model_name_or_path: {problem}", stacklevel=3)
