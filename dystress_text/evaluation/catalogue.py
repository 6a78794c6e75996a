"""The catalogue of evaluation sets: SentEval's tasks, the small sets of this project, and the sets that training knows.

To add an STS set, add a line to ``STS_SETS``: ``--eval_set`` of the training program knows it then. The published
tables have the tasks of ``SUITES`` as columns, in this order.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dystress_text.errors import DataError, ParameterError, UserError
from dystress_text.evaluation.readers import (
    STS_SUBSETS,
    Labelled,
    StsPairs,
    concatenate,
    read_mrpc,
    read_sick,
    read_sst,
    read_sts_benchmark,
    read_sts_year,
    read_trec,
    read_two_classes,
)
from dystress_text.files.hub import published_file
from dystress_text.files.places import EMBEDDED, cache_root, data_root
from dystress_text.files.whole import whole_file

STSB_DEV = Path("STS") / "STSBenchmark" / "sts-dev.csv"

SENTEVAL_NAMES = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}  # SentEval's names where ours differ

Row = dict[str, float | None]  # the figures of a table's row by task; None where a task gave none


@dataclass(frozen=True)
class StsTask:
    """A set of scored pairs.

    Attributes:
        name: the column of the published tables.
        title: the set's name while training, from which its metrics have their names.
        files: what it reads, relative to SentEval's ``downstream`` folder.
        count: pairs with a score.
        reader: reads the pairs by subset from that folder.
    """

    name: str
    title: str
    files: tuple[str, ...]
    count: int
    reader: Callable[[Path], dict[str, StsPairs]]

    def read(self, folder: Path) -> dict[str, StsPairs]:
        """The pairs by subset; a file of another length is refused, as a missing or damaged one is."""
        subsets = self.reader(folder)
        _check_count(self, "pairs", sum(map(len, subsets.values())), self.count, folder)
        return subsets

    def pairs(self, folder: Path) -> StsPairs:
        """All pairs as one set, however many there are."""
        return concatenate(self.title, list(self.reader(folder).values()))


@dataclass(frozen=True)
class TransferTask:
    """A classification task.

    Attributes:
        name: the column of the published tables.
        files: what it reads, relative to SentEval's ``downstream`` folder.
        counts: texts by split.
        scheme: ``folds`` (nested cross-validation), ``dev`` (l2 chosen on a dev split) or ``test`` (l2 chosen by folds
            of the training split).
        classes: their number.
        reader: reads the splits from that folder.
    """

    name: str
    files: tuple[str, ...]
    counts: Mapping[str, int]
    scheme: Literal["folds", "dev", "test"]
    classes: int
    reader: Callable[[Path], dict[str, Labelled]]

    def read(self, folder: Path) -> dict[str, Labelled]:
        """The splits, each sorted as the protocol asks; a file of another length is refused."""
        splits = self.reader(folder)
        for split, count in self.counts.items():
            _check_count(self, f"texts in {split!r}", len(splits[split]), count, folder)
        return splits


Task = StsTask | TransferTask


def _check_count(task: Task, what: str, found: int, expected: int, folder: Path) -> None:
    if found != expected:
        raise DataError(
            f"{task.name} has {found:,} {what}, {expected:,} expected: {folder / task.files[0]} or another file of it "
            "is damaged"
        )


# ---- the tables ------------------------------------------------------------------------------------------------------


def _year(name: str, count: int) -> StsTask:
    place = f"STS/{name}-en-test"
    files = tuple(f"{place}/STS.{kind}.{subset}.txt" for subset in STS_SUBSETS[name] for kind in ("input", "gs"))
    return StsTask(name, name, files, count, lambda folder: read_sts_year(folder / place, name))


def _set(name: str, title: str, file: str, count: int, reader: Callable[[Path, str], StsPairs]) -> StsTask:
    return StsTask(name, title, (file,), count, lambda folder: {"test": reader(folder / file, title)})


def _folds(name: str, positive: str, negative: str, count: int) -> TransferTask:
    def read(folder: Path) -> dict[str, Labelled]:
        return {"all": read_two_classes(folder / positive, folder / negative)}

    return TransferTask(name, (positive, negative), {"all": count}, "folds", 2, read)


def _splits(
    name: str,
    scheme: Literal["dev", "test"],
    classes: int,
    reader: Callable[[Path], Labelled],
    **files: tuple[str, int],
) -> TransferTask:
    def read(folder: Path) -> dict[str, Labelled]:
        return {split: reader(folder / file) for split, (file, _) in files.items()}

    counts = {split: count for split, (_, count) in files.items()}
    return TransferTask(name, tuple(file for file, _ in files.values()), counts, scheme, classes, read)


_STSB, _SICK = "STS/STSBenchmark", "SICK"
STS_SETS = {  # by the names that --eval_set knows
    "stsb_dev": _set("STS-B dev", "STS-B dev", str(STSB_DEV), 1500, read_sts_benchmark),
    "mini_sts": _set("MiniSTS", "mini-STS", "STS/MiniSTS/mini-sts.csv", 526, read_sts_benchmark),
    "sickr_dev": _set("SICK-R dev", "SICK-R dev", f"{_SICK}/SICK_trial.txt", 500, read_sick),
    "sts12": _year("STS12", 3108),
    "sts13": _year("STS13", 1500),
    "sts14": _year("STS14", 3750),
    "sts15": _year("STS15", 3000),
    "sts16": _year("STS16", 1186),
    "stsb_test": _set("STS-B", "STS-B test", f"{_STSB}/sts-test.csv", 1379, read_sts_benchmark),
    "sickr_test": _set("SICK-R", "SICK-R test", f"{_SICK}/SICK_test_annotated.txt", 4927, read_sick),
}
STS_TASKS = tuple(STS_SETS[name] for name in ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb_test", "sickr_test"))
TRANSFER_TASKS = (
    _folds("MR", "MR/rt-polarity.pos", "MR/rt-polarity.neg", 5331 + 5331),
    _folds("CR", "CR/custrev.pos", "CR/custrev.neg", 2407 + 1368),
    _folds("SUBJ", "SUBJ/subj.objective", "SUBJ/subj.subjective", 5000 + 5000),
    _folds("MPQA", "MPQA/mpqa.pos", "MPQA/mpqa.neg", 3312 + 7294),
    _splits(
        "SST2", "dev", 2, read_sst,
        train=("SST/binary/sentiment-train", 67349), dev=("SST/binary/sentiment-dev", 872),
        test=("SST/binary/sentiment-test", 1821),
    ),
    _splits("TREC", "test", 6, read_trec, train=("TREC/train_5500.label", 5452), test=("TREC/TREC_10.label", 500)),
    _splits(
        "MRPC", "test", 2, read_mrpc,
        train=("MRPC/msr_paraphrase_train.txt", 4076), test=("MRPC/msr_paraphrase_test.txt", 1725),
    ),
)  # fmt: skip
MINI_TRANSFER_TASKS = (
    _folds("MiniSentiment", "MiniSentiment/sentiment.pos", "MiniSentiment/sentiment.neg", 260),
    _folds("MiniSubjectivity", "MiniSubjectivity/subj.objective", "MiniSubjectivity/subj.subjective", 260),
    _splits(
        "MiniQuestions", "test", 6, read_trec,
        train=("MiniQuestions/train.label", 228), test=("MiniQuestions/test.label", 66),
    ),
    _splits(
        "MiniParaphrase", "test", 2, read_mrpc,
        train=("MiniParaphrase/paraphrase_train.txt", 220), test=("MiniParaphrase/paraphrase_test.txt", 90),
    ),
)  # fmt: skip
SUITES: dict[str, dict[str, tuple[Task, ...]]] = {
    "senteval": {"sts": STS_TASKS, "transfer": TRANSFER_TASKS},
    "mini": {"sts": (STS_SETS["mini_sts"],), "transfer": MINI_TRANSFER_TASKS},
}
GROUPS = {"sts": "STS, Spearman x 100", "transfer": "Transfer, accuracy x 100"}
TASKS = {group: tuple(task.name for task in tasks) for group, tasks in SUITES["senteval"].items()}


def average(row: Mapping[str, float | None]) -> float | None:
    """The mean of the rounded figures, as the published averages are made; None if one is missing."""
    figures = [figure for figure in row.values() if figure is not None]
    return round(sum(figures) / len(figures), 2) if figures and len(figures) == len(row) else None


# ---- where they lie, and what is chosen of them ----------------------------------------------------------------------


def suite_folder(suite: str, data_dir: str | Path | None = None) -> Path:
    """The folder of a suite's files, in SentEval's ``downstream`` layout.

    Args:
        suite: ``senteval``, or ``mini`` for the small sets that come with the package.
        data_dir: where prepared data lie; None for the usual place.
    """
    return EMBEDDED / "senteval" if suite == "mini" else data_root(data_dir) / "senteval"


def own_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of tasks as they are here, where some are SentEval's; each once."""
    return tuple(dict.fromkeys(SENTEVAL_NAMES.get(name, name) for name in names))


