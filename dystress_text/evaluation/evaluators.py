"""Evaluators: STS sets, the user's scored pairs, transfer tasks and search.

Each measures a model while it trains, here or in sentence-transformers' trainer, and any encoder
for the result lines of ``dystress senteval``. In our training the main process evaluates, and the
random state is restored afterwards: the weights are bit for bit those of a run without evaluation.
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
from dystress_text.models.embedder import encode

Encoder = TextEncoder | LexicalBaseline

AVERAGE = "avg_spearman"
TRANSFER_AVERAGE = "avg_transfer_dev"
_SIMCSE_NAMES = {  # of metrics
    "avg_sts": AVERAGE,
    "avg_transfer": TRANSFER_AVERAGE,
    "stsb_spearman": "sts_b_dev_spearman",
    "sickr_spearman": "sick_r_dev_spearman",
}


class Evaluator(SentenceEvaluator):
    """Base of this package's evaluators, which also run in sentence-transformers' trainer.

    Args:
        group: of result lines, such as ``senteval/sts``, ``pairs`` or ``retrieval``.
        task: the name of the data in result lines and tables.
        metrics: names of the figures of a model in training, the primary one first.
        details: of the data, for result lines: ``sha256``, and sizes.
    """

    has_baseline = True  # whether the lexical baseline can be measured

    def __init__(
        self, group: str, task: str, metrics: Sequence[str], details: Mapping[str, Any]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.group = group
        self.task = task
        self.metrics = list(metrics)
        self.primary_metric = self.metrics[0]
        self.details = details

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return the finite figures of a model, by metric."""
        return self._by_metric(self.figures(TextEncoder(model)))

    def figures(self, encoder: Encoder) -> dict[str, float]:
        """Return the figures of an encoder for result lines.

        Raises:
            DataError: no text has a token for the lexical baseline.
        """
        raise NotImplementedError

    def lexical_figures(self) -> dict[str, float]:
        """Return the figures of the lexical baseline; empty if it does not apply."""
        with suppress(DataError):
            if self.has_baseline:
                return self.figures(LexicalBaseline())
        return {}

    def lexical_baseline(self) -> dict[str, float]:
        """Return the figures of the lexical baseline, by metric."""
        return self._by_metric(self.lexical_figures())

    def _by_metric(self, figures: Mapping[str, float]) -> dict[str, float]:
        return _finite(dict(zip(self.metrics, figures.values(), strict=False)))


class PairsEvaluator(Evaluator):
    """Measure Spearman's correlation x 100 of cosine and score.

    In training also alignment and uniformity.

    Args:
        pairs: scored pairs; their name is part of the metrics' names.
        group: of result lines.
    """

    def __init__(self, pairs: StsPairs, group: str = "pairs") -> None:
        details = {"pairs": len(pairs), "sha256": pairs.checksum}
        if pairs.source:
            details["source"] = pairs.source
        super().__init__(group, pairs.name, [pairs.metric("spearman")], details)
        self.pairs = pairs

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        return sts_metrics(self.pairs, encode(model, self.pairs.sentences))

    def figures(self, encoder: Encoder) -> dict[str, float]:
        cosines = encoder.cosines(self.pairs.first, self.pairs.second)
        return {"spearman": spearman(cosines, self.pairs.scores)}


class TransferEvaluator(Evaluator):
    """Measure the accuracy x 100 of SentEval's classifiers.

    In training only the dev accuracy, such as ``mr_dev_accuracy``, in SentEval's fast mode:
    classifiers are scored on the texts that select their l2, as in SimCSE's training, and the test
    texts are not read.

    Args:
        task: of the catalogue.
        splits: its texts.
        group: of result lines.
        mode: ``test`` or ``fast``, for result lines.
    """

    has_baseline = False

    def __init__(
        self,
        task: TransferTask,
        splits: Mapping[str, Labelled],
        group: str = "senteval/transfer",
        mode: str = "test",
    ) -> None:
        content = [(name, each.columns, each.labels.tolist()) for name, each in splits.items()]
        details = {
            "texts": {name: len(split) for name, split in splits.items()},
            "sha256": checksum_of(content),
        }
        super().__init__(group, task.name, [f"{task.name.lower()}_dev_accuracy"], details)
        self.classes = task.classes
        self.splits = splits
        self.mode = mode

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        from dystress_text.evaluation.transfer import dev_accuracy  # scikit-learn is slow to import

        accuracy = dev_accuracy(self.classes, self.splits, TextEncoder(model))
        return {self.metrics[0]: accuracy}

    def figures(self, encoder: Encoder) -> dict[str, float]:
        from dystress_text.evaluation.transfer import evaluate_transfer

        assert isinstance(encoder, TextEncoder)
        return evaluate_transfer(self.classes, self.splits, encoder, self.mode)


