"""Evaluation while training: STS sets, scored pairs of the user's own, and transfer tasks.

The main process evaluates. The run's random state is restored afterwards, so the weights are bit
for bit those of a run without evaluation.
"""

from __future__ import annotations

import hashlib
import math
import re
import reprlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dystress_text.cli.options import check_names
from dystress_text.errors import DataError, ParameterError
from dystress_text.evaluation.catalogue import SUITES, TASKS, TransferTask, eval_pairs, suite_folder
from dystress_text.evaluation.embedder import EncodedOnce
from dystress_text.evaluation.readers import Labelled, StsPairs, check_distinct, scored, slug_of
from dystress_text.evaluation.retrieval import Collection, read_collections
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.evaluation.sts import Embed, score_vectors, spearman
from dystress_text.evaluation.words import Words
from dystress_text.files.tables import is_hub_name, is_table, load_table
from dystress_text.files.text_lines import is_blank

COLUMNS = ("sentence1", "sentence2", "score")  # as sentence-transformers' data sets name them
HUB_SPLIT = "validation"
AVERAGE, TRANSFER_AVERAGE, STSB_DEV = "avg_spearman", "avg_transfer_dev", "sts_b_dev_spearman"
KINDS = ("spearman", "alignment", "uniformity")  # of metrics of scored pairs
_OTHER_NAMES = {  # of metrics: short ones and SimCSE's
    "avg": AVERAGE, "avg_sts": AVERAGE, "avg_transfer": TRANSFER_AVERAGE, "stsb_spearman": STSB_DEV,
    "sickr_spearman": "sick_r_dev_spearman",
}  # fmt: skip


@dataclass(frozen=True)
class StsEvaluator:
    """Spearman's correlation, alignment and uniformity on scored pairs."""

    pairs: StsPairs

    @property
    def best_metrics(self) -> Sequence[str]:
        return [self.pairs.metric("spearman")]

    def __call__(self, embed: Embed | Words) -> dict[str, float]:
        pairs = self.pairs
        if isinstance(embed, Words):
            return {
                self.best_metrics[0]: spearman(
                    embed.cosines(pairs.first, pairs.second), pairs.scores
                )
            }
        return sts_metrics(pairs, embed(pairs.sentences))


@dataclass(frozen=True)
class TransferEvaluator:
    """Dev accuracies x 100 under SentEval's fast mode: ``mr_dev_accuracy`` and so on, and their
    mean.

    They are measured on the texts that choose the classifier's l2, as in SimCSE's training, and on
    none of the tests.
    """

    tasks: Sequence[tuple[TransferTask, Mapping[str, Labelled]]]  # with their texts by split

    @property
    def best_metrics(self) -> Sequence[str]:
        each = [f"{task.name.lower()}_dev_accuracy" for task, _ in self.tasks]
        return [TRANSFER_AVERAGE, *each] if len(each) > 1 else each

    def __call__(self, embed: Embed) -> dict[str, float]:
        from dystress_text.evaluation.transfer import dev_accuracy  # scikit-learn is slow to import

        each = [
            dev_accuracy(task, splits, lambda texts: embed(texts).cpu())
            for task, splits in self.tasks
        ]
        metrics = dict(zip(self.best_metrics[-len(each) :], each, strict=True))
        return metrics | {TRANSFER_AVERAGE: sum(each) / len(each)} if len(each) > 1 else metrics


@dataclass(frozen=True)
class RetrievalEvaluator:
    """Search in a collection: ``cisi_ndcg@10``, ``cisi_mrr@10`` and ``cisi_recall@100`` for a
    folder ``cisi``.
    """

    collection: Collection

    @property
    def best_metrics(self) -> Sequence[str]:
        names = (
            re.sub(r"[ ()]+", "_", metric.lower()).strip("_") for metric in self.collection.metrics
        )
        return [f"{self.collection.slug}_{name}" for name in names]

    def __call__(self, embed: Embed | Words) -> dict[str, float]:
        return dict(zip(self.best_metrics, self.collection.scores(embed).values(), strict=True))


