"""Evaluators for training: STS sets, the user's scored pairs, transfer tasks and search.

The main process evaluates, and the random state is restored afterwards: the weights are bit for bit
those of a run without evaluation.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.evaluation import SentenceEvaluator
from torch import Tensor

from dystress_text.cli.options import check_names
from dystress_text.errors import DataError, ParameterError
from dystress_text.evaluation.catalogue import (
    MINI_TRANSFER_TASKS,
    TASKS,
    TRANSFER_TASKS,
    TransferTask,
    eval_pairs,
    suite_folder,
)
from dystress_text.evaluation.embedder import TextEncoder
from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.readers import (
    Labelled,
    StsPairs,
    check_distinct,
    checksum_of,
    read_scored_pairs,
)
from dystress_text.evaluation.retrieval import Collection, read_collections
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.evaluation.sts import score_vectors, spearman
from dystress_text.models.embedder import encode, without_normalization

AVERAGE = "avg_spearman"
TRANSFER_AVERAGE = "avg_transfer_dev"
# of metrics of scored pairs, with their formats in the table at the end of a run
KINDS = {"spearman": ("8", ".2f"), "alignment": ("9", ".4f"), "uniformity": ("10", ".4f")}
_SIMCSE_NAMES = {  # of metrics
    "avg_sts": AVERAGE,
    "avg_transfer": TRANSFER_AVERAGE,
    "stsb_spearman": "sts_b_dev_spearman",
    "sickr_spearman": "sick_r_dev_spearman",
}


class Evaluator(SentenceEvaluator):
    """Base of this package's evaluators, which also run in sentence-transformers' trainer.

    Args:
        metrics: names of the figures that may select the best model, the primary one first.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.metrics = list(metrics)
        self.primary_metric = next(iter(metrics), None)

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return the finite figures of a model, by metric."""
        return _finite(self.measure(model))

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        """Return the figures of a model, by metric."""
        raise NotImplementedError

    def lexical_baseline(self) -> dict[str, float]:
        """Return the figures of the lexical baseline; empty if it does not apply."""
        return {}


class PairsEvaluator(Evaluator):
    """Measure Spearman's correlation x 100 of cosine and score, alignment and uniformity.

    Args:
        pairs: scored pairs; their name is part of the metrics' names.
    """

    def __init__(self, pairs: StsPairs) -> None:
        super().__init__([pairs.metric("spearman")])
        self.pairs = pairs

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        return sts_metrics(self.pairs, encode(model, self.pairs.sentences))

    def lexical_baseline(self) -> dict[str, float]:
        """Return the figure of TF-IDF."""
        cosines = LexicalBaseline().cosines(self.pairs.first, self.pairs.second)
        return _finite({self.metrics[0]: spearman(cosines, self.pairs.scores)})


class TransferEvaluator(Evaluator):
    """Measure dev accuracies x 100 in SentEval's fast mode, such as ``mr_dev_accuracy``.

    Classifiers are scored on the texts that select their l2, as in SimCSE's training; the test
    texts are not read. Several tasks also have the mean ``avg_transfer_dev``.

    Args:
        tasks: each with its texts by split.
    """

    def __init__(self, tasks: Sequence[tuple[TransferTask, Mapping[str, Labelled]]]) -> None:
        names = [f"{task.name.lower()}_dev_accuracy" for task, _ in tasks]
        super().__init__(names if len(names) == 1 else [TRANSFER_AVERAGE, *names])
        self.tasks = dict(zip(names, tasks, strict=True))

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        from dystress_text.evaluation.transfer import dev_accuracy  # scikit-learn is slow to import

        bare = without_normalization(model)
        metrics = {
            name: dev_accuracy(task.classes, splits, lambda texts: encode(bare, texts).cpu())
            for name, (task, splits) in self.tasks.items()
        }
        if len(metrics) > 1:
            metrics[TRANSFER_AVERAGE] = sum(metrics.values()) / len(metrics)
        return metrics


class RetrievalEvaluator(Evaluator):
    """Measure search: ``cisi_ndcg@10``, ``cisi_mrr@10`` and ``cisi_recall@100`` for ``cisi``.

    Args:
        collection: documents, queries and judgements.
    """

    def __init__(self, collection: Collection) -> None:
        names = [re.sub(r"[ ()]+", "_", name.lower()).strip("_") for name in collection.metrics]
        super().__init__([f"{collection.slug}_{name}" for name in names])
        self.collection = collection

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        return self._scores(TextEncoder.of(model))

    def lexical_baseline(self) -> dict[str, float]:
        """Return the figures of BM25."""
        return self._scores(LexicalBaseline())

    def _scores(self, encoder: TextEncoder | LexicalBaseline) -> dict[str, float]:
        return dict(zip(self.metrics, self.collection.scores(encoder).values(), strict=True))


class EvaluatorList(Evaluator):
    """Run evaluators one after another: of this package, of sentence-transformers, or the user's.

    The metric that selects the best model is one of theirs; by default the primary metric of the
    first. The random state is restored, so training continues as without evaluation.

    Args:
        evaluators: in the order in which they run.
    """

    def __init__(self, evaluators: Sequence[SentenceEvaluator]) -> None:
        super().__init__(_metrics_of(evaluators))
        self.evaluators = list(evaluators)
        self.seconds = 0.0

    @property
    def pairs(self) -> list[StsPairs]:
        """The sets of scored pairs."""
        return [each.pairs for each in self.evaluators if isinstance(each, PairsEvaluator)]

    @property
    def collections(self) -> list[Collection]:
        """The collections for search."""
        return [each.collection for each in self.evaluators if isinstance(each, RetrievalEvaluator)]

    @property
    def direct(self) -> EvaluatorList:
        """The evaluators of pairs and collections, which fit no classifier."""
        known = (PairsEvaluator, RetrievalEvaluator)
        return EvaluatorList([each for each in self.evaluators if isinstance(each, known)])

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        """Return the figures of all evaluators, by metric.

        With several sets of scored pairs there is also ``avg_spearman``, the mean of theirs.
        """
        metrics: dict[str, float] = {}
        start = time.perf_counter()
        was_training = model.training
        devices = []
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            devices.append(torch.cuda.current_device())
        with torch.random.fork_rng(devices):
            for number, evaluator in enumerate(self.evaluators):
                result = evaluator(model)
                if not isinstance(result, dict):
                    result = {metric_of(evaluator, number): result}
                metrics |= result
        model.train(was_training)
        self.seconds += time.perf_counter() - start
        return self._with_average(metrics)

    def lexical_baseline(self) -> dict[str, float]:
        """Return the figures of TF-IDF and BM25, by metric."""
        figures: dict[str, float] = {}
        for each in self.evaluators:
            if isinstance(each, Evaluator):
                with suppress(DataError):  # texts without a word
                    figures |= each.lexical_baseline()
        return self._with_average(figures)

    def _with_average(self, metrics: dict[str, float]) -> dict[str, float]:
        names = [pairs.metric("spearman") for pairs in self.pairs]
        scored = [metrics[name] for name in names if name in metrics]
        if len(scored) == len(names) > 1:
            metrics[AVERAGE] = float(np.mean(scored))
        return metrics

    def best_metric(self, name: str | None) -> str | None:
        """Return the metric that selects the best model; None without evaluation.

        Args:
            name: a metric, or one of SimCSE's names, with or without ``eval_``; None for the first
                metric.

        Raises:
            ParameterError: no evaluator has the metric.
        """
        known = _metrics_of(self.evaluators)  # some evaluators name theirs at their first call
        if name is None:
            return next(iter(known), None)
        if len(self.pairs) > 1:
            known.append(AVERAGE)
        plain = name.removeprefix("eval_")  # transformers accepts metrics with and without it
        meant = _SIMCSE_NAMES.get(plain, plain)
        for candidate in (name, meant):
            if candidate in known:
                return candidate
        reason = f"known: {', '.join(known)}" if known else "eval_set none evaluates nothing"
        raise ParameterError("metric_for_best_model", f"no {name!r}; {reason}")

    def digest(self) -> str:
        """Return a checksum of the scored pairs and collections."""
        content = [(pairs.slug, pairs.checksum) for pairs in self.pairs]
        content += [(each.slug, str(each.metadata["sha256"])) for each in self.collections]
        return checksum_of(content)


def _metrics_of(evaluators: Sequence[SentenceEvaluator]) -> list[str]:
    metrics: list[str] = []
    for number, evaluator in enumerate(evaluators):
        metrics += getattr(evaluator, "metrics", [metric_of(evaluator, number)])
    return metrics


def metric_of(evaluator: SentenceEvaluator, number: int) -> str:
    """Return the name of an evaluator's primary metric, or of its only figure."""
    return evaluator.primary_metric or f"evaluator_{number}"


