"""Training samples: tokenised once and memory-mapped, or kept as text for crops.

The cache key is the content of the text, all that decides its tokens, and the length; for crops,
which are tokenised per batch, the text alone. A :class:`CorpusReport` counts what is skipped or
noteworthy.

``datasets.map`` is not used: report and duplicates would need files of their own.
"""

from __future__ import annotations

import hashlib
import json
import random
import warnings
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import ParameterError, reason_of
from dystress_text.evaluation.cosines import MOST_SENTENCES
from dystress_text.finetuning.crops import Crops, too_short
from dystress_text.finetuning.texts import TrainingText
from dystress_text.io.atomic import atomic_folder, sha256_of, write_json
from dystress_text.io.lock import LOCK, locked
from dystress_text.io.paths import cache_error, cache_root
from dystress_text.io.text_lines import CorpusReport
from dystress_text.models.static import unknown_token
from dystress_text.models.text_reader import TextReader
from dystress_text.training.batches import Batch

FORMAT = 18  # version of the cache; raise it when the files or the reading of a text change
TOKENS = "tokens.bin"  # memory-mapped
ARRAYS = "arrays.npz"
METADATA = "metadata.json"
CHUNK = 256  # sentences at a time
# shares of unknown tokens
WARNED = 0.05
REFUSED = 0.5