@dataclass
class Evaluation:
    """Evaluators one after another, each distinct sentence encoded once.

    One of their ``best_metrics``, of which higher is better, may choose the best model; by default
    the first of the first.
    """

    evaluators: Sequence[Evaluator]
    seconds: float = 0.0  # spent so far

    @property
    def pairs(self) -> list[StsPairs]:
        """The scored pairs among them."""
        return [
            evaluator.pairs for evaluator in self.evaluators if isinstance(evaluator, StsEvaluator)
        ]

    @property
    def collections(self) -> list[Collection]:
        """The collections among them."""
        return [
            evaluator.collection
            for evaluator in self.evaluators
            if isinstance(evaluator, RetrievalEvaluator)
        ]

    def __call__(self, encode: Embed) -> dict[str, float]:
        """All metrics that exist; with several sets of scored pairs also ``avg_spearman``, the mean
        of theirs.
        """
        metrics: dict[str, float] = {}
        embed = EncodedOnce(encode)
        start = time.perf_counter()
        begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        with torch.random.fork_rng([torch.cuda.current_device()] if begun else []):
            for evaluator in self.evaluators:
                metrics |= _that_exist(evaluator(embed))
        self.seconds += time.perf_counter() - start
        return self._with_average(metrics)

    @property
    def direct(self) -> Evaluation:
        """Itself on pairs and collections alone: without what fits a classifier, and evaluators of
        the user's own.
        """
        known = [
            each for each in self.evaluators if isinstance(each, StsEvaluator | RetrievalEvaluator)
        ]
        return replace(self, evaluators=known)

    def words(self) -> dict[str, float]:
        """What words alone reach, by metric, where they have a figure."""
        figures = (
            cast(StsEvaluator | RetrievalEvaluator, each)(Words())
            for each in self.direct.evaluators
        )
        return self._with_average(
            {name: x for of in figures for name, x in _that_exist(of).items()}
        )

    def _with_average(self, metrics: dict[str, float]) -> dict[str, float]:
        scored = [
            metrics[name] for pairs in self.pairs if (name := pairs.metric("spearman")) in metrics
        ]
        if len(scored) == len(self.pairs) > 1:
            metrics[AVERAGE] = float(np.mean(scored))
        return metrics

    def best_metric(self, name: str | None) -> str | None:
        """The metric that chooses the best model: the named one, else the first evaluator's; None
        without evaluation.

        ``avg`` is the mean over all sets of scored pairs; SimCSE's names are known too, with and
        without ``eval_``.
        """
        known = [metric for evaluator in self.evaluators for metric in evaluator.best_metrics]
        if name is None:
            return next(iter(known), None)
        scored = [pairs.metric("spearman") for pairs in self.pairs]
        known += [AVERAGE] if len(scored) > 1 else []
        plain = name.removeprefix("eval_")  # transformers knows metrics with and without it
        meant = _OTHER_NAMES.get(plain, plain)
        for candidate in (name, plain, meant, plain.lower(), f"{plain.lower()}_dev_accuracy"):
            if candidate in known:
                return candidate
        if scored and meant in (AVERAGE, STSB_DEV):
            return scored[0]
        reason = f"known: {', '.join(known)}" if known else "eval_set none evaluates nothing"
        raise ParameterError("metric_for_best_model", f"no {name!r}; {reason}")

    def digest(self) -> str:
        """A checksum of what is the user's own, which decides with the settings which model is the
        best.
        """
        pairs = [
            (pairs.slug, pairs.first, pairs.second, pairs.scores.tolist()) for pairs in self.pairs
        ]
        return hashlib.sha256(
            repr([*pairs, *(one.about["sha256"] for one in self.collections)]).encode()
        ).hexdigest()


Evaluator = StsEvaluator | TransferEvaluator | RetrievalEvaluator


def build_evaluation(
    settings: EvaluationSettings, data_dir: str | Path | None = None
) -> Evaluation:
    """The evaluators that the settings name: sets, files, transfer tasks, search."""
    sets = [
        eval_pairs(name, data_dir) for name in dict.fromkeys(settings.eval_set) if name != "none"
    ]
    sets += [read_scored_pairs(file) for file in settings.eval_file or []]
    average = AVERAGE.removesuffix("_spearman")
    check_distinct("eval_file", [average, *(pairs.slug for pairs in sets)])
    evaluators: list[Evaluator] = [StsEvaluator(pairs) for pairs in sets]
    if settings.eval_transfer is not None:
        evaluators.append(transfer_evaluator(settings.eval_transfer, data_dir))
    evaluators += map(
        RetrievalEvaluator, read_collections("eval_retrieval", settings.eval_retrieval or [])
    )
    return Evaluation(evaluators)


def transfer_evaluator(
    names: Sequence[str], data_dir: str | Path | None = None
) -> TransferEvaluator:
    """The evaluator for the named transfer tasks, or ``all`` of SentEval's seven, with their texts
    read.
    """
    tasks = [(task, suite) for suite, groups in SUITES.items() for task in groups["transfer"]]
    known = {task.name: (task, suite) for task, suite in tasks if isinstance(task, TransferTask)}
    chosen = []
    wanted = dict.fromkeys(TASKS["transfer"] if list(names) == ["all"] else names)
    check_names("eval_transfer", wanted, known)
    for name in wanted:
        task, suite = known[name]
        try:
            chosen.append((task, task.read(suite_folder(suite, data_dir))))
        except DataError as error:
            reason = f"no {name}: {error}; prepare the data (dystress prepare senteval)"
            raise ParameterError("eval_transfer", reason) from error
    return TransferEvaluator(chosen)


def sts_metrics(pairs: StsPairs, vectors: Tensor) -> dict[str, float]:
    """The scores of the vectors of ``pairs.sentences`` that exist, as metrics named after the set."""
    return _that_exist(
        {pairs.metric(kind): value for kind, value in vars(score_vectors(pairs, vectors)).items()}
    )


