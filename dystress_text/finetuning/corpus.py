"""Training samples: tokenised once and memory-mapped, or kept as text that is cropped.

A text is cached by its content and everything that determines its tokens; for crops, which are
tokenised per batch, by its content alone. One pass over a new text yields its checksum, counts,
tokens and samples. A text that begins like a cached one is first read for its checksum.

``datasets.map`` is not used: report and duplicates would need files of their own.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
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
from dystress_text.finetuning.texts import CorpusReport, TrainingText
from dystress_text.io.atomic import atomic_folder, sha256_of, write_json
from dystress_text.io.lock import LOCK, locked
from dystress_text.io.paths import cache_error, cache_root
from dystress_text.models.static import unknown_token
from dystress_text.models.text_reader import TextReader
from dystress_text.training.batches import Batch

FORMAT = 19  # version of the cache; raise it when the files or the reading of a text change
TOKENS = "tokens.bin"  # memory-mapped
ARRAYS = "arrays.npz"
METADATA = "metadata.json"
CHUNK = 256  # sentences at a time
# shares of unknown tokens
LEAST_WARNED = 0.05
LEAST_REFUSED = 0.5


@dataclass(eq=False)
class Corpus:
    """The training samples one after another, in a memory-mapped file.

    Attributes:
        content: token ids or UTF-8 bytes of all sentences, (total,).
        offsets: start of each sentence in ``content``, (samples * columns + 1,).
        distinct_samples: indices of the samples that equal no earlier one.
        sampled_texts: distinct first sentences of random samples, the same for all seeds.
        report: the counts of lines, sentences and tokens.
        identity: checksums of the text and of the tokenizer.
        columns: number of sentences in a sample.
        titles: number of tokens in the title of each sample, (samples,), at most 1 for a sample
            without a title or with a title that equals its body; None without titles.
        selected: indices of the samples to train on; None for all.
        identifies_texts: whether batches have ``texts``, (n, 2): ids of anchors and positives.
    """

    content: NDArray[np.integer]
    offsets: NDArray[np.int64]
    distinct_samples: NDArray[np.int64]
    sampled_texts: list[str]
    report: CorpusReport
    identity: str = ""
    columns: int = 1
    titles: NDArray[np.int64] | None = None
    selected: NDArray[np.int64] | None = None
    identifies_texts: bool = False

    def __len__(self) -> int:
        if self.selected is not None:
            return len(self.selected)
        return (len(self.offsets) - 1) // self.columns

    @property
    def rows_per_sample(self) -> int:
        """The number of rows that a sample has in a batch: two views of a sentence."""
        return 2

    def original_indices(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map indices of selected samples, (n,), to their indices in the whole text, (n,)."""
        if self.selected is None:
            return samples
        return self.selected[samples]

    def distinct(self) -> Self:
        """Return the corpus without samples whose tokens equal those of an earlier sample.

        With several columns batches also have ``texts``, so that the loss recognises equal texts.
        """
        return replace(self, selected=self.distinct_samples, identifies_texts=self.columns > 1)

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        """Return a batch of samples (n,).

        It begins with the first rows of all samples; their second rows follow, and so on.

        Returns:
            ``token_ids`` (tokens,), the rows concatenated; ``lengths`` of the rows, (n * rows per
            sample,); ``longest``, the greatest length.
        """
        raise NotImplementedError

    def _spans(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Batch:
        """Return a batch of the spans of tokens with ``starts`` and ``lengths``, (n,) each."""
        shifts = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)  # (tokens,)
        indices = shifts + np.arange(lengths.sum())
        return {
            "token_ids": torch.from_numpy(self.content[indices].astype(np.int64)),
            "lengths": torch.from_numpy(lengths),
            "longest": int(lengths.max()),
        }

    def sentences(self) -> Iterator[Batch]:
        """Yield all sentences of the text, in order, in batches."""
        for start in range(0, len(self.offsets) - 1, CHUNK):
            bounds = self.offsets[start : start + CHUNK + 1]
            yield self._spans(bounds[:-1], np.diff(bounds))

    def document_frequencies(self, vocabulary: int) -> Tensor:
        """Return the number of sentences that contain each token, (vocabulary,)."""
        counts = torch.zeros(vocabulary, dtype=torch.long)
        for batch in self.sentences():
            sentence = torch.arange(len(batch["lengths"])).repeat_interleave(batch["lengths"])
            pairs = torch.unique(sentence * vocabulary + batch["token_ids"])  # each as one number
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
        if self.identifies_texts:
            bounds = zip(starts[: 2 * len(samples)], ends, strict=False)
            ids = [zlib.crc32(self.content[start:end].tobytes()) for start, end in bounds]
            batch["texts"] = torch.tensor(ids).view(2, -1).T
        return batch


