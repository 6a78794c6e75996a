"""STS tasks as the published tables report them.

from dystress_text.evaluation.senteval_tasks import STS_TASKS
from dystress_text.evaluation.sts_tasks import evaluate_sts_task
evaluate_sts_task(STS_TASKS[0], folder, embed)   # embed: sentences -> vectors (n, dim)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dystress_text.evaluation.senteval_tasks import StsTask
from dystress_text.evaluation.sts import Embed, cosines, spearman


@dataclass(frozen=True)
class StsTaskResult:
    """What a task says of an encoder; Spearman's correlation of cosine and gold score, x 100.

    Attributes:
        spearman: over the pairs of all subsets together ("all"), the published figure.
        mean: of the subsets' figures.
        weighted_mean: of the subsets' figures, weighted by their pairs.
        subsets: each one's figure.
        counts: pairs by subset.
    """

    spearman: float
    mean: float
    weighted_mean: float
    subsets: dict[str, float]
    counts: dict[str, int]


def predictions(task: StsTask, folder: Path, embed: Embed) -> NDArray[np.float64]:
    """Cosines and gold scores of a task's pairs, all subsets one after another, (2, pairs).

    Raises:
        DataError: a file is missing or damaged.
    """
    subsets = task.read(folder).values()
    return np.stack(
        [
            np.concatenate([cosines(pairs, embed).astype(np.float64) for pairs in subsets]),
            np.concatenate([pairs.scores for pairs in subsets]),
        ]
    )


def evaluate_sts_task(task: StsTask, folder: Path, embed: Embed) -> StsTaskResult:
    """Run a task.

    Args:
        task: from :mod:`dystress_text.evaluation.senteval_tasks`.
        folder: SentEval's ``downstream`` folder.
        embed: sentences to vectors (n, dim).

    Raises:
        DataError: a file is missing or damaged.
    """
    subsets = task.read(folder)
    predicted = {name: cosines(pairs, embed) for name, pairs in subsets.items()}
    scores = {name: spearman(predicted[name], pairs.scores) for name, pairs in subsets.items()}
    counts = {name: len(pairs) for name, pairs in subsets.items()}
    gold = np.concatenate([pairs.scores for pairs in subsets.values()])
    return StsTaskResult(
        spearman=round(spearman(np.concatenate(list(predicted.values())), gold), 2),
        mean=round(float(np.mean(list(scores.values()))), 2),
        weighted_mean=round(float(np.average(list(scores.values()), weights=list(counts.values()))), 2),
        subsets={name: round(score, 2) for name, score in scores.items()},
        counts=counts,
    )
