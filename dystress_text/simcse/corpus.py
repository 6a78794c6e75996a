"""Training samples: tokenised once and memory-mapped, or kept as text of which each batch takes two crops.

The tokens stay in the cache: Wiki1M takes half a minute to tokenise, and the runs of a sweep share the text. The key is
the content of the text, the tokenizer and the length; for crops, which are tokenised later, the content alone. A
:class:`CorpusReport` counts what is left out or noteworthy.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import ParameterError
from dystress_text.evaluation.random_pairs import MOST_SENTENCES
from dystress_text.files.places import cache_error, cache_root
from dystress_text.files.text_lines import CorpusReport
from dystress_text.files.whole import sha256_of, whole_folder, write_json
from dystress_text.simcse.crops import Crops
from dystress_text.simcse.texts import TrainingText
from dystress_text.training.batches import Batch

FORMAT = 10  # version of the cache; raise it with the layout of the files or the reading of a text
TOKENS, OFFSETS, FIRST, REPORT, SUMS = "tokens.bin", "offsets.npy", "first.npy", "report.json", "sums.json"
CHUNK = 4_000_000  # characters read at a time, where a sample has 200 more than it has
WARNED, REFUSED = 0.05, 0.5  # shares of unknown tokens, and of sentences that the tokenizer makes equal


@dataclass(eq=False)
class TokenizedCorpus:
    """Samples of one or several sentences as token ids, special tokens included.

    Attributes:
        tokens: (total,) ids of all sentences, one after another.
        offsets: (samples * columns + 1,) the start of each sentence.
        first: (distinct samples,) the numbers of the samples that equal no earlier one.
        some: distinct sentences from the whole text, each a sample's first; the same for all seeds.
        report: of reading the text.
        identity: checksums of the text and of the tokenizer.
        columns: sentences per sample.
        chosen: the numbers of the samples that count, which are numbered anew from 0; None for all.
    """

    tokens: NDArray[np.integer]
    offsets: NDArray[np.int64]
    first: NDArray[np.int64]
    some: list[str]
    report: CorpusReport
    identity: str
    columns: int = 1
    chosen: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // self.columns if self.chosen is None else len(self.chosen)

    @property
    def rows(self) -> int:
        """Rows of a batch for each sample; of one row the encoder makes two dropout views."""
        return self.columns

    def numbers(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers that samples (n,) have in the text."""
        return samples if self.chosen is None else self.chosen[samples]

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        """The sentences of samples (n,): the first column of all samples, then the second, and so on.

        The same at each ``step``; of a :class:`CroppedCorpus` others.

        Returns:
            ``token_ids`` (tokens,), sentence after sentence; ``lengths`` (n * columns,) of the sentences; ``longest``,
            the greatest of them, as a number.
        """
        sentences = (self.numbers(samples) * self.columns + np.arange(self.columns)[:, None]).ravel()
        starts = self.offsets[sentences]
        lengths = self.offsets[sentences + 1] - starts  # (n * columns,)
        places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        return {
            "token_ids": torch.from_numpy(self.tokens[places].astype(np.int64)),
            "lengths": torch.from_numpy(lengths),
            "longest": int(lengths.max()),
        }

    def distinct(self) -> TokenizedCorpus:
        """Of samples with the same tokens the first alone."""
        return replace(self, chosen=self.first)


@dataclass(eq=False, kw_only=True)
class CroppedCorpus(TokenizedCorpus):
    """Samples as UTF-8, of which each batch takes two crops; the tokenizer reads these while earlier batches train.

    Attributes:
        crops: how they are drawn.
        backend: the tokenizer, which cuts at the training length.
        padding: the token that stands for a crop without one.
    """

    crops: Crops
    backend: Tokenizer
    padding: int

    @property
    def rows(self) -> int:
        return 2

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> Batch:
        """The first crops of samples (n,), then the second ones, as :meth:`TokenizedCorpus.batch` has them."""
        views = [self.crops.views(self.text(i), step, i) for i in self.numbers(samples).tolist()]
        encodings = self.backend.encode_batch_fast([views[i][k] for k in (0, 1) for i in range(len(views))])
        ids = [torch.tensor(encoding.ids or [self.padding]) for encoding in encodings]
        lengths = [len(of_crop) for of_crop in ids]
        return {"token_ids": torch.cat(ids), "lengths": torch.tensor(lengths), "longest": max(lengths)}

    def text(self, sample: int) -> str:
        return self.tokens[self.offsets[sample] : self.offsets[sample + 1]].tobytes().decode()