def choose(suite: str, names: Sequence[str]) -> dict[str, list[Task]]:
    """Tasks by group, in table order, from names of tasks and groups (``sts``, ``transfer``, ``all``)."""
    groups = SUITES[suite]
    known = ["all", *groups, *(task.name for tasks in groups.values() for task in tasks)]
    names = own_names(names)
    for name in names:
        if name not in known:
            raise ParameterError("tasks", f"no {name!r} in suite {suite!r}; known are {', '.join(known)}")
    chosen = {
        group: [task for task in tasks if {"all", group, task.name} & set(names)] for group, tasks in groups.items()
    }
    return {group: tasks for group, tasks in chosen.items() if tasks}


def choose_transfer(names: Sequence[str], data_dir: str | Path | None = None) -> list[tuple[TransferTask, Path]]:
    """Transfer tasks and their data folders, from names of tasks; ``all`` alone is SentEval's seven."""
    groups = {"senteval": TRANSFER_TASKS, "mini": MINI_TRANSFER_TASKS}
    known = {task.name: (task, suite_folder(suite, data_dir)) for suite, tasks in groups.items() for task in tasks}
    chosen = []
    for name in TASKS["transfer"] if list(names) == ["all"] else own_names(names):
        if name not in known:
            raise ParameterError("eval_transfer", f"no task {name!r}; known are all, or some of {', '.join(known)}")
        task, folder = known[name]
        if not all((folder / file).is_file() for file in task.files):
            raise ParameterError(
                "eval_transfer", f"no files of {name} in {folder}; prepare them (dystress prepare senteval)"
            )
        chosen.append((task, folder))
    return chosen