def build_evaluators(
    settings: EvaluationSettings,
    data_dir: str | Path | None = None,
    own: SentenceEvaluator | None = None,
) -> EvaluatorList:
    """Build the evaluators that the settings name.

    Args:
        settings: sets, files, transfer tasks and collections.
        data_dir: the folder of prepared data.
        own: the user's evaluator, which comes first.

    Raises:
        ParameterError: data are missing or damaged, or two sets share a name.
    """
    if own is not None and not own.greater_is_better:
        raise ParameterError("evaluator", "greater_is_better must be True")
    names = [name for name in dict.fromkeys(settings.eval_set) if name != "none"]
    sets = [eval_pairs(name, data_dir) for name in names]
    sets += [read_scored_pairs(file) for file in settings.eval_file or []]
    average = AVERAGE.removesuffix("_spearman")
    check_distinct("eval_file", [average, *(pairs.slug for pairs in sets)])
    evaluators: list[SentenceEvaluator] = [] if own is None else [own]
    evaluators += [PairsEvaluator(pairs) for pairs in sets]
    if settings.eval_transfer is not None:
        evaluators.append(transfer_evaluator(settings.eval_transfer, data_dir))
    collections = read_collections("eval_retrieval", settings.eval_retrieval or [])
    evaluators += [RetrievalEvaluator(collection) for collection in collections]
    return EvaluatorList(evaluators)


