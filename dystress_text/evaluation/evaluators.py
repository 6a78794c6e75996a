"""Evaluators for STS sets, scored pairs of the user, transfer tasks and search.

Each measures a model while it trains, here or in sentence-transformers' trainer, and any encoder
for the result lines of ``dystress evaluate``. In this package's training the main process evaluates
and restores the random state, so the weights are bit for bit those of a run without evaluation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.evaluation import SentenceEvaluator
from torch import Tensor

from dystress_text.cli.options import check_names
from dystress_text.errors import DataError, ParameterError, plain, reason_of
from dystress_text.evaluation.catalogue import (
    MINI_TRANSFER_TASKS,
    TASKS,
    TRANSFER_TASKS,
    TransferTask,
    eval_pairs,
    needing,
    suite_folder,
)
from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.readers import (
    Labelled,
    StsPairs,
    check_distinct,
    checksum_of,
    read_scored_pairs,
)
from dystress_text.evaluation.retrieval import METRICS, WITH_BM25, Collection, read_collections
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.evaluation.statistics import EACH
from dystress_text.evaluation.sts import score_vectors, spearman, subset_figures
from dystress_text.evaluation.text_encoder import TextEncoder
from dystress_text.io.words import WordReader, reader_for
from dystress_text.models.encoding import encode, in_evaluation_mode
from dystress_text.training.run_record import Metric

Encoder = TextEncoder | LexicalBaseline

AVERAGE = "avg"  # the set of the mean of several
TRANSFER_AVERAGE = "avg_transfer_dev"
_LOGGED = ("step", "loss", "learning_rate", "samples_per_second")  # in metrics.jsonl
_SIMCSE_NAMES = {  # of metrics
    "avg_sts": "avg_spearman",
    "avg_transfer": "avg_transfer_dev_accuracy",
    "stsb_spearman": "sts_b_dev_spearman",
    "sickr_spearman": "sick_r_dev_spearman",
}


class Evaluator(SentenceEvaluator):
    """Base of this package's evaluators, which also run in sentence-transformers' trainer.

    Args:
        group: the group of its result lines, such as ``senteval/sts``, ``pairs`` or ``retrieval``.
        task: the name of the data in result lines and tables.
        metrics: the metrics of training, by their names in :meth:`figures`; the primary metric is
            first.
        details: facts about the data for result lines: ``sha256`` and sizes.
    """

    has_baseline = True  # whether the lexical baseline can be measured
    language: str | None = None  # of the lexical baseline, as in io.words.reader_for
    similarity: str | None = None  # that the figures are of; None for the model's own
    scores: Sequence[float] = ()  # of pairs

    def __init__(
        self, group: str, task: str, metrics: Mapping[str, Metric], details: Mapping[str, Any]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.group = group
        self.task = task
        self.metrics = metrics
        self.primary_metric: str = next(iter(metrics.values())).name
        self.details = details

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return the finite figures of a model, by metric."""
        return self.figures_in_training(model)

    def figures_in_training(self, model: Any) -> dict[str, float]:
        """Return the figures of a model by metric, while it trains."""
        return self.by_metric(self.figures(TextEncoder(model)))

    def figures(self, encoder: Encoder) -> dict[str, Any]:
        """Return the figures of an encoder for result lines; the main figure is first.

        The values from which its interval is computed are under ``EACH``.

        Raises:
            DataError: no text has a token for the lexical baseline.
        """
        raise NotImplementedError

    @property
    def texts(self) -> Sequence[str]:
        """The texts that decide the language of the lexical baseline."""
        return []

    @cached_property
    def reader(self) -> WordReader:
        """The reader of words for the lexical baseline."""
        return reader_for(self.language, self.texts)

    @property
    def baseline(self) -> LexicalBaseline:
        """The lexical baseline, in the language of the texts."""
        return LexicalBaseline(self.reader.name)

    @cached_property
    def lexical(self) -> dict[str, Any]:
        """The figures of the lexical baseline; empty if it does not apply."""
        with suppress(DataError):
            if self.has_baseline:
                return self.figures(self.baseline)
        return {}

    def dense_figures(self, encoder: TextEncoder) -> dict[str, Any]:
        """Return the figures of a hybrid's dense model; {} for other models and for classifiers."""
        if encoder.dense is None or not self.has_baseline:
            return {}
        return self.figures(encoder.dense)

    def by_metric(self, figures: Mapping[str, Any]) -> dict[str, float]:
        """Return an encoder's finite figures, by metric."""
        metrics = self.metrics.items()
        return _finite({metric.name: figures[key] for key, metric in metrics if key in figures})


