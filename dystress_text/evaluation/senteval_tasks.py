"""The tasks: their files in SentEval's ``downstream`` layout, their sizes, and how they are read.

``STS_TASKS`` and ``TRANSFER_TASKS`` are SentEval's, in the column order of the published tables. The ``MINI_`` ones are
small sets of the same kinds, written for this project, which come with the checkout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.sts import STS_SUBSETS, StsPairs, read_lines, read_sick, read_sts_benchmark, read_sts_year
from dystress_text.files.whole import sha256_of

TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


@dataclass(frozen=True)
class Labelled:
    """Texts with classes, in the protocol's order.

    Attributes:
        columns: the sentences; two columns where a text is a pair.
        labels: (texts,) classes from 0.
    """

    columns: tuple[tuple[str, ...], ...]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class StsTask:
    """A similarity task.

    Attributes:
        name: as tables print it.
        files: what it reads, relative to the data folder.
        count: pairs with a score.
        reader: from the data folder to pairs by subset.
    """

    name: str
    files: tuple[str, ...]
    count: int
    reader: Callable[[Path], dict[str, StsPairs]]

    def read(self, folder: Path) -> dict[str, StsPairs]:
        """The pairs by subset.

        Raises:
            DataError: a file is missing, damaged or of another length.
        """
        subsets = self.reader(folder)
        _check_count(self.name, "pairs", sum(len(pairs) for pairs in subsets.values()), self.count, folder, self.files)
        return subsets


@dataclass(frozen=True)
class TransferTask:
    """A classification task.

    Attributes:
        name: as tables print it.
        files: what it reads, relative to the data folder.
        counts: texts by split.
        scheme: ``folds`` (nested cross-validation), ``dev`` (l2 chosen on a dev split) or ``test`` (l2 chosen by folds
            of the training split).
        classes: their number.
        reader: from the data folder to the splits.
    """

    name: str
    files: tuple[str, ...]
    counts: Mapping[str, int]
    scheme: Literal["folds", "dev", "test"]
    classes: int
    reader: Callable[[Path], dict[str, Labelled]]

    def read(self, folder: Path) -> dict[str, Labelled]:
        """The splits, each in the protocol's order.

        Raises:
            DataError: a file is missing, damaged or of another length.
        """
        splits = self.reader(folder)
        for split, count in self.counts.items():
            _check_count(self.name, f"texts in {split!r}", len(splits[split]), count, folder, self.files)
        return splits


Task = StsTask | TransferTask


class SplitReader(Protocol):
    """Reads a task with a file for each split."""

    def __call__(self, folder: Path, files: Mapping[str, str]) -> dict[str, Labelled]:
        """Splits by name, from files by name."""


def checksums(task: Task, folder: Path) -> dict[str, str]:
    """sha256 of each of the task's files."""
    return {name: sha256_of(folder / name) for name in task.files}


def _check_count(name: str, what: str, found: int, expected: int, folder: Path, files: Sequence[str]) -> None:
    if found != expected:
        raise DataError(
            f"{name} has {found:,} {what}, {expected:,} expected: {folder / files[0]} or a file beside it is damaged"
        )


# ---- readers -------------------------------------------------------------------------------------------------------


def _sts_year(folder: Path, name: str) -> dict[str, StsPairs]:
    return read_sts_year(folder / "STS" / f"{name}-en-test", name)


def _one_set(folder: Path, name: str, file: str, reader: Callable[[Path, str], StsPairs]) -> dict[str, StsPairs]:
    return {"test": reader(folder / file, name)}


def _two_classes(folder: Path, positive: str, negative: str) -> dict[str, Labelled]:
    """One text a line, Latin-1, a file for each class."""
    texts = [_clean(line) for file in (positive, negative) for line in read_lines(folder / file, "latin-1")]
    ones = len(read_lines(folder / positive, "latin-1"))
    return {"all": _ordered([texts], [1] * ones + [0] * (len(texts) - ones))}


def _sst(folder: Path, files: Mapping[str, str]) -> dict[str, Labelled]:
    """Text, tab, 0 or 1."""
    splits = {}
    for split, file in files.items():
        rows = [_columns(line, folder / file, number, 2) for number, line in enumerate(read_lines(folder / file), 1)]
        labels = [_class_of(row[1], ("0", "1"), folder / file, number) for number, row in enumerate(rows, 1)]
        splits[split] = _ordered([[_clean(row[0]) for row in rows]], labels)
    return splits


def _trec(folder: Path, files: Mapping[str, str]) -> dict[str, Labelled]:
    """``COARSE:fine text``, Latin-1."""
    splits = {}
    for split, file in files.items():
        texts, labels = [], []
        for number, line in enumerate(read_lines(folder / file, "latin-1"), 1):
            label, _, text = line.partition(" ")
            labels.append(_class_of(label.partition(":")[0], TREC_CLASSES, folder / file, number))
            texts.append(_clean(text))
        splits[split] = _ordered([texts], labels)
    return splits


def _mrpc(folder: Path, files: Mapping[str, str]) -> dict[str, Labelled]:
    """Tabs and a header: label in column 1, texts in columns 4 and 5."""
    splits = {}
    for split, file in files.items():
        lines = read_lines(folder / file)[1:]
        rows = [_columns(line, folder / file, number, 5) for number, line in enumerate(lines, 2)]
        labels = [_class_of(row[0], ("0", "1"), folder / file, number) for number, row in enumerate(rows, 2)]
        splits[split] = _ordered([[_clean(row[3]) for row in rows], [_clean(row[4]) for row in rows]], labels)
    return splits