@dataclass(eq=False, kw_only=True)
class TokenCroppedCorpus(Corpus):
    """Token ids, cropped in each batch, for static models, whose tokens need no context.

    Attributes:
        crops: draws the crops.
    """

    crops: Crops

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        indices = self.original_indices(samples)
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        titles = None if self.titles is None else self.titles[indices]
        firsts, counts = self.crops.spans(lengths, step, indices, titles=titles)  # (2, n) each
        return self._spans((starts + firsts).ravel(), counts.ravel())


@dataclass(eq=False, kw_only=True)
class TextCroppedCorpus(Corpus):
    """Text, cropped and tokenised in each batch.

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
        crops: draws crops of texts, which are then stored as text; None to store tokens.

    Raises:
        ParameterError: the text cannot be used, or the tokenizer cannot read it.
    """
    tokenizer = reader.identity()
    encode = partial(_tokenized, reader) if crops is None else _utf8
    read = partial(_read, text, max_samples, encode)
    if text.in_memory:
        stream = BytesIO()
        stored = read(stream)
        stored.content = np.frombuffer(stream.getbuffer(), stored.content.dtype)
    else:
        content = text.columns, text.titled, None if crops else tokenizer
        key = f"{FORMAT} {max_samples} {content} {list(islice(text.lines(), CHUNK))}"
        prefix = hashlib.sha256(key.encode()).hexdigest()[:32]
        folder = Path(cache_dir or cache_root()) / "corpus"
        try:
            # another run may be reading the same text now
            with locked(folder / f".{prefix}{LOCK}", wait=True):
                cached = _cached(text, folder, prefix)
                stored = cached if cached is not None else _new(read, folder, prefix)
        except OSError as error:
            raise cache_error(folder, error) from error
    stored.identity = f"{stored.report.sha256}, tokenizer {tokenizer}"
    _check_vocabulary(reader.tokenizer, stored.sampled_texts, text.name)
    if crops is None:
        return TokenizedCorpus(**vars(stored))
    return TextCroppedCorpus(**vars(stored), crops=crops, reader=reader)


def _cached(text: TrainingText, folder: Path, prefix: str) -> Corpus | None:
    """Return the cached corpus of a text; None without one, or with a warning if it is damaged.

    The text is read for its checksum only if a text that begins like it is in the cache.
    """
    if not any(folder.glob(f"{prefix}-*")):
        return None
    cached = folder / f"{prefix}-{text.checksum()}"
    if not cached.is_dir():
        return None
    try:
        return _open(cached)
    except Exception as error:  # zip, NumPy and JSON have many kinds
        reason = f"{str(cached)!r} is damaged ({reason_of(error)}) and is made again"
        warnings.warn(f"the corpus cache {reason}", stacklevel=3)
        return None


def _new(read: Callable[[BinaryIO], Corpus], folder: Path, prefix: str) -> Corpus:
    """Read a text into the cache."""
    new = folder / f"{prefix}.new"
    with atomic_folder(new) as staging:
        checksum = _write(read, staging)
    cached = folder / f"{prefix}-{checksum}"
    shutil.rmtree(cached, ignore_errors=True)  # a damaged one
    new.rename(cached)
    return _open(cached)


# yields the content of each sentence and the number of tokens in its title
Encode = Callable[
    [Iterable[tuple[str, str]], CorpusReport], Iterator[tuple[NDArray[np.integer], int]]
]


def _tokenized(
    reader: TextReader, titled_sentences: Iterable[tuple[str, str]], report: CorpusReport
) -> Iterator[tuple[NDArray[np.integer], int]]:
    """Yield the token ids of sentences; count truncated tokens in ``report``."""
    remaining = iter(titled_sentences)
    while chunk := list(islice(remaining, CHUNK)):
        titles = [_own_title(*titled) for titled in chunk]
        title_lengths = [0] * len(chunk)
        if any(titles):
            title_lengths = [len(row) for row in reader.read(titles)[0]]
        rows, cut = reader.read([sentence for _, sentence in chunk])
        report.truncated += sum(count > 0 for count in cut)
        report.tokens_cut += sum(cut)
        report.tokens += sum(map(len, rows)) + sum(cut)
        for row, title_length in zip(rows, title_lengths, strict=True):
            yield row.astype(np.uint32), title_length