class PairsEvaluator(Evaluator):
    """Measure Spearman's correlation x 100 between a model's similarities and the scores of pairs.

    The figure equals that of sentence-transformers' ``EmbeddingSimilarityEvaluator``. In training,
    alignment and uniformity are measured too.

    Args:
        pairs: the scored pairs; metrics are named after them.
        group: the group of the result lines.
        subsets: subsets of an STS task by name, which are also measured, by cosine as in SentEval.
    """

    def __init__(
        self,
        pairs: StsPairs,
        group: str = "pairs",
        subsets: Mapping[str, StsPairs] | None = None,
    ) -> None:
        details = {"pairs": len(pairs), "sha256": pairs.checksum}
        if pairs.source:
            details["source"] = pairs.source
        metrics = {name: pairs.metric(name) for name in ("spearman", "alignment", "uniformity")}
        super().__init__(group, pairs.name, metrics, details)
        self.pairs = pairs
        self.scores = pairs.scores.tolist()
        self.subsets = subsets or {}
        if subsets is not None:
            self.similarity = "cosine"

    @property
    def texts(self) -> Sequence[str]:
        return self.pairs.sentences

    def figures_in_training(self, model: Any) -> dict[str, float]:
        vectors = encode(model, self.pairs.sentences)
        return sts_metrics(self.pairs, vectors, model.similarity_fn_name)

    def figures(self, encoder: Encoder) -> dict[str, Any]:
        sides = self.pairs.first, self.pairs.second
        if isinstance(encoder, TextEncoder):
            values = encoder.similarities(*sides, self.similarity)
        else:
            values = encoder.cosines(*sides)
        figures: dict[str, Any] = {"spearman": spearman(values, self.pairs.scores)}
        if len(self.subsets) > 1:
            figures |= subset_figures(values, self.subsets)
        figures[EACH] = values.tolist()
        return figures