PREPARED_SETS = tuple(name for name in STS_SETS if name != "mini_sts")
EVAL_SETS = ("stsb_dev", "mini_sts", "none", *list(STS_SETS)[2:])


def eval_pairs(name: str, data_dir: str | Path | None = None) -> StsPairs | None:
    """The pairs of a set that training evaluates on, of all its subsets together; None for ``none``.

    Without a file of it STS-B's dev set is taken from the hub.

    Args:
        name: one of :data:`EVAL_SETS`.
        data_dir: where prepared data lie; None for the usual place.
    """
    if name == "none":
        return None
    if name not in STS_SETS:
        raise ParameterError("eval_set", f"unknown set {name!r}; known are {', '.join(EVAL_SETS)}")
    task, folder = STS_SETS[name], suite_folder("mini" if name == "mini_sts" else "senteval", data_dir)
    if name == "stsb_dev" and not (folder / STSB_DEV).exists():
        from_hub = published_file(
            "senteval.tar",
            _stsb_dev_of,
            f"no STS-B dev set: {folder / STSB_DEV} does not exist. Three ways on: prepare the data (dystress prepare "
            "senteval), evaluate on mini_sts or none, or take the preset quickstart",
        )
        return read_sts_benchmark(from_hub, task.title)
    try:
        return task.pairs(folder)
    except DataError as error:
        raise ParameterError("eval_set", f"no {name}: {error}; prepare the data (dystress prepare senteval)") from error


def _stsb_dev_of(archive: str) -> Path:
    """Copy the STS-B dev file out of SentEval's archive into the cache; nothing else is unpacked."""
    target = cache_root() / "stsb" / STSB_DEV.name
    with tarfile.open(archive) as tar:
        for member in tar:
            if Path(member.name).parts[-3:] == STSB_DEV.parts and (content := tar.extractfile(member)):
                target.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(target, "wb") as copy:
                    copy.write(content.read())
                return target
    raise UserError(f"{archive} does not hold {STSB_DEV}")