def _own_title(title: str, sentence: str) -> str:
    """Return the title of a sentence; "" if it equals the rest of the sentence."""
    return title if sentence.removeprefix(title).split() != title.split() else ""


def _utf8(
    titled_sentences: Iterable[tuple[str, str]], report: CorpusReport
) -> Iterator[tuple[NDArray[np.integer], int]]:
    for _, sentence in titled_sentences:
        report.short += too_short(sentence)
        yield np.frombuffer(sentence.encode(), np.uint8), 0


def _write(read: Callable[[BinaryIO], Corpus], folder: Path) -> str:
    """Write the files of the cache into a new folder; return the checksum of the text."""
    with (folder / TOKENS).open("wb") as sink:
        corpus = read(sink)
    arrays: dict[str, Any] = {
        "offsets": corpus.offsets,
        "distinct_samples": corpus.distinct_samples,
    }
    if corpus.titles is not None:
        arrays["titles"] = corpus.titles
    np.savez(folder / ARRAYS, **arrays)
    metadata = {
        "dtype": corpus.content.dtype.name,
        "report": asdict(corpus.report),
        "sampled_texts": corpus.sampled_texts,
        "sha256": {name: sha256_of(folder / name) for name in (TOKENS, ARRAYS)},
    }
    write_json(folder / METADATA, metadata)
    return corpus.report.sha256


def _read(text: TrainingText, max_samples: int | None, encode: Encode, sink: BinaryIO) -> Corpus:
    """Write the content to ``sink``; return the rest, with an empty ``content`` of its dtype."""
    report = text.report()
    offsets = array("q", [0])
    hashes = array("q")
    titles = array("q")
    content: NDArray[np.integer] = np.empty(0, np.uint8)
    sampled: dict[int, str] = {}
    most = max_samples and max_samples * text.columns
    titled_sentences = _sampled(text.read(report, max_samples), text.columns, sampled)
    bar = progress_bar(titled_sentences, desc="reading", unit=" sentences", total=most)
    for kept, title_length in encode(bar, report):
        sink.write(kept.data)
        offsets.append(offsets[-1] + len(kept))
        hashes.append(hash(kept.tobytes()))
        titles.append(title_length)
        content = kept[:0]
    if report.sentences <= report.over_long + report.invalid_utf8 + report.nul:
        expected = "expected UTF-8 with a sentence on each line or in each cell"
        raise ParameterError(text.parameter, f"{text.name!r} gives {report.summary()}; {expected}")
    by_sample = np.frombuffer(hashes, np.int64).reshape(-1, text.columns)
    _, first = np.unique(by_sample, axis=0, return_index=True)
    report.duplicates = len(by_sample) - len(first)
    return Corpus(
        content=content,
        offsets=np.frombuffer(offsets, np.int64),
        distinct_samples=np.sort(first),
        sampled_texts=list(dict.fromkeys(sampled.values())),
        report=report,
        columns=text.columns,
        titles=np.frombuffer(titles, np.int64) if text.titled else None,
    )


def _sampled(
    titled_sentences: Iterable[tuple[str, str]], columns: int, sampled: dict[int, str]
) -> Iterator[tuple[str, str]]:
    """Yield all sentences, and store the first sentences of random samples in ``sampled``.

    This is reservoir sampling.
    """
    chance = random.Random(0)
    for number, titled in enumerate(titled_sentences):
        sample, column = divmod(number, columns)
        place = sample
        if sample >= MOST_SENTENCES:
            place = int(chance.random() * (sample + 1))
        if column == 0 and place < MOST_SENTENCES:
            sampled[place] = titled[1]
        yield titled


def _open(folder: Path) -> Corpus:
    """Open a cached corpus. If it is damaged, errors of many kinds are raised."""
    metadata = json.loads((folder / METADATA).read_bytes())
    for name, expected in metadata["sha256"].items():
        if sha256_of(folder / name) != expected:
            raise ValueError(f"{name} is not what was written")
    tokens = np.memmap(folder / TOKENS, metadata["dtype"], "r")
    report = CorpusReport(**metadata["report"])
    with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
        return Corpus(
            content=tokens,
            sampled_texts=metadata["sampled_texts"],
            report=report,
            columns=report.columns,
            **arrays,
        )


def _check_vocabulary(tokenizer: Any, sentences: list[str], name: str) -> None:
    """Refuse a text, or warn, if many of its tokens are unknown, as those of another script are."""
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
    if share >= LEAST_REFUSED:
        raise ParameterError("model_name_or_path", reason)
    if share >= LEAST_WARNED:
        warnings.warn(f"model_name_or_path: {reason}", stacklevel=3)