class RetrievalEvaluator(Evaluator):
    """Measure search: ``cisi_ndcg@10``, ``cisi_mrr@10`` and ``cisi_recall@100`` for ``cisi``.

    Args:
        collection: documents, queries and judgements.
    """

    def __init__(self, collection: Collection) -> None:
        names = [re.sub(r"[ ()]+", "_", name.lower()).strip("_") for name in collection.metrics]
        metrics = [f"{collection.slug}_{name}" for name in names]
        super().__init__("retrieval", collection.name, metrics, collection.metadata)
        self.collection = collection

    def figures(self, encoder: Encoder) -> dict[str, float]:
        return self.collection.scores(encoder)


class EvaluatorList(SentenceEvaluator):
    """Run evaluators one after another: of this package, of sentence-transformers, or the user's.

    The metric that selects the best model is one of theirs; by default the primary metric of the
    first. The random state is restored, so training continues as without evaluation.

    Args:
        evaluators: in the order in which they run.
    """

    def __init__(self, evaluators: Sequence[SentenceEvaluator]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
        return EvaluatorList([each for each in self._ours if each.has_baseline])

    @property
    def _ours(self) -> list[Evaluator]:
        return [each for each in self.evaluators if isinstance(each, Evaluator)]

    @property
    def _metrics(self) -> list[str]:
        """The metrics known now; some evaluators name theirs at their first call."""
        metrics: list[str] = []
        for number, evaluator in enumerate(self.evaluators):
            metrics += getattr(evaluator, "metrics", [metric_of(evaluator, number)])
        return metrics

    @property
    def _averages(self) -> dict[str, list[str]]:
        """The metrics of several sets, by the name of their mean."""
        spearmans = [pairs.metric("spearman") for pairs in self.pairs]
        accuracies = [
            each.metrics[0] for each in self.evaluators if isinstance(each, TransferEvaluator)
        ]
        averages = {AVERAGE: spearmans, TRANSFER_AVERAGE: accuracies}
        return {name: metrics for name, metrics in averages.items() if len(metrics) > 1}

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return the finite figures of all evaluators, by metric.

        Several sets of scored pairs also have the mean ``avg_spearman``, several transfer tasks
        ``avg_transfer_dev``.
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
        return self._with_averages(_finite(metrics))

    def lexical_baseline(self) -> dict[str, float]:
        """Return the figures of TF-IDF and BM25, by metric."""
        figures: dict[str, float] = {}
        for each in self._ours:
            figures |= each.lexical_baseline()
        return self._with_averages(figures)

    def _with_averages(self, figures: dict[str, float]) -> dict[str, float]:
        for average, names in self._averages.items():
            if set(names) <= set(figures):
                figures[average] = float(np.mean([figures[name] for name in names]))
        return figures

    def best_metric(self, name: str | None) -> str | None:
        """Return the metric that selects the best model; None without evaluation.

        Args:
            name: a metric, or one of SimCSE's names, with or without ``eval_``; None for the first
                metric.

        Raises:
            ParameterError: no evaluator has the metric.
        """
        known = [*self._metrics, *self._averages]
        if name is None:
            return next(iter(known), None)
        plain = name.removeprefix("eval_")  # transformers accepts metrics with and without it
        for candidate in (name, _SIMCSE_NAMES.get(plain, plain)):
            if candidate in known:
                return candidate
        reason = f"known: {', '.join(known)}" if known else "eval_set none evaluates nothing"
        raise ParameterError("metric_for_best_model", f"no {name!r}; {reason}")

    def digest(self) -> str:
        """Return a checksum of the data of this package's evaluators."""
        return checksum_of([(each.primary_metric, each.details["sha256"]) for each in self._ours])


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
        evaluators += transfer_evaluators(settings.eval_transfer, data_dir)
    collections = read_collections("eval_retrieval", settings.eval_retrieval or [])
    evaluators += [RetrievalEvaluator(collection) for collection in collections]
    return EvaluatorList(evaluators)


def transfer_evaluators(
    names: Sequence[str], data_dir: str | Path | None = None
) -> list[TransferEvaluator]:
    """Return the evaluators of the named transfer tasks; ``all`` is SentEval's seven."""
    known = {task.name: task for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS}
    wanted = dict.fromkeys(TASKS["transfer"] if list(names) == ["all"] else names)
    check_names("eval_transfer", wanted, known)
    evaluators = []
    for name in wanted:
        suite = "mini" if known[name] in MINI_TRANSFER_TASKS else "senteval"
        try:
            splits = known[name].read(suite_folder(suite, data_dir))
        except DataError as error:
            reason = f"no {name}: {error}; prepare the data (dystress prepare senteval)"
            raise ParameterError("eval_transfer", reason) from error
        evaluators.append(TransferEvaluator(known[name], splits))
    return evaluators


def sts_metrics(pairs: StsPairs, vectors: Tensor) -> dict[str, float]:
    """Score embeddings of ``pairs.sentences`` (n, dim); drop metrics that are NaN."""
    scores = score_vectors(pairs, vectors)
    return _finite({pairs.metric(kind): score for kind, score in scores.items()})


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Drop metrics that are not finite: without similar pairs a set has no alignment."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
