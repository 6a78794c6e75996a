"""Training samples: tokenised once and memory-mapped, or kept as text of which each batch takes two crops.

The tokens stay in the cache: Wiki1M takes half a minute to tokenise, and the runs of a sweep share the text. The key is
the content of the text, the tokenizer and the length. A :class:`CorpusReport` counts what is left out or noteworthy.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import ParameterError
from dystress_text.files.places import cache_error, cache_root
from dystress_text.files.text_lines import CorpusReport
from dystress_text.files.whole import sha256_of, whole_folder
from dystress_text.simcse.crops import Crops
from dystress_text.simcse.texts import TrainingText

FORMAT = 9  # version of the cache; raise it with the layout of the files or the reading of a text
TOKENS, OFFSETS, REPORT = "tokens.bin", "offsets.npy", "report.json"
CHUNK = 4_000_000  # characters read at a time, where a sample has 200 more than it has


@dataclass(eq=False)
class TokenizedCorpus:
    """Samples of one or several sentences as token ids, special tokens included.

    Attributes:
        tokens: (total,) ids of all sentences, one after another.
        offsets: (samples * columns + 1,) the start of each sentence.
        report: of reading the text.
        identity: checksums of the text and of the tokenizer.
        columns: sentences per sample.
        chosen: the numbers of the samples that count, which are numbered anew from 0; None for all.
    """

    tokens: NDArray[np.integer]
    offsets: NDArray[np.int64]
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

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> dict[str, Tensor]:
        """The sentences of samples (n,): the first column of all samples, then the second, and so on.

        The same at each ``step``; of a :class:`CroppedCorpus` others.

        Returns:
            ``token_ids`` (tokens,), sentence after sentence, and ``attention_mask`` (n * columns, longest), 1 where a
            sentence has a token; int64.
        """
        sentences = (self.numbers(samples) * self.columns + np.arange(self.columns)[:, None]).ravel()
        starts = self.offsets[sentences]
        lengths = self.offsets[sentences + 1] - starts  # (n * columns,)
        mask = np.arange(lengths.max()) < lengths[:, None]  # (n * columns, longest)
        places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        return {
            "token_ids": torch.from_numpy(self.tokens[places].astype(np.int64)),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        }

    def distinct(self) -> TokenizedCorpus:
        """Of samples with the same tokens the first alone."""
        bounds, first = self.offsets[:: self.columns].tolist(), dict[bytes, int]()
        for sample, (start, end) in enumerate(pairwise(bounds)):
            lengths = self.offsets[sample * self.columns : (sample + 1) * self.columns] - start
            row = lengths.tobytes() + self.tokens[start:end].tobytes()
            first.setdefault(hashlib.blake2b(row, digest_size=16).digest(), sample)
        return replace(self, chosen=np.fromiter(first.values(), np.int64))


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

    def batch(self, samples: NDArray[np.int64], step: int = 0) -> dict[str, Tensor]:
        """The first crops of samples (n,), then the second ones, as :meth:`TokenizedCorpus.batch` has them."""
        views = [self.crops.views(self._text(i), step, i) for i in self.numbers(samples).tolist()]
        rows = self.backend.encode_batch_fast([views[i][k] for k in (0, 1) for i in range(len(views))])
        ids = [torch.tensor(row.ids or [self.padding]) for row in rows]
        lengths = torch.tensor([len(row) for row in ids])  # (2 n,)
        mask = torch.arange(int(lengths.max())) < lengths[:, None]  # (2 n, longest)
        return {"token_ids": torch.cat(ids), "attention_mask": mask.long()}

    def _text(self, sample: int) -> str:
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
    padding = tokenizer.pad_token_id
    read = _tokens(backend, report, padding) if crops is None else _bytes(crops, report)
    width = "B" if crops is not None else "H" if len(tokenizer) <= 2**16 else "I"
    key = f"{FORMAT} {most} {identity} {padding} {report.documents} {crops and (crops.min_words, crops.sentences)}"
    folder = Path(cache_dir or cache_root()) / "corpus" / _hash(key)

    def opened() -> TokenizedCorpus:
        corpus = _open_cached(folder, identity, text.columns)
        return corpus if crops is None else CroppedCorpus(**vars(corpus), crops=crops, backend=backend, padding=padding)

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):  # another run may be reading the same text
            if folder.is_dir():
                try:
                    return opened()
                except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                    warnings.warn(f"the corpus cache {str(folder)!r} is damaged ({error}) and made again", stacklevel=2)
            with whole_folder(folder) as staging:
                bar = progress_bar(text.sentences(report, most), desc="reading", unit=" samples", total=most)
                _write(bar, read, width, staging, report)
                if report.sentences == 0 or report.over_long + report.invalid_utf8 + report.nul > report.sentences:
                    raise ParameterError(
                        "train_file",
                        f"{text.name!r} is no text in UTF-8 with a sentence a line: {report.summary()}",
                    )
                if report.short == report.sentences:
                    raise ParameterError("views", f"{text.name!r} has nothing to crop: {report.summary()}")
            return opened()
    except OSError as error:
        raise cache_error(folder.parent, error) from error


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


Read = Callable[[list[str]], Iterator[Sequence[int]]]


def _tokens(backend: Tokenizer, report: CorpusReport, padding: int) -> Read:
    """Token ids of samples, ``padding`` for one without a token; counts those that are cut."""

    def read(samples: list[str]) -> Iterator[Sequence[int]]:
        for encoding in backend.encode_batch_fast(samples):
            report.truncated += bool(encoding.overflowing)
            yield encoding.ids or [padding]

    return read


def _bytes(crops: Crops, report: CorpusReport) -> Read:
    """Samples in UTF-8; counts those that are too short to be cropped."""

    def read(samples: list[str]) -> Iterator[Sequence[int]]:
        for sample in samples:
            report.short += crops.too_short(sample)
            yield sample.encode()

    return read


def _write(sentences: Iterable[str], read: Read, width: str, folder: Path, report: CorpusReport) -> None:
    """Write the files of the cache; ``width`` is the type of ``array`` of what is read."""
    offsets, remaining = array("q", [0]), iter(sentences)
    with (folder / TOKENS).open("wb") as sink:
        while chunk := list(_chunk(remaining)):
            for row in read(chunk):
                sink.write(array(width, row))
                offsets.append(offsets[-1] + len(row))
    np.save(folder / OFFSETS, np.frombuffer(offsets, dtype=np.int64))
    checksums = {name: sha256_of(folder / name) for name in (TOKENS, OFFSETS)}
    stored = {"dtype": np.dtype(width).name, "checksums": checksums, "report": asdict(report)}
    (folder / REPORT).write_text(json.dumps(stored, indent=1))


def _chunk(samples: Iterator[str]) -> Iterator[str]:
    size = 0
    for sample in samples:
        yield sample
        if (size := size + 200 + len(sample)) >= CHUNK:
            break


def _open_cached(folder: Path, identity: str, columns: int) -> TokenizedCorpus:
    stored = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    if stored["checksums"] != {name: sha256_of(folder / name) for name in (TOKENS, OFFSETS)}:
        raise ValueError("a file is not what was written")
    tokens = np.memmap(folder / TOKENS, dtype=stored["dtype"], mode="r")
    offsets = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)
    return TokenizedCorpus(tokens, offsets, CorpusReport(**stored["report"]), identity, columns)
