"""The transfer tasks' dev accuracies of an encoder that is being trained.

``dystress_text/train.py --eval_transfer`` finds :func:`transfer_evaluator` by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.senteval_tasks import MINI_TRANSFER_TASKS, TRANSFER_TASKS, Labelled, TransferTask
from dystress_text.evaluation.sts import Embed
from dystress_text.evaluation.transfer import dev_accuracy
from dystress_text.files.places import EMBEDDED, data_root

AVERAGE = "avg_transfer_dev"


@dataclass(frozen=True)
class TransferEvaluator:
    """Dev accuracies x 100 under SentEval's fast mode: ``mr_dev_accuracy`` and so on, and their mean.

    They are those of the rows that choose the classifier's l2, as in SimCSE's training; test rows are not looked at.

    Attributes:
        tasks: what is measured.
        splits: the texts of each task, in the tasks' order.
    """

    tasks: tuple[TransferTask, ...]
    splits: tuple[Mapping[str, Labelled], ...]

    @property
    def name(self) -> str:
        return "transfer"

    @property
    def best_metrics(self) -> Sequence[str]:
        each = [_metric(task) for task in self.tasks]
        return [AVERAGE, *each] if len(each) > 1 else each

    def __call__(self, embed: Embed) -> dict[str, float]:
        found = {
            _metric(task): dev_accuracy(task, splits, embed)
            for task, splits in zip(self.tasks, self.splits, strict=True)
        }
        return found | {AVERAGE: sum(found.values()) / len(found)} if len(found) > 1 else found


def transfer_evaluator(names: Sequence[str], data_dir: str | Path | None = None) -> TransferEvaluator:
    """The evaluator for some tasks, with their texts read.

    Args:
        names: of tasks, those of the small sets of the checkout included, or ``all`` for SentEval's seven.
        data_dir: where prepared data lie; None for the usual place.

    Raises:
        UserError: an unknown name, or the files of a task are missing or damaged.
    """
    known = {task.name: task for task in (*TRANSFER_TASKS, *MINI_TRANSFER_TASKS)}
    wanted = [task.name for task in TRANSFER_TASKS] if list(names) == ["all"] else list(dict.fromkeys(names))
    for name in wanted:
        if name not in known:
            raise UserError(f"--eval_transfer: no task {name!r}; known are all, or some of {', '.join(known)}")
    missing = [
        name for name in wanted if not all((_folder(known[name], data_dir) / f).is_file() for f in known[name].files)
    ]
    if missing:
        raise UserError(
            f"--eval_transfer: no files of {', '.join(missing)} in {_folder(known[missing[0]], data_dir)}; prepare "
            "them (python data/prepare.py senteval), or name tasks that are there"
        )
    tasks = tuple(known[name] for name in wanted)
    try:
        return TransferEvaluator(tasks, tuple(task.read(_folder(task, data_dir)) for task in tasks))
    except DataError as error:
        raise UserError(f"--eval_transfer: {error}") from error


def _folder(task: TransferTask, data_dir: str | Path | None) -> Path:
    return EMBEDDED / "senteval" if task in MINI_TRANSFER_TASKS else data_root(data_dir) / "senteval"


def _metric(task: TransferTask) -> str:
    return f"{task.name.lower()}_dev_accuracy"
