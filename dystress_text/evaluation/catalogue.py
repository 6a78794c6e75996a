"""The catalogue of evaluation sets: SentEval's tasks and the small sets of this package.

To add a set to `eval_set`, add an entry to ``STS_SETS``. The published tables have a column for
each task of ``SUITES``, in this order.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from dystress_text.cli.options import check_names
from dystress_text.errors import DataError, ParameterError
from dystress_text.evaluation.text_sets import (
    Labelled,
    StsPairs,
    joined,
    read_mrpc,
    read_sick,
    read_sst,
    read_sts_benchmark,
    read_sts_subset,
    read_trec,
    read_two_classes,
)
from dystress_text.io.atomic import write_bytes
from dystress_text.io.hub import published_file
from dystress_text.io.paths import EMBEDDED, cache_root, data_root

STSB_DEV = Path("STS") / "STSBenchmark" / "sts-dev.csv"

FiguresByTask = dict[str, float | None]  # None for a task without a figure
Part = TypeVar("Part", StsPairs, Labelled)


@dataclass(frozen=True)
class _Task(Generic[Part]):
    """A task of SentEval: its name, and the files of its parts."""

    name: str  # as in the published tables
    reader: Callable[..., Part]  # of a part's files
    # by subset or split: number of pairs or texts, and files in SentEval's folder
    parts: Mapping[str, tuple[int, *tuple[str, ...]]]

    @property
    def files(self) -> list[str]:
        """All files, as paths relative to SentEval's ``downstream`` folder."""
        return [file for _, *files in self.parts.values() for file in files]

    def read(self, folder: Path, counted: bool = True) -> dict[str, Part]:
        """Read the parts from a ``downstream`` folder.

        Args:
            folder: the folder with the files.
            counted: whether to refuse parts that differ in length from the published ones.

        Raises:
            DataError: a file is missing, damaged or of another length.
        """
        parts = {}
        for part, (count, *files) in self.parts.items():
            parts[part] = self.reader(*(folder / file for file in files))
            if counted and len(parts[part]) != count:
                found = f"{len(parts[part]):,} rows in {part!r}, {count:,} expected"
                raise DataError(f"{self.name} has {found}: {folder / files[0]} is damaged")
        return parts


@dataclass(frozen=True)
class StsTask(_Task[StsPairs]):
    """A task of scored sentence pairs; its parts are subsets."""

    title: str  # its name in training, also within the names of metrics


@dataclass(frozen=True)
class TransferTask(_Task[Labelled]):
    """A classification task, by split: all (cross-validated), or train, test and perhaps dev."""

    classes: int = 2


Task = StsTask | TransferTask

# ---- the tables


def _year(name: str, counts: Mapping[str, int]) -> StsTask:
    """Return the STS task of a year; ``counts`` are the numbers of pairs in its subsets."""
    stem = f"STS/{name}-en-test/STS"
    parts = {}
    for subset, count in counts.items():
        parts[subset] = (count, f"{stem}.input.{subset}.txt", f"{stem}.gs.{subset}.txt")
    return StsTask(name, read_sts_subset, parts, name)


def _set(
    name: str, reader: Callable[[Path], StsPairs], count: int, file: str, title: str
) -> StsTask:
    return StsTask(name, reader, {"test": (count, file)}, title)


def _folds(name: str, count: int, positive: str, negative: str) -> TransferTask:
    return TransferTask(name, read_two_classes, {"all": (count, positive, negative)})