def _clean(text: str) -> str:
    return " ".join(text.split())


def _columns(line: str, path: Path, number: int, count: int) -> list[str]:
    columns = line.split("\t")
    if len(columns) < count:
        raise DataError(f"{path}, line {number}: {count} tab-separated columns expected, {len(columns)} found")
    return columns


def _class_of(label: str, known: Sequence[str], path: Path, number: int) -> int:
    if label.strip() not in known:
        raise DataError(f"{path}, line {number}: {label!r} is none of the classes {', '.join(known)}")
    return known.index(label.strip())


def _ordered(columns: Sequence[Sequence[str]], labels: Sequence[int]) -> Labelled:
    """Sorted by (token counts, label), equal ones in the order of the file."""

    def key(i: int) -> tuple[int, ...]:
        return (*(len(column[i].split()) for column in columns), labels[i])

    order = sorted(range(len(labels)), key=key)
    return Labelled(
        tuple(tuple(column[i] for i in order) for column in columns), np.array([labels[i] for i in order], np.int64)
    )


# ---- tables --------------------------------------------------------------------------------------------------------


def _year(name: str, count: int) -> StsTask:
    files = [f"STS/{name}-en-test/STS.{kind}.{subset}.txt" for subset in STS_SUBSETS[name] for kind in ("input", "gs")]
    return StsTask(name, tuple(files), count, partial(_sts_year, name=name))


def _set(name: str, file: str, count: int, reader: Callable[[Path, str], StsPairs]) -> StsTask:
    return StsTask(name, (file,), count, partial(_one_set, name=name, file=file, reader=reader))


def _folds(name: str, positive: str, negative: str, count: int) -> TransferTask:
    reader = partial(_two_classes, positive=positive, negative=negative)
    return TransferTask(name, (positive, negative), {"all": count}, "folds", 2, reader)


def _splits(
    name: str,
    scheme: Literal["dev", "test"],
    classes: int,
    reader: SplitReader,
    **files: tuple[str, int],
) -> TransferTask:
    paths = {split: file for split, (file, _) in files.items()}
    counts = {split: count for split, (_, count) in files.items()}
    return TransferTask(name, tuple(paths.values()), counts, scheme, classes, partial(reader, files=paths))


STS_TASKS = (
    _year("STS12", 3108),
    _year("STS13", 1500),
    _year("STS14", 3750),
    _year("STS15", 3000),
    _year("STS16", 1186),
    _set("STS-B", "STS/STSBenchmark/sts-test.csv", 1379, read_sts_benchmark),
    _set("SICK-R", "SICK/SICK_test_annotated.txt", 4927, read_sick),
)
TRANSFER_TASKS = (
    _folds("MR", "MR/rt-polarity.pos", "MR/rt-polarity.neg", 5331 + 5331),
    _folds("CR", "CR/custrev.pos", "CR/custrev.neg", 2407 + 1368),
    _folds("SUBJ", "SUBJ/subj.objective", "SUBJ/subj.subjective", 5000 + 5000),
    _folds("MPQA", "MPQA/mpqa.pos", "MPQA/mpqa.neg", 3312 + 7294),
    _splits(
        "SST2", "dev", 2, _sst,
        train=("SST/binary/sentiment-train", 67349), dev=("SST/binary/sentiment-dev", 872),
        test=("SST/binary/sentiment-test", 1821),
    ),
    _splits("TREC", "test", 6, _trec, train=("TREC/train_5500.label", 5452), test=("TREC/TREC_10.label", 500)),
    _splits(
        "MRPC", "test", 2, _mrpc,
        train=("MRPC/msr_paraphrase_train.txt", 4076), test=("MRPC/msr_paraphrase_test.txt", 1725),
    ),
)  # fmt: skip
MINI_STS_TASKS = (_set("MiniSTS", "STS/MiniSTS/mini-sts.csv", 526, read_sts_benchmark),)
MINI_TRANSFER_TASKS = (
    _folds("MiniSentiment", "MiniSentiment/sentiment.pos", "MiniSentiment/sentiment.neg", 260),
    _folds("MiniSubjectivity", "MiniSubjectivity/subj.objective", "MiniSubjectivity/subj.subjective", 260),
    _splits(
        "MiniQuestions", "test", 6, _trec,
        train=("MiniQuestions/train.label", 228), test=("MiniQuestions/test.label", 66),
    ),
    _splits(
        "MiniParaphrase", "test", 2, _mrpc,
        train=("MiniParaphrase/paraphrase_train.txt", 220), test=("MiniParaphrase/paraphrase_test.txt", 90),
    ),
)  # fmt: skip
SUITES: dict[str, dict[str, tuple[Task, ...]]] = {
    "senteval": {"sts": STS_TASKS, "transfer": TRANSFER_TASKS},
    "mini": {"sts": MINI_STS_TASKS, "transfer": MINI_TRANSFER_TASKS},
}


def choose(suite: str, names: Sequence[str]) -> dict[str, list[Task]]:
    """Tasks by group, in table order, from names of tasks and groups (``sts``, ``transfer``, ``all``).

    Raises:
        UserError: an unknown name; the message lists the known ones.
    """
    groups = SUITES[suite]
    known = ["all", *groups, *(task.name for tasks in groups.values() for task in tasks)]
    for name in names:
        if name not in known:
            raise UserError(f"--tasks: no {name!r} in suite {suite!r}; known are {', '.join(known)}")
    chosen = {
        group: [task for task in tasks if {"all", group, task.name} & set(names)] for group, tasks in groups.items()
    }
    return {group: tasks for group, tasks in chosen.items() if tasks}
