"""Training sentences, tokenised once and memory-mapped.

The tokens stay in the cache: Wiki1M takes half a minute to tokenise, and the runs of a sweep share the text. The key is
the content of the text, the tokenizer and the length. A :class:`CorpusReport` counts what is left out or noteworthy.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise
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
from dystress_text.simcse.training_text import TrainingText

FORMAT = 5  # version of the cache; raise it with the layout of the files or the reading of a text
TOKENS, OFFSETS, REPORT = "tokens.bin", "offsets.npy", "report.json"
CHUNK = 20_000  # sentences tokenised at a time


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

    def batch(self, samples: NDArray[np.int64]) -> dict[str, Tensor]:
        """The sentences of samples (n,): the first column of all samples, then the second, and so on.

        Returns:
            ``token_ids`` (tokens,), sentence after sentence, and ``attention_mask`` (n * columns, longest), 1 where a
            sentence has a token; int64.
        """
        samples = samples if self.chosen is None else self.chosen[samples]
        sentences = (samples * self.columns + np.arange(self.columns)[:, None]).ravel()
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


def load_corpus(
    text: TrainingText,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    max_samples: int | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = True,
) -> TokenizedCorpus:
    """The tokens of a training text, from the cache if it has them.

    Args:
        text: the source of the sentences.
        tokenizer: a tokenizer with a ``tokenizers`` backend.
        max_seq_length: most tokens of a sentence, special tokens included.
        max_samples: use only the first so many samples.
        cache_dir: the folder of caches; None is :func:`cache_root`.
        progress: show a progress bar while tokenising.
    """
    if not tokenizer.is_fast:
        raise ParameterError("model_name_or_path", f"{type(tokenizer).__name__} has no fast (tokenizers) form")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.enable_truncation(max_seq_length)
    backend.no_padding()
    report = CorpusReport(sha256=text.checksum())
    identity = f"{report.sha256}, tokenizer {_hash(backend.to_str())}"
    most = None if max_samples is None else max_samples * text.columns
    folder = Path(cache_dir or cache_root()) / "corpus" / _hash(f"{FORMAT} {most} {identity}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):  # another run may be tokenising the same text
            if folder.is_dir():
                try:
                    return _open_cached(folder, identity, text.columns)
                except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                    warnings.warn(f"the corpus cache {str(folder)!r} is damaged ({error}) and made again", stacklevel=2)
            with whole_folder(folder) as staging:
                sentences = text.sentences(report, most)
                bar = progress_bar(sentences, progress, desc="tokenising", unit=" sentences", total=most)
                _write(bar, backend, "H" if len(tokenizer) <= 2**16 else "I", staging, report)
                if report.sentences == 0:
                    raise ParameterError("train_file", f"no usable sentence in {text.name!r} ({report.summary()})")
            return _open_cached(folder, identity, text.columns)
    except OSError as error:
        raise cache_error(folder.parent, error) from error


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _write(sentences: Iterable[str], backend: Tokenizer, width: str, folder: Path, report: CorpusReport) -> None:
    """Write the files of the cache; ``width`` is the type of ``array`` of the ids."""
    offsets, remaining = array("q", [0]), iter(sentences)
    with (folder / TOKENS).open("wb") as sink:
        while chunk := list(islice(remaining, CHUNK)):
            for encoding in backend.encode_batch_fast(chunk):
                sink.write(array(width, encoding.ids))
                offsets.append(offsets[-1] + len(encoding.ids))
                report.truncated += bool(encoding.overflowing)
    np.save(folder / OFFSETS, np.frombuffer(offsets, dtype=np.int64))
    checksums = {name: sha256_of(folder / name) for name in (TOKENS, OFFSETS)}
    stored = {"dtype": np.dtype(width).name, "checksums": checksums, "report": asdict(report)}
    (folder / REPORT).write_text(json.dumps(stored, indent=1))


def _open_cached(folder: Path, identity: str, columns: int) -> TokenizedCorpus:
    stored = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    if stored["checksums"] != {name: sha256_of(folder / name) for name in (TOKENS, OFFSETS)}:
        raise ValueError("a file is not what was written")
    tokens = np.memmap(folder / TOKENS, dtype=stored["dtype"], mode="r")
    offsets = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)
    return TokenizedCorpus(tokens, offsets, CorpusReport(**stored["report"]), identity, columns)