_STSB = "STS/STSBenchmark/sts"
STS_SETS = {  # by their names in `eval_set`
    "stsb_dev": _set("STS-B dev", read_sts_benchmark, 1500, str(STSB_DEV), "STS-B dev"),
    "mini_sts": _set("MiniSTS", read_sts_benchmark, 526, "STS/MiniSTS/mini-sts.csv", "mini-STS"),
    "sickr_dev": _set("SICK-R dev", read_sick, 500, "SICK/SICK_trial.txt", "SICK-R dev"),
    "sts12": _year(
        "STS12",
        {
            "MSRpar": 750,
            "MSRvid": 750,
            "SMTeuroparl": 459,
            "surprise.OnWN": 750,
            "surprise.SMTnews": 399,
        },
    ),
    "sts13": _year("STS13", {"FNWN": 189, "headlines": 750, "OnWN": 561}),
    "sts14": _year(
        "STS14",
        {
            "deft-forum": 450,
            "deft-news": 300,
            "headlines": 750,
            "images": 750,
            "OnWN": 750,
            "tweet-news": 750,
        },
    ),
    "sts15": _year(
        "STS15",
        {
            "answers-forums": 375,
            "answers-students": 750,
            "belief": 375,
            "headlines": 750,
            "images": 750,
        },
    ),
    "sts16": _year(
        "STS16",
        {
            "answer-answer": 254,
            "headlines": 249,
            "plagiarism": 230,
            "postediting": 244,
            "question-question": 209,
        },
    ),
    "stsb_test": _set("STS-B", read_sts_benchmark, 1379, f"{_STSB}-test.csv", "STS-B test"),
    "sickr_test": _set("SICK-R", read_sick, 4927, "SICK/SICK_test_annotated.txt", "SICK-R test"),
}
STS_TASKS = tuple(
    STS_SETS[name]
    for name in ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb_test", "sickr_test")
)
_SST = "SST/binary/sentiment"
_MRPC = "MRPC/msr_paraphrase"
_MINI = "MiniParaphrase/paraphrase"
TRANSFER_TASKS = (
    _folds("MR", 5331 + 5331, "MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    _folds("CR", 2407 + 1368, "CR/custrev.pos", "CR/custrev.neg"),
    _folds("SUBJ", 5000 + 5000, "SUBJ/subj.objective", "SUBJ/subj.subjective"),
    _folds("MPQA", 3312 + 7294, "MPQA/mpqa.pos", "MPQA/mpqa.neg"),
    TransferTask(
        "SST2",
        read_sst,
        {
            "train": (67349, f"{_SST}-train"),
            "dev": (872, f"{_SST}-dev"),
            "test": (1821, f"{_SST}-test"),
        },
    ),
    TransferTask(
        "TREC",
        read_trec,
        {"train": (5452, "TREC/train_5500.label"), "test": (500, "TREC/TREC_10.label")},
        6,
    ),
    TransferTask(
        "MRPC",
        read_mrpc,
        {"train": (4076, f"{_MRPC}_train.txt"), "test": (1725, f"{_MRPC}_test.txt")},
    ),
)
MINI_TRANSFER_TASKS = (
    _folds("MiniSentiment", 260, "MiniSentiment/sentiment.pos", "MiniSentiment/sentiment.neg"),
    _folds(
        "MiniSubjectivity",
        260,
        "MiniSubjectivity/subj.objective",
        "MiniSubjectivity/subj.subjective",
    ),
    TransferTask(
        "MiniQuestions",
        read_trec,
        {"train": (228, "MiniQuestions/train.label"), "test": (66, "MiniQuestions/test.label")},
        6,
    ),
    TransferTask(
        "MiniParaphrase",
        read_mrpc,
        {"train": (220, f"{_MINI}_train.txt"), "test": (90, f"{_MINI}_test.txt")},
    ),
)
SUITES: dict[str, dict[str, tuple[Task, ...]]] = {
    "senteval": {"sts": STS_TASKS, "transfer": TRANSFER_TASKS},
    "mini": {"sts": (STS_SETS["mini_sts"],), "transfer": MINI_TRANSFER_TASKS},
}
GROUPS = {"sts": "STS, Spearman x 100", "transfer": "Transfer, accuracy x 100"}
TASKS = {group: tuple(task.name for task in tasks) for group, tasks in SUITES["senteval"].items()}


def average(figures: Mapping[str, float | None]) -> float | None:
    """Return the mean of rounded figures, as in published tables; None if a figure is missing."""
    known = [figure for figure in figures.values() if figure is not None]
    if not known or len(known) < len(figures):
        return None
    return round(sum(known) / len(known), 2)


# ---- folders and selection


def suite_folder(suite: str, data_dir: str | Path | None = None) -> Path:
    """Return the folder of a suite, which has the layout of SentEval's ``downstream`` folder."""
    return EMBEDDED / "senteval" if suite == "mini" else data_root(data_dir) / "senteval"


def choose(suite: str, names: Sequence[str]) -> dict[str, list[Task]]:
    """Return the chosen tasks by group, in the order of the tables.

    Args:
        suite: a key of :data:`SUITES`.
        names: names of tasks and of groups (``sts``, ``transfer``, ``all``).
    """
    groups = SUITES[suite]
    known = ["all", *groups, *(task.name for tasks in groups.values() for task in tasks)]
    check_names("tasks", names, known)
    chosen: dict[str, list[Task]] = {}
    for group, tasks in groups.items():
        for task in tasks:
            if {"all", group, task.name} & set(names):
                chosen.setdefault(group, []).append(task)
    return chosen


@contextmanager
def files_needed(task: str, parameter: str) -> Iterator[None]:
    """Turn an error about a task's files into one about a parameter, with the remedy."""
    try:
        yield
    except DataError as error:
        remedy = "run dystress prepare senteval, or use the sets of the package (mini)"
        raise ParameterError(parameter, f"no {task}: {error}; {remedy}") from error


def eval_pairs(name: str, data_dir: str | Path | None = None) -> StsPairs:
    """Concatenate the subsets of an STS set, to evaluate on it while training.

    A missing STS-B dev set is taken from the hub.

    Raises:
        ParameterError: the set is missing or damaged.
    """
    task = STS_SETS[name]
    folder = suite_folder("mini" if name == "mini_sts" else "senteval", data_dir)
    if name == "stsb_dev" and not (folder / STSB_DEV).exists():
        reason = (
            f"no STS-B dev set: {folder / STSB_DEV} does not exist. Prepare the data (dystress "
            "prepare senteval), evaluate on mini_sts or none, or use the preset quickstart"
        )
        folder = published_file("senteval.tar", _stsb_dev_of, reason)
    with files_needed(task.name, "eval_set"):
        subsets = task.read(folder, counted=False)
    return joined([*subsets.values()], task.title)


def _stsb_dev_of(archive: str) -> Path:
    """Unpack only the STS-B dev file from SentEval's archive; return its cache folder."""
    file = cache_root() / "stsb" / STSB_DEV
    with tarfile.open(archive) as tar:
        (member,) = (name for name in tar.getnames() if name.endswith(f"/{STSB_DEV}"))
        content = tar.extractfile(member)
        assert content is not None
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content.read())
    return cache_root() / "stsb"