def load_corpus(
    text: TrainingText,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    max_samples: int | None = None,
    cache_dir: str | Path | None = None,
    crops: Crops | None = None,
) -> TokenizedCorpus:
    """The samples of a training text, from the cache if it has them.

    Args:
        text: the source of the sentences.
        tokenizer: a tokenizer with a ``tokenizers`` backend.
        max_seq_length: most tokens of a sentence, special tokens included.
        max_samples: use only the first so many samples.
        cache_dir: the folder of caches; None is :func:`cache_root`.
        crops: each batch has two crops of each sample, in place of the sample.
    """
    if not tokenizer.is_fast:
        raise ParameterError("model_name_or_path", f"{type(tokenizer).__name__} has no fast (tokenizers) form")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.enable_truncation(max_seq_length)
    backend.no_padding()
    report = CorpusReport(sha256=text.checksum(), documents=getattr(text, "documents", False))
    identity = f"{report.sha256}, tokenizer {_hash(backend.to_str())}"
    most = None if max_samples is None else max_samples * text.columns
    readable = report.sha256 if crops else f"{identity} {tokenizer.pad_token_id}"
    key = f"{FORMAT} {most} {text.columns} {report.documents} {readable}"
    folder = Path(cache_dir or cache_root()) / "corpus" / _hash(key)
    encode = _utf8 if crops else partial(_encoded, tokenizer, backend)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):  # another run may be reading the same text
            corpus = None
            if folder.is_dir():
                try:
                    corpus = _open_cached(folder, identity, text.columns)
                except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                    warnings.warn(f"the corpus cache {str(folder)!r} is damaged ({error}) and made again", stacklevel=2)
            if corpus is None:
                with whole_folder(folder) as staging:
                    _write(text, most, encode, staging, report)
                corpus = _open_cached(folder, identity, text.columns)
        if crops is not None:
            corpus = CroppedCorpus(**vars(corpus), crops=crops, backend=backend, padding=tokenizer.pad_token_id or 0)
            corpus.report = _report_of_crops(corpus, partial(_encoded, tokenizer, backend), folder)
    except OSError as error:
        raise cache_error(folder.parent, error) from error
    _check(corpus.report, text.name)
    return corpus


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


Row = tuple[str, NDArray[np.integer]]  # a sentence, and what is kept of it
Encode = Callable[[Iterable[str], CorpusReport], Iterator[Row]]


def _encoded(
    tokenizer: PreTrainedTokenizerBase, backend: Tokenizer, sentences: Iterable[str], report: CorpusReport
) -> Iterator[Row]:
    """Sentences as token ids, one of padding if there is none; counts those that are cut, and unknown tokens."""
    dtype, special = np.uint16 if len(tokenizer) <= 2**16 else np.uint32, backend.num_special_tokens_to_add(False)
    # the model's own: GPT-2's names its end token, and yet knows all bytes; only Unigram's model does not name it
    unknown_token = getattr(backend.model, "unk_token", tokenizer.unk_token)
    unknown: Any = None if unknown_token is None else backend.token_to_id(unknown_token)
    remaining = iter(sentences)
    while chunk := list(_chunk(remaining)):
        try:
            encodings = backend.encode_batch_fast(chunk)
        except Exception as error:  # the library has no other kind; a model without a token for the unknown
            raise ParameterError("model_name_or_path", f"its tokenizer cannot read the text: {error}") from error
        for sentence, encoding in zip(chunk, encodings, strict=True):
            report.truncated += bool(encoding.overflowing)
            report.tokens += len(encoding) - special
            report.unknown += (ids := encoding.ids).count(unknown)
            yield sentence, np.array(ids or [tokenizer.pad_token_id or 0], dtype)


def _utf8(sentences: Iterable[str], report: CorpusReport) -> Iterator[Row]:
    return ((sentence, np.frombuffer(sentence.encode(), np.uint8)) for sentence in sentences)


def _chunk(samples: Iterator[str]) -> Iterator[str]:
    size = 0
    for sample in samples:
        yield sample
        if (size := size + 200 + len(sample)) >= CHUNK:
            break