def _that_exist(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without those that are no number: a set need not have pairs that are alike, nor equal vectors
    a correlation.
    """
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def sts_line(title: str, pooler: str, pairs: StsPairs, metrics: Mapping[str, float]) -> str:
    """A line of the table at the end of a run: the figures of a pooler on a set."""
    forms = zip(KINDS, (".2f", ".4f", ".4f"), strict=True)
    figures = ((metrics.get(pairs.metric(kind)), form) for kind, form in forms)
    spearman, alignment, uniformity = (
        "-" if value is None else format(value, form) for value, form in figures
    )
    return f"{title:24} {pooler:16} {spearman:>8} {alignment:>9} {uniformity:>10}"


def further_lines(
    evaluation: Evaluation,
    before: Mapping[str, float],
    metrics: Mapping[str, float],
    words: Mapping[str, float],
    pooler: str,
) -> list[str]:
    """Lines of the table at the end of a run for all metrics except those of the first set of
    scored pairs.
    """
    shown = {pairs.metric(kind) for pairs in evaluation.pairs for kind in KINDS}
    lines = []
    for pairs in evaluation.pairs[1:]:
        if pairs.metric("spearman") in before:
            lines.append(sts_line(f"{pairs.name}, untrained"[:24], pooler, pairs, before))
        lines += [sts_line(pairs.name, pooler, pairs, metrics), *words_line(pairs, words)]
    rivals = {"untrained": before, "words": words}
    for name, value in ((name, value) for name, value in metrics.items() if name not in shown):
        beside = (
            f"   {title} {figures[name]:.2f}"
            for title, figures in rivals.items()
            if name in figures
        )
        lines.append(f"{name:41} {value:8.2f}" + "".join(beside))
    return lines


def words_line(pairs: StsPairs, words: Mapping[str, float]) -> list[str]:
    """The line of words alone on a set; none where they have no figure."""
    return [sts_line("words", "TF-IDF", pairs, words)] if pairs.metric("spearman") in words else []


def read_scored_pairs(source: str, parameter: str = "eval_file") -> StsPairs:
    """Read pairs with scores, named by their file or data set (see :func:`name_of`).

    The columns are sentence1, sentence2 and score, or the only three, in that order; a .csv or .tsv
    file of three need not have a header. Alignment uses the pairs in the top fifth of the scores,
    from the lowest to the highest, as STS-B uses those above 4 of 0 to 5.

    Args:
        source: a .csv, .tsv, .jsonl, .json or .parquet file, or a hub data set as ``OWNER/NAME``
            (its ``validation`` split) or ``OWNER/NAME:SPLIT``.
        parameter: what errors name.
    """
    try:
        pairs = scored(_rows(source))
    except DataError as error:
        raise ParameterError(parameter, str(error)) from error
    if len(set(pairs.scores)) < 2:
        raise ParameterError(
            parameter, f"the {len(pairs)} pairs of {source!r} have no two different scores"
        )
    positive_above = float(0.8 * pairs.scores.max() + 0.2 * pairs.scores.min())
    return replace(pairs, name=name_of(source, parameter), positive_above=positive_above)


def name_of(source: str, parameter: str = "eval_file") -> str:
    """A file's or data set's name in metrics."""
    slug = slug_of(Path(_place(source)[0]).stem)
    if not slug:
        raise ParameterError(
            parameter, f"the name of {source!r} has no letter or digit to name its metrics by"
        )
    return slug


def _place(source: str) -> tuple[str, str]:
    """A file and "", or the name of a data set on the hub and its split."""
    name, _, split = source.partition(":")
    return (
        (name, split or HUB_SPLIT)
        if is_hub_name(name) and not Path(source).exists()
        else (source, "")
    )


def _rows(source: str) -> Iterator[tuple[str, str, str, Any]]:
    """The place of each row for errors, its two texts and its score."""
    name, split = _place(source)
    if not is_table(name) or not (split or Path(source).is_file()):
        raise DataError(f"no table {source!r} (.csv, .tsv, .jsonl, .parquet) and no such data set")
    table = load_table(name, split)
    columns, rows = table.column_names, cast(Iterable[dict[str, Any]], table)
    if set(COLUMNS) <= set(columns):
        columns = list(COLUMNS)
    elif len(columns) != 3:
        raise DataError(
            f"{source!r} has the columns {', '.join(columns)}; it should have sentence1, sentence2 and score, or three "
            "alone, two texts and a number, in that order"
        )
    elif columns != ["0", "1", "2"] and _is_number(
        columns[2]
    ):  # no header, nor what pandas writes for none
        rows = chain([dict(zip(columns, columns, strict=True))], rows)
    for number, row in enumerate(rows, 1):
        where = f"row {number} of {source!r}"
        first, second = (_text(row[column], where) for column in columns[:2])
        yield where, first, second, row[columns[2]]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _text(cell: Any, where: str) -> str:
    # half of a surrogate pair is no text either
    if not isinstance(cell, str) or is_blank(cell) or cell.encode(errors="ignore").decode() != cell:
        raise DataError(f"{where}: {reprlib.repr(cell)} is not a text")
    return cell