def transfer_evaluator(
    names: Sequence[str], data_dir: str | Path | None = None
) -> TransferEvaluator:
    """Return the evaluator of the named transfer tasks; ``all`` is SentEval's seven."""
    known = {task.name: task for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS}
    wanted = dict.fromkeys(TASKS["transfer"] if list(names) == ["all"] else names)
    check_names("eval_transfer", wanted, known)
    chosen = []
    for name in wanted:
        task = known[name]
        suite = "mini" if task in MINI_TRANSFER_TASKS else "senteval"
        try:
            chosen.append((task, task.read(suite_folder(suite, data_dir))))
        except DataError as error:
            reason = f"no {name}: {error}; prepare the data (dystress prepare senteval)"
            raise ParameterError("eval_transfer", reason) from error
    return TransferEvaluator(chosen)


def sts_metrics(pairs: StsPairs, vectors: Tensor) -> dict[str, float]:
    """Score embeddings of ``pairs.sentences`` (n, dim); drop metrics that are NaN."""
    scores = vars(score_vectors(pairs, vectors))
    return _finite({pairs.metric(kind): score for kind, score in scores.items()})


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Drop metrics that are not finite: without similar pairs a set has no alignment."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def sts_line(title: str, pooler: str, pairs: StsPairs, metrics: Mapping[str, float]) -> str:
    """Return a line of the table at the end of a run: a pooler's figures on a set."""
    line = f"{title[:24]:24} {pooler:16}"
    for kind, (width, form) in KINDS.items():
        value = metrics.get(pairs.metric(kind))
        figure = "-" if value is None else format(value, form)
        line += f" {figure:>{width}}"
    return line


def further_lines(
    shown: StsPairs | None,
    untrained: Mapping[str, float],
    trained: Mapping[str, float],
    lexical: Mapping[str, float],
) -> list[str]:
    """Return a line for each figure but those of the set that the table above shows."""
    lines = []
    for name, figure in trained.items():
        if shown is not None and name in map(shown.metric, KINDS):
            continue
        line = f"{name:41} {figure:8.2f}"
        if name in untrained:
            line += f"   untrained {untrained[name]:.2f}"
        if name in lexical:
            line += f"   lexical {lexical[name]:.2f}"
        lines.append(line)
    return lines


def lexical_line(pairs: StsPairs, lexical: Mapping[str, float]) -> list[str]:
    """Return the lexical baseline's line for a set; empty without a figure."""
    if pairs.metric("spearman") not in lexical:
        return []
    return [sts_line("lexical", "TF-IDF", pairs, lexical)]