def _write(text: TrainingText, most: int | None, encode: Encode, folder: Path, report: CorpusReport) -> None:
    """Write the files of the cache, and complete the report."""
    offsets, dtype = array("q", [0]), ""

    def rows() -> Iterator[Row]:
        nonlocal dtype
        with (folder / TOKENS).open("wb") as sink:
            bar = progress_bar(text.sentences(report, most), desc="reading", unit=" samples", total=most)
            for sentence, kept in encode(bar, report):
                sink.write(kept.data)
                offsets.append(offsets[-1] + len(kept))
                dtype = kept.dtype.name
                yield sentence, kept

    first, report.equal = _compare(rows(), text.columns)
    if report.sentences == 0 or report.over_long + report.invalid_utf8 + report.nul > report.sentences:
        raise ParameterError(
            "train_file", f"{text.name!r} is no text in UTF-8 with a sentence a line; save it so: {report.summary()}"
        )
    np.save(folder / OFFSETS, np.frombuffer(offsets, dtype=np.int64))
    np.save(folder / FIRST, first)
    stored = {"dtype": dtype, "report": asdict(report), "some": _some_sentences(text, report.sentences)}
    write_json(folder / REPORT, stored)
    write_json(folder / SUMS, _sums(folder))


def _compare(rows: Iterable[Row], columns: int) -> tuple[NDArray[np.int64], float]:
    """The numbers of the samples that equal no earlier one, and the share whose sentence equals one of another text.

    The share is that of the column that has most. Texts that differ in white space alone are one.
    """
    texts, digests = array("q"), bytearray()
    for sentence, kept in rows:
        texts.append(hash(" ".join(sentence.split())))
        digests += hashlib.blake2b(kept.data, digest_size=16).digest()
    by_text = np.frombuffer(texts, np.int64).reshape(-1, columns)
    by_kept = np.frombuffer(digests, np.int64).reshape(-1, columns, 2)
    equal = [np.count_nonzero(by_text[:, i] != by_text[_first_equal(by_kept[:, i]), i]) for i in range(columns)]
    return np.unique(_first_equal(by_kept.reshape(-1, 2 * columns))), max(equal) / max(1, len(by_text))


def _first_equal(hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row of (n, hashes) the number of the first that equals it."""
    _, first, places = np.unique(hashes, axis=0, return_index=True, return_inverse=True)
    return first[places.ravel()]


def _some_sentences(text: TrainingText, sentences: int) -> list[str]:
    rows = np.random.default_rng(0).permutation(sentences // text.columns)[:MOST_SENTENCES] * text.columns
    wanted, read = set(rows.tolist()), text.sentences(CorpusReport(), int(rows.max()) + 1)
    return list(dict.fromkeys(sentence for row, sentence in enumerate(read) if row in wanted))


def _sums(folder: Path) -> dict[str, str]:
    return {name: sha256_of(folder / name) for name in (TOKENS, OFFSETS, FIRST, REPORT)}


def _open_cached(folder: Path, identity: str, columns: int) -> TokenizedCorpus:
    if json.loads((folder / SUMS).read_text(encoding="utf-8")) != _sums(folder):
        raise ValueError("a file is not what was written")
    stored = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    offsets, first = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (OFFSETS, FIRST))
    tokens = np.memmap(folder / TOKENS, stored["dtype"], "r") if offsets[-1] else np.empty(0, stored["dtype"])
    return TokenizedCorpus(tokens, offsets, first, stored["some"], CorpusReport(**stored["report"]), identity, columns)


def _report_of_crops(corpus: CroppedCorpus, encode: Encode, folder: Path) -> CorpusReport:
    """The report with the samples that are too short, and with what the tokenizer loses in crops of some sentences."""
    crops, of_crops = replace(corpus.crops, seed=0), CorpusReport()
    views = [view for i, text in enumerate(corpus.some) for view in dict.fromkeys(crops.views(text, 0, i))]
    _, equal = _compare(encode(views, of_crops), 1)
    short, file = None, folder / f"short-{crops.min_words}-{crops.sentences:d}.json"
    with suppress(OSError, ValueError):
        short = int(file.read_text())
    if short is None:  # takes longer than all else
        short = sum(crops.too_short(corpus.text(sample)) for sample in range(len(corpus)))
        write_json(file, short)
    tokens, unknown = of_crops.tokens, of_crops.unknown
    return replace(corpus.report, short=short, tokens=tokens, unknown=unknown, equal=equal, crops=len(views))


def _check(report: CorpusReport, name: str) -> None:
    """Refuse a text that is too short to be cropped, or of which the tokenizer loses most; warn where it loses much."""
    lost = max(report.unknown / max(1, report.tokens), report.equal)
    problem = (
        f"its tokenizer loses much of {name!r} ({report.summary()}): name an encoder whose vocabulary has the script "
        "of the text, and its case where only case differs, or raise max_seq_length if sentences begin alike"
    )
    if lost >= REFUSED:
        raise ParameterError("model_name_or_path", problem)
    if report.short == report.sentences:
        raise ParameterError("views", f"{name!r} has nothing to crop: {report.summary()}")
    if lost >= WARNED:
        warnings.warn(f"model_name_or_path: {problem}", stacklevel=3)
