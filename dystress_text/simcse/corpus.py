"""Training text: where it comes from, and its sentences tokenised once and memory-mapped.

A text is a file with one sentence a line, a column of a table, or rows of a table. Its tokens stay in the cache: Wiki1M
takes half a minute to tokenise, and the runs of a sweep share the text. The key is the content of the text, the
tokenizer and the length. A :class:`CorpusReport` counts what is left out or noteworthy.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import ParameterError
from dystress_text.files.hub import published_file
from dystress_text.files.places import cache_error, cache_root, data_root
from dystress_text.files.tables import ENDINGS, is_table, load_table
from dystress_text.files.text_lines import MAX_LINE_BYTES, UNPACK_ERRORS, CorpusReport, open_text, read_sentences
from dystress_text.files.whole import sha256_of, whole_folder
from dystress_text.simcse.quickstart import write_documentation_corpus
from dystress_text.simcse.settings import TextSettings

if TYPE_CHECKING:
    from datasets import Dataset

WIKI1M = "wiki1m_for_simcse.txt"
TEXT_COLUMNS = ("text", "sentence", "sent0")  # tried in this order if no column is named
HARD_NEGATIVES = "hard_neg"  # a column of SimCSE's NLI file, whose rows are not single sentences

FORMAT = 6  # version of the cache; raise it with the layout of the files or the reading of a text
TOKENS, OFFSETS, REPORT = "tokens.bin", "offsets.npy", "report.json"
CHUNK = 20_000  # sentences tokenised at a time


@dataclass(frozen=True)
class TextFile:
    """A text file, plain or compressed, with one sentence a line."""

    path: Path
    columns = 1

    @property
    def name(self) -> str:
        return str(self.path)

    def checksum(self) -> str:
        """The SHA-256 of the file."""
        with self._readable():
            return sha256_of(self.path)

    def sentences(self, report: CorpusReport, most: int | None) -> Iterator[str]:
        """At most ``most`` sentences; see :func:`read_sentences`."""
        with self._readable(), open_text(self.path) as stream:
            yield from read_sentences(stream, report, most)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, *UNPACK_ERRORS) as error:
            reason = getattr(error, "strerror", None) or error
            raise ParameterError("train_file", f"cannot read {self.name!r}: {reason}") from error


@dataclass(frozen=True)
class TableText:
    """Columns of a table as a training text, row after row; line feeds within a cell become spaces.

    Attributes:
        name: of the file, or of the data set on the hub.
        rows: the table, with only these columns; with one column its empty cells are left out, with several refused.
    """

    name: str
    rows: Dataset

    @property
    def columns(self) -> int:
        """Sentences a sample."""
        return len(self.rows.column_names)

    def checksum(self) -> str:
        """The SHA-256 of all cells, each a line."""
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(line)
        return digest.hexdigest()

    def sentences(self, report: CorpusReport, most: int | None) -> Iterator[str]:
        """At most ``most`` sentences, row after row; see :func:`read_sentences`."""
        yield from read_sentences(self._lines(), report, most)

    def _lines(self) -> Iterator[bytes]:
        """The cells in UTF-8, each with a line feed at its end."""
        names, row = self.rows.column_names, 0
        for batch in self.rows.iter(batch_size=1000):  # many times faster than row after row
            for cells in zip(*(batch[name] for name in names), strict=True):
                row += 1
                for name, cell in zip(names, cells, strict=True):
                    try:
                        yield self._line("" if cell is None else cell)
                    except (TypeError, ValueError) as error:  # UnicodeError too: half a surrogate pair
                        where = f"row {row} of {self.name!r}, column {name!r}"
                        raise ParameterError("train_file", f"{where} is not a text to train on: {error}") from error

    def _line(self, cell: Any) -> bytes:
        line = re.sub(r"\r\n?|\n", " ", cell).encode()
        if self.columns > 1 and (not line.strip() or len(line) > MAX_LINE_BYTES or b"\0" in line):
            raise ValueError("it is empty, too long, or has a NUL byte")  # one sentence less would shift all others
        return line + b"\n"


TrainingText = TextFile | TableText


def training_text(text: TextSettings) -> TrainingText:
    """The training text that the settings name."""
    name = text.train_file
    if text.supervised:
        if name is None or not is_table(name):
            known = ", ".join(ENDINGS)
            raise ParameterError("supervised", f"needs a table as train_file ({known}, or one on the hub)")
        return rows_of_table(name, text.text_columns, text.tsv_quoting)
    if name is None:
        return TextFile(wiki1m(text.data_dir))
    if name == "python-documentation":
        return TextFile(write_documentation_corpus())
    if is_table(name):
        return column_of_table(name, text.text_column, text.tsv_quoting)
    if text.text_column is not None:
        raise ParameterError("text_column", f"{name!r} is a text file without columns")
    if not Path(name).is_file():  # said before a model is loaded
        raise ParameterError("train_file", f"no file {name!r}")
    return TextFile(Path(name))


def column_of_table(train_file: str, column: str | None, tsv_quoting: bool | None = None) -> TableText:
    """A column of a table, each cell a sentence; without a name the only one, or one called text, sentence or sent0."""
    rows = load_table(train_file, tsv_quoting=tsv_quoting)
    known = rows.column_names
    if column is None and HARD_NEGATIVES in known:
        raise ParameterError(
            "train_file",
            f"{train_file!r} has hard negatives ({', '.join(known)}): add supervised, or name the sentences with "
            "text_column",
        )
    if column is None:
        column = next(iter(known if len(known) == 1 else [name for name in TEXT_COLUMNS if name in known]), None)
    if column is None or column not in known:
        raise ParameterError("text_column", f"{train_file!r} has the columns {', '.join(known)}; name one")
    return _text_of(train_file, rows, [column])


def rows_of_table(train_file: str, columns: Sequence[str] | None, tsv_quoting: bool | None = None) -> TableText:
    """Rows of a table: columns of anchor, positive and any number of hard negatives; without names all, in order."""
    rows = load_table(train_file, tsv_quoting=tsv_quoting)
    names, known = list(columns or rows.column_names), ", ".join(rows.column_names)
    if not set(names) <= set(rows.column_names):
        raise ParameterError("text_columns", f"{train_file!r} has the columns {known}; got {', '.join(names)}")
    if len(names) < 2 or len(set(names)) < len(names):
        raise ParameterError(
            "supervised",
            "a row is an anchor, a positive and any number of hard negatives, each in a column of its own; "
            f"{train_file!r} gives {', '.join(names)}",
        )
    return _text_of(train_file, rows, names)


def _text_of(train_file: str, rows: Dataset, columns: list[str]) -> TableText:
    for column in columns:  # in a .csv labels and scores are texts too
        if not any(not isinstance(cell, str) or re.search(r"[^\W\d_]", cell) for cell in rows[column]):
            raise ParameterError(
                "train_file", f"column {column!r} of {train_file!r} has no letter; name columns of sentences"
            )
    return TableText(train_file, rows.select_columns(columns))


def wiki1m(data_dir: str | Path | None = None) -> Path:
    """SimCSE's training text, one million Wikipedia sentences: the prepared file, else the hub's."""
    prepared = data_root(data_dir) / "wiki1m" / WIKI1M
    if prepared.is_file():
        return prepared
    return published_file(
        WIKI1M,
        Path,
        f"no training text: {prepared} does not exist. Three ways on: prepare the data (dystress prepare "
        "wiki1m); --train_file FILE with one sentence per line; or --preset quickstart, which needs no network",
    )


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
) -> TokenizedCorpus:
    """The tokens of a training text, from the cache if it has them.

    Args:
        text: the source of the sentences.
        tokenizer: a tokenizer with a ``tokenizers`` backend.
        max_seq_length: most tokens of a sentence, special tokens included.
        max_samples: use only the first so many samples.
        cache_dir: the folder of caches; None is :func:`cache_root`.
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
                bar = progress_bar(sentences, desc="tokenising", unit=" sentences", total=most)
                _write(bar, backend, "H" if len(tokenizer) <= 2**16 else "I", staging, report)
                if report.sentences == 0 or report.over_long + report.invalid_utf8 + report.nul > report.sentences:
                    raise ParameterError(
                        "train_file",
                        f"{text.name!r} is no text in UTF-8 with a sentence a line: {report.summary()}",
                    )
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