class TransferEvaluator(Evaluator):
    """Measure the accuracy x 100 of SentEval's classifiers.

    In training this is the dev accuracy alone, such as ``mr_dev_accuracy``, in SentEval's fast
    mode. As in SimCSE's training, classifiers are scored on the texts that select their l2; test
    texts are not used.

    Args:
        task: a task of the catalogue.
        splits: the texts of the task.
        group: the group of the result lines.
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
        title = f"{task.name} dev: accuracy x 100"
        metric = Metric(f"{task.name.lower()}_dev", "accuracy", title)
        super().__init__(group, task.name, {"accuracy": metric}, details)
        self.classes = task.classes
        self.splits = splits
        self.mode = mode

    def figures_in_training(self, model: Any) -> dict[str, float]:
        from dystress_text.evaluation.transfer import dev_accuracy  # scikit-learn is slow to import

        accuracy = dev_accuracy(self.classes, self.splits, TextEncoder(model))
        return {self.metrics["accuracy"].name: accuracy}

    def figures(self, encoder: Encoder) -> dict[str, Any]:
        from dystress_text.evaluation.transfer import evaluate_transfer

        assert isinstance(encoder, TextEncoder)
        return evaluate_transfer(self.classes, self.splits, encoder, self.mode)


class RetrievalEvaluator(Evaluator):
    """Measure search: ``cisi_ndcg@10``, ``cisi_mrr@10`` and ``cisi_recall@100`` for ``cisi``.

    ``cisi_ndcg@10_with_bm25`` is that of the model combined with BM25.

    Args:
        collection: documents, queries and judgements.
    """

    def __init__(self, collection: Collection) -> None:
        figures = (*collection.metrics, WITH_BM25)
        metrics = {figure: collection.metric(figure) for figure in figures}
        super().__init__("retrieval", collection.name, metrics, collection.metadata)
        self.collection = collection

    @property
    def texts(self) -> Sequence[str]:
        return list(self.collection.documents.values())

    def figures(self, encoder: Encoder) -> dict[str, Any]:
        by_query = self.collection.by_query(encoder)
        figures: dict[str, Any] = {}
        for metric, values in by_query.items():
            figures[metric] = 100 * float(np.mean(values))
        if isinstance(encoder, TextEncoder) and not self.collection.judged:
            with suppress(DataError):  # no document has a word
                fused = self.collection.scores(encoder.with_bm25(self.baseline))
                figures[WITH_BM25] = fused[METRICS[0]]
        figures[EACH] = by_query[METRICS[0]]
        return figures


class EvaluatorList:
    """Run the evaluators of a run, one after another.

    The best model is selected by one of their metrics, by default the primary metric of the first
    evaluator. The random state is restored, so training continues as without evaluation.

    Args:
        evaluators: evaluators of this package, in the order in which they run.
        own: the user's evaluator, such as one of sentence-transformers; it runs first.
    """

    def __init__(
        self,
        evaluators: Sequence[Evaluator],
        own: SentenceEvaluator | None = None,
    ) -> None:
        self.evaluators = evaluators
        self.own = own
        self.seconds = 0.0
        self.ignored: list[str] = []  # what the user's evaluator returns besides numbers
        self._own_metrics: list[str] = []

    @property
    def pairs(self) -> list[StsPairs]:
        return [each.pairs for each in self.evaluators if isinstance(each, PairsEvaluator)]

    @property
    def collections(self) -> list[Collection]:
        return [each.collection for each in self.evaluators if isinstance(each, RetrievalEvaluator)]

    @property
    def direct(self) -> EvaluatorList:
        """The evaluators that train no classifier: those of pairs and collections."""
        return EvaluatorList([each for each in self.evaluators if each.has_baseline])

    @property
    def metrics(self) -> dict[str, Metric]:
        """All metrics by name; those of the user's evaluator are first."""
        own = [Metric(name) for name in self._own_metrics]
        ours = [metric for each in self.evaluators for metric in each.metrics.values()]
        return {metric.name: metric for metric in (*own, *ours, *self._means)}

    @property
    def _means(self) -> list[Metric]:
        """The metrics that are means over sets of scored pairs, or over transfer tasks."""
        pairs = [each.slug for each in self.pairs]
        transfer = [each for each in self.evaluators if isinstance(each, TransferEvaluator)]
        tasks = [each.metrics["accuracy"].set for each in transfer]
        means = [
            Metric(AVERAGE, "spearman", "mean Spearman x 100", sets=tuple(pairs)),
            Metric(TRANSFER_AVERAGE, "accuracy", "mean dev accuracy x 100", sets=tuple(tasks)),
        ]
        return [mean for mean in means if len(mean.sets) > 1]

    def __call__(self, model: SentenceTransformer) -> dict[str, float]:
        """Return the finite figures of all evaluators, by metric.

        ``avg_spearman`` is the mean over several sets of scored pairs,
        ``avg_transfer_dev_accuracy`` that over several transfer tasks.
        """
        metrics: dict[str, float] = {}
        start = time.perf_counter()
        model = in_evaluation_mode(model)
        devices = []
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            devices.append(torch.cuda.current_device())
        with torch.random.fork_rng(devices):
            if self.own is not None:
                metrics, self.ignored = _numbers(self.own, model)
                self._own_metrics = list(metrics)
            for evaluator in self.evaluators:
                metrics |= evaluator(model)
        self.seconds += time.perf_counter() - start
        return self._with_averages(_finite(metrics))

    def lexical_baseline(self) -> dict[str, float]:
        """Return the figures of TF-IDF and BM25, by metric."""
        figures: dict[str, float] = {}
        for each in self.evaluators:
            figures |= each.by_metric(each.lexical)
        return self._with_averages(figures)

    def _with_averages(self, figures: dict[str, float]) -> dict[str, float]:
        for mean in self._means:
            names = [Metric(each, mean.measure).name for each in mean.sets]
            if set(names) <= set(figures):
                figures[mean.name] = float(np.mean([figures[name] for name in names]))
        return figures

    def try_own(self, model: SentenceTransformer) -> None:
        """Call the user's evaluator once, since many evaluators name their metrics only then.

        Raises:
            ParameterError: it fails or returns no number.
        """
        if self.own is None:
            return
        try:
            self(model)
        except Exception as error:  # of any kind
            reason = f"fails on the untrained model: {type(error).__name__}: {reason_of(error)}"
            raise ParameterError("evaluator", reason) from error

    def best_metric(self, name: str | None) -> str | None:
        """Return the metric that selects the best model; None without an evaluation.

        Args:
            name: the name of a metric here or in SimCSE, with or without ``eval_``. None is the
                primary metric of the first evaluator.

        Raises:
            ParameterError: no evaluator has the metric.
        """
        known = [metric.name for metric in self.metrics.values() if metric.higher_is_better]
        if name is None:
            name = getattr(self.own, "primary_metric", None) or next(iter(known), None)
        if name is None:
            return None
        plain = name.removeprefix("eval_")  # transformers accepts metrics with and without it
        # sentence-transformers omits a prefix with which the primary metric begins
        prefixed = f"{getattr(self.own, 'name', None)}_{name}"
        for candidate in (name, _SIMCSE_NAMES.get(plain, plain), prefixed):
            if candidate in known:
                return candidate
        reason = f"known: {', '.join(known)}" if known else "eval_set none evaluates nothing"
        raise ParameterError("metric_for_best_model", f"unknown metric {name!r}; {reason}")

    def digest(self) -> str:
        """Return a checksum of the data of this package's evaluators."""
        return checksum_of(
            [(each.primary_metric, each.details["sha256"]) for each in self.evaluators]
        )