@dataclass(eq=False)
class Corpus:
    """Training samples in a memory-mapped file, one after another.

    Attributes:
        content: token ids or UTF-8 bytes of all sentences, (total,).
        offsets: start of each sentence in ``content``, (samples * columns + 1,).
        first: indices of the samples that equal no earlier one, (distinct samples,).
        sampled_texts: distinct first sentences of randomly chosen samples, the same for all seeds.
        report: counts of what was read.
        identity: checksums of the text and of the tokenizer.
        columns: number of sentences in a sample.
        chosen: indices of the samples to use; None for all.
        identifies: whether a batch has ``texts``, (n, 2): ids of anchors and positives.
    """

    content: NDArray[np.integer]
    offsets: NDArray[np.int64]
    first: NDArray[np.int64]
    sampled_texts: list[str]
    report: CorpusReport
    identity: str
    columns: int = 1
    chosen: NDArray[np.int64] | None = None
    identifies: bool = False

    def __len__(self) -> int:
        if self.chosen is not None:
            return len(self.chosen)
        return (len(self.offsets) - 1) // self.columns

    @property
    def rows_per_sample(self) -> int:
        """The number of rows in a batch for each sample: here two views of a sentence."""
        return 2

    def original_indices(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices that samples (n,) of this corpus have in the whole text, (n,)."""
        if self.chosen is None:
            return samples
        return self.chosen[samples]

    def distinct(self) -> Self:
        """Return the corpus without samples whose tokens equal those of an earlier sample.

        With several columns, batches also have ``texts``: ids of anchors and positives, by which
        the loss recognises equal texts.
        """
        return replace(self, chosen=self.first, identifies=self.columns > 1)

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        """Return a batch of samples (n,).

        It begins with the first rows of all samples; their second rows follow, and so on.

        Returns:
            ``token_ids`` (tokens,), the rows concatenated; ``lengths`` of the rows, (n * rows per
            sample,); ``longest``, the greatest length.
        """
        raise NotImplementedError

    def _spans(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Batch:
        """Return a batch of the token spans with ``starts`` (n,) and ``lengths`` (n,)."""
        shifts = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)  # (tokens,)
        indices = shifts + np.arange(lengths.sum())
        return {
            "token_ids": torch.from_numpy(self.content[indices].astype(np.int64)),
            "lengths": torch.from_numpy(lengths),
            "longest": int(lengths.max()),
        }

    def sentences(self) -> Iterator[Batch]:
        """Yield all sentences of the text in batches, in order."""
        for start in range(0, len(self.offsets) - 1, CHUNK):
            bounds = self.offsets[start : start + CHUNK + 1]
            yield self._spans(bounds[:-1], np.diff(bounds))

    def document_frequencies(self, vocabulary: int) -> Tensor:
        """Return the number of sentences that contain each token, (vocabulary,)."""
        counts = torch.zeros(vocabulary, dtype=torch.long)
        for batch in self.sentences():
            sentence = torch.arange(len(batch["lengths"])).repeat_interleave(batch["lengths"])
            pairs = torch.unique(sentence * vocabulary + batch["token_ids"])  # as one number
            counts += torch.bincount(pairs % vocabulary, minlength=vocabulary)
        return counts


@dataclass(eq=False)
class TokenizedCorpus(Corpus):
    """Samples as token ids, special tokens included."""

    @property
    def rows_per_sample(self) -> int:
        return self.columns

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        columns = np.arange(self.columns)[:, None]
        sentences = (self.original_indices(samples) * self.columns + columns).ravel()
        starts = self.offsets[sentences]
        ends = self.offsets[sentences + 1]
        batch = self._spans(starts, ends - starts)
        if self.identifies:
            bounds = zip(starts[: 2 * len(samples)], ends, strict=False)
            ids = [zlib.crc32(self.content[start:end].tobytes()) for start, end in bounds]
            batch["texts"] = torch.tensor(ids).view(2, -1).T
        return batch


@dataclass(eq=False, kw_only=True)
class TokenCroppedCorpus(Corpus):
    """Token ids, cropped for each batch: for static models, whose token vectors need no context.

    Attributes:
        crops: draws the crops.
        titles: as :func:`title_lengths` returns them; None without titles.
    """

    crops: Crops
    titles: NDArray[np.int64] | None = None

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        indices = self.original_indices(samples)
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        titles = None if self.titles is None else self.titles[indices]
        firsts, counts = self.crops.spans(lengths, step, indices, titles=titles)  # (2, n) each
        return self._spans((starts + firsts).ravel(), counts.ravel())


@dataclass(eq=False, kw_only=True)
class TextCroppedCorpus(Corpus):
    """Text whose crops are tokenised for each batch.

    Attributes:
        crops: draws the crops.
        reader: tokenises them.
    """

    crops: Crops
    reader: TextReader

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        views = []
        for index in self.original_indices(samples).tolist():
            start, end = self.offsets[index : index + 2]
            text = self.content[start:end].tobytes().decode()
            views.append(self.crops.views(text, step, index))
        return self.reader.batch([first for first, _ in views] + [second for _, second in views])


def load_corpus(
    text: TrainingText,
    reader: TextReader,
    max_samples: int | None = None,
    cache_dir: str | Path | None = None,
    crops: Crops | None = None,
) -> Corpus:
    """Read and tokenise a training text, or load it from the cache. Texts in memory are not cached.

    Args:
        text: the training text.
        reader: tokenises as the model does.
        max_samples: number of samples to read; None for all.
        cache_dir: the cache folder; by default :func:`cache_root`.
        crops: settings of the crops; None for whole samples.

    Raises:
        ParameterError: the text cannot be used, or the tokenizer cannot read it.
    """
    checksum = text.checksum()
    identity = f"{checksum}, tokenizer {reader.identity()}"
    encode: Encode = _utf8
    content = checksum
    if crops is None:
        encode = partial(_encoded, reader)
        content = identity
    read = partial(_read, text, max_samples, encode, identity, text.report(checksum))
    stored: Corpus | None = None
    if text.in_memory:
        stream = BytesIO()
        stored = read(stream)
        stored.content = np.frombuffer(stream.getbuffer(), stored.content.dtype)
    else:
        folder = Path(cache_dir or cache_root()) / "corpus"
        key = f"{FORMAT} {max_samples} {text.columns} {content}"
        cached = folder / hashlib.sha256(key.encode()).hexdigest()[:32]
        try:
            # another run may be reading the same text now
            with locked(folder / f".{cached.name}{LOCK}", wait=True):
                if cached.is_dir():
                    try:
                        stored = _open(cached, identity, text.columns)
                    except Exception as error:  # zip, NumPy and JSON have many kinds
                        reason = (
                            f"{str(cached)!r} is damaged ({reason_of(error)}) and is made again"
                        )
                        warnings.warn(f"the corpus cache {reason}", stacklevel=2)
                if stored is None:
                    with atomic_folder(cached) as staging:
                        _write(read, staging)
                    stored = _open(cached, identity, text.columns)
        except OSError as error:
            raise cache_error(folder, error) from error
    _check_vocabulary(reader.tokenizer, stored.sampled_texts, text.name)
    if crops is None:
        return TokenizedCorpus(**vars(stored))
    return TextCroppedCorpus(**vars(stored), crops=crops, reader=reader)


def title_lengths(
    text: TrainingText, reader: TextReader, max_samples: int | None
) -> NDArray[np.int64] | None:
    """Return the number of tokens in the title of each sample, (samples,); None without titles.

    The number is at most 1 for a sample without a title, or with one that equals its body.
    """
    if not text.titled:
        return None
    titles = []
    for title, sentence in text.titled_sentences(samples=max_samples):
        is_title = sentence.removeprefix(title).split() != title.split()
        titles.append(title if is_title else "")
    rows, _ = reader.read(titles)
    return np.array([len(row) for row in rows])


Encode = Callable[[Iterable[str], CorpusReport], Iterator[NDArray[np.integer]]]


def _encoded(
    reader: TextReader, sentences: Iterable[str], report: CorpusReport
) -> Iterator[NDArray[np.integer]]:
    """Yield the token ids of sentences; count truncated tokens in ``report``."""
    remaining = iter(sentences)
    while chunk := list(islice(remaining, CHUNK)):
        rows, cut = reader.read(chunk)
        report.truncated += sum(count > 0 for count in cut)
        report.tokens_cut += sum(cut)
        report.tokens += sum(map(len, rows)) + sum(cut)
        for row in rows:
            yield row.astype(np.uint32)


def _utf8(sentences: Iterable[str], report: CorpusReport) -> Iterator[NDArray[np.integer]]:
    for sentence in sentences:
        report.short += too_short(sentence)
        yield np.frombuffer(sentence.encode(), np.uint8)


def _write(read: Callable[[BinaryIO], Corpus], folder: Path) -> None:
    """Write the files of the cache into a new folder."""
    with (folder / TOKENS).open("wb") as sink:
        corpus = read(sink)
    np.savez(folder / ARRAYS, offsets=corpus.offsets, first=corpus.first)
    dtype = corpus.content.dtype.name
    metadata = {"dtype": dtype, "report": asdict(corpus.report), "some": corpus.sampled_texts}
    metadata["sha256"] = {name: sha256_of(folder / name) for name in (TOKENS, ARRAYS)}
    write_json(folder / METADATA, metadata)


def _read(
    text: TrainingText,
    samples: int | None,
    encode: Encode,
    identity: str,
    report: CorpusReport,
    sink: BinaryIO,
) -> Corpus:
    """Write the content to ``sink``; return the rest, with an empty array of the content's type."""
    offsets = array("q", [0])
    hashes = array("q")
    content: NDArray[np.integer] = np.empty(0, np.uint8)
    sampled: dict[int, str] = {}
    most = samples and samples * text.columns
    read = _sampled(text.sentences(report, samples), text.columns, sampled)
    bar = progress_bar(read, desc="reading", unit=" sentences", total=most)
    for kept in encode(bar, report):
        sink.write(kept.data)
        offsets.append(offsets[-1] + len(kept))
        hashes.append(hash(kept.tobytes()))
        content = kept[:0]
    if report.sentences <= report.over_long + report.invalid_utf8 + report.nul:
        expected = "expected UTF-8 with a sentence on each line or in each cell"
        raise ParameterError(text.parameter, f"{text.name!r} gives {report.summary()}; {expected}")
    by_sample = np.frombuffer(hashes, np.int64).reshape(-1, text.columns)
    _, first = np.unique(by_sample, axis=0, return_index=True)
    report.duplicates = len(by_sample) - len(first)
    distinct = list(dict.fromkeys(sampled.values()))
    starts = np.frombuffer(offsets, np.int64)
    return Corpus(content, starts, np.sort(first), distinct, report, identity, text.columns)


def _sampled(sentences: Iterable[str], columns: int, sampled: dict[int, str]) -> Iterator[str]:
    """Yield all sentences, and store the first sentences of random samples in ``sampled``.

    This is reservoir sampling.
    """
    chance = random.Random(0)
    for number, sentence in enumerate(sentences):
        sample, column = divmod(number, columns)
        place = sample
        if sample >= MOST_SENTENCES:
            place = int(chance.random() * (sample + 1))
        if column == 0 and place < MOST_SENTENCES:
            sampled[place] = sentence
        yield sentence


def _open(folder: Path, identity: str, columns: int) -> Corpus:
    """Open a cached corpus. If it is damaged, errors of many kinds are raised."""
    metadata = json.loads((folder / METADATA).read_bytes())
    for name, expected in metadata["sha256"].items():
        if sha256_of(folder / name) != expected:
            raise ValueError(f"{name} is not what was written")
    arrays = np.load(folder / ARRAYS, allow_pickle=False)
    tokens = np.memmap(folder / TOKENS, metadata["dtype"], "r")
    report = CorpusReport(**metadata["report"])
    offsets, first = arrays["offsets"], arrays["first"]
    return Corpus(tokens, offsets, first, metadata["some"], report, identity, columns)


def _check_vocabulary(tokenizer: Any, sentences: list[str], name: str) -> None:
    """Refuse or warn if many tokens are unknown, as in a text in another script."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, Tokenizer):
        return
    # not the tokenizer's: GPT-2's names its end token, but has no unknown bytes
    token = unknown_token(backend)
    unknown = None if token is None else backend.token_to_id(token)
    if unknown is None:
        return
    backend.no_padding()
    encodings = backend.encode_batch_fast(sentences, add_special_tokens=False)
    ids = [id for encoding in encodings for id in encoding.ids]
    share = ids.count(unknown) / max(1, len(ids))
    reason = (
        f"{100 * share:.0f} % of the tokens of {name!r} are unknown: name an encoder whose "
        "vocabulary covers the script of the text (as static with vocabulary text does)"
    )
    if share >= REFUSED:
        raise ParameterError("model_name_or_path", reason)
    if share >= WARNED:
        warnings.warn(f"model_name_or_path: {reason}", stacklevel=3)