def build_evaluators(
    settings: EvaluationSettings,
    data_dir: str | Path | None = None,
    own: SentenceEvaluator | None = None,
) -> EvaluatorList:
    """Build the evaluators that the settings name.

    Args:
        settings: names of sets, files, transfer tasks and collections.
        data_dir: the folder of prepared data.
        own: the user's evaluator, which runs first.

    Raises:
        ParameterError: data are missing or damaged, or two sets share a name.
    """
    if not getattr(own, "greater_is_better", True):
        reason = "greater_is_better is False; return negatives, as MSEEvaluator does"
        raise ParameterError("evaluator", reason)
    names = [name for name in dict.fromkeys(settings.eval_set) if name != "none"]
    sets = [eval_pairs(name, data_dir) for name in names]
    sets += [read_scored_pairs(file) for file in settings.pairs or []]
    check_distinct("pairs", [AVERAGE, *(pairs.slug for pairs in sets)])
    evaluators: list[Evaluator] = [PairsEvaluator(pairs) for pairs in sets]
    if settings.eval_transfer is not None:
        evaluators += transfer_evaluators(settings.eval_transfer, data_dir)
    collections = read_collections(settings.retrieval or [])
    evaluators += [RetrievalEvaluator(collection) for collection in collections]
    for each in evaluators:
        each.language = settings.language
    return EvaluatorList(evaluators, own)


def transfer_evaluators(
    names: Sequence[str], data_dir: str | Path | None = None
) -> list[TransferEvaluator]:
    """Return the evaluators of transfer tasks; the name ``all`` means the seven of SentEval."""
    known = {task.name: task for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS}
    wanted = dict.fromkeys(TASKS["transfer"] if list(names) == ["all"] else names)
    check_names("eval_transfer", wanted, known)
    evaluators = []
    for name in wanted:
        suite = "mini" if known[name] in MINI_TRANSFER_TASKS else "senteval"
        with needing(name, "eval_transfer"):
            splits = known[name].read(suite_folder(suite, data_dir))
        evaluators.append(TransferEvaluator(known[name], splits))
    return evaluators


def sts_metrics(pairs: StsPairs, vectors: Tensor, similarity: str = "cosine") -> dict[str, float]:
    """Score embeddings of ``pairs.sentences``, (n, dim); leave out metrics that are NaN."""
    scores = score_vectors(pairs, vectors, similarity)
    return _finite({pairs.metric(measure).name: score for measure, score in scores.items()})


def _numbers(
    evaluator: SentenceEvaluator, model: SentenceTransformer
) -> tuple[dict[str, float], list[str]]:
    """Return the numbers in an evaluator's result, and the names and types of all other values.

    Raises:
        ValueError: the result contains no number.
    """
    result: Any = evaluator(model)
    if not isinstance(result, Mapping):
        # the name in sentence-transformers' trainer
        result = {getattr(evaluator, "primary_metric", None) or "evaluator": result}
    figures = {}
    ignored = []
    for name, value in result.items():
        number = plain(value)
        if not isinstance(number, Real) or name in _LOGGED:
            ignored.append(f"{name} ({type(value).__name__})")
        else:
            figures[str(name)] = float(number)
    if not figures:
        raise ValueError(f"it returns no number, only {ignored}")
    return figures, ignored


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are finite; a set without similar pairs has no alignment."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
