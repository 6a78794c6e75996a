"""The evaluators of a run: built from its settings, and called one after another.

The main process evaluates and restores the random state, so the weights are bit for bit those of a
run without evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Collection as Names
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.evaluation import SentenceEvaluator

from dystress_text.cli.options import check_names
from dystress_text.errors import ParameterError, plain, reason_of
from dystress_text.evaluation.catalogue import (
    MINI_TRANSFER_TASKS,
    TASKS,
    TRANSFER_TASKS,
    eval_pairs,
    files_needed,
    suite_folder,
)
from dystress_text.evaluation.evaluators import (
    Evaluator,
    PairsEvaluator,
    RetrievalEvaluator,
    TransferEvaluator,
    finite,
)
from dystress_text.evaluation.retrieval import Collection, read_collections
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.evaluation.text_sets import (
    StsPairs,
    check_distinct,
    checksum_of,
    read_scored_pairs,
)
from dystress_text.models.encoding import in_evaluation_mode
from dystress_text.training.run_record import Metric

AVERAGE = "avg"  # the set of the mean over sets of scored pairs
_LOGGED = ("step", "loss", "learning_rate", "samples_per_second")  # in metrics.jsonl
_SIMCSE_NAMES = {  # of metrics
    "avg_sts": "avg_spearman",
    "avg_transfer": "avg_transfer_dev_accuracy",
    "stsb_spearman": "sts_b_dev_spearman",
    "sickr_spearman": "sick_r_dev_spearman",
}


class EvaluatorList:
    """Run the evaluators of a run, one after another.

    One of their metrics selects the best model, by default the primary metric of the first
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
        self.ignored: list[str] = []  # name and type of what it returns besides numbers
        self.own_untrained: dict[str, float] = {}  # the figures of its call before training
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
        own = {name: Metric(name, kind="evaluator") for name in self._own_metrics}
        return own | self._ours

    @property
    def _ours(self) -> dict[str, Metric]:
        metrics = [metric for each in self.evaluators for metric in each.metrics.values()]
        return {metric.name: metric for metric in (*metrics, *self._means)}

    @property
    def _means(self) -> list[Metric]:
        """The metrics that are means over sets of scored pairs, or over transfer tasks."""
        sets: dict[str, list[tuple[str, str]]] = {"spearman": [], "accuracy": []}
        for each in self.evaluators:
            for measure in sets.keys() & each.metrics.keys():
                metric = each.metrics[measure]
                sets[measure].append((metric.kind, metric.set))
        pairs = tuple(sets["spearman"])
        tasks = tuple(sets["accuracy"])
        means = [
            Metric(AVERAGE, "spearman", "mean Spearman x 100", sets=pairs),
            Metric("avg_transfer_dev", "accuracy", "mean dev accuracy x 100", sets=tasks),
        ]
        return [mean for mean in means if len(mean.sets) > 1]

    def __call__(self, model: SentenceTransformer) -> dict[str, float]:
        """Return the finite figures of all evaluators, by metric.

        ``avg_spearman`` is the mean over several sets of scored pairs,
        ``avg_transfer_dev_accuracy`` that over several transfer tasks.
        """
        with self._apart_from_training(model) as model:
            figures = self._own_figures(model)
            for evaluator in self.evaluators:
                figures |= evaluator(model)
        return self._with_averages(finite(figures))

    @contextmanager
    def _apart_from_training(self, model: SentenceTransformer) -> Iterator[SentenceTransformer]:
        """Yield the model in evaluation mode; restore the random state and count the seconds."""
        start = time.perf_counter()
        devices = []
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            devices.append(torch.cuda.current_device())
        with torch.random.fork_rng(devices):
            yield in_evaluation_mode(model)
        self.seconds += time.perf_counter() - start

    def _own_figures(self, model: SentenceTransformer) -> dict[str, float]:
        """Return the numbers in the result of the user's evaluator, by metric; {} without one.

        Raises:
            ValueError: the result contains no number.
        """
        if self.own is None:
            return {}
        result: Any = self.own(model)
        if not isinstance(result, Mapping):
            # the name in sentence-transformers' trainer
            result = {getattr(self.own, "primary_metric", None) or "evaluator": result}
        figures = {}
        self.ignored = []
        for name, value in result.items():
            number = plain(value)
            if not isinstance(number, Real) or name in _LOGGED:
                self.ignored.append(f"{name} ({type(value).__name__})")
            else:
                figures[str(name)] = float(number)
        if not figures:
            raise ValueError(f"it returns no number, only {self.ignored}")
        self._own_metrics = list(figures)
        return figures

    def lexical_baseline(self) -> dict[str, float]:
        """Return the figures of TF-IDF and BM25, by metric."""
        figures: dict[str, float] = {}
        for each in self.evaluators:
            figures |= each.by_metric(each.lexical)
        return self._with_averages(figures)

    def _with_averages(self, figures: dict[str, float]) -> dict[str, float]:
        for mean in self._means:
            names = [Metric(name, mean.measure).name for _, name in mean.sets]
            if set(names) <= set(figures):
                figures[mean.name] = float(np.mean([figures[name] for name in names]))
        return figures

    def try_own(self, untrained: SentenceTransformer, reserved: Names[str] = ()) -> None:
        """Call the user's evaluator before training, to learn the names of its metrics.

        Args:
            untrained: the model before training.
            reserved: names of metrics that are measured outside this list.

        Raises:
            ParameterError: it fails, returns no number, or uses the name of another metric.
        """
        if self.own is None:
            return
        try:
            with self._apart_from_training(untrained) as model:
                self.own_untrained = finite(self._own_figures(model))
        except Exception as error:  # of any kind
            reason = f"fails on the untrained model: {type(error).__name__}: {reason_of(error)}"
            raise ParameterError("evaluator", reason) from error
        for name in self._own_metrics:
            if name in self._ours or name in reserved:
                reason = f"returns {name!r}, which is a metric of this package; rename it"
                raise ParameterError("evaluator", reason)

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
        bare = name.removeprefix("eval_")  # transformers accepts metrics with and without it
        # sentence-transformers omits a prefix with which the primary metric begins
        prefixed = f"{getattr(self.own, 'name', None)}_{name}"
        for candidate in (name, _SIMCSE_NAMES.get(bare, bare), prefixed):
            if candidate in known:
                return candidate
        reason = f"known: {', '.join(known)}" if known else "`eval_set` none evaluates nothing"
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
        reason = (
            "its greater_is_better is False, but greater values must be better; negate them, as "
            "MSEEvaluator does"
        )
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
        with files_needed(name, "eval_transfer"):
            splits = known[name].read(suite_folder(suite, data_dir))
        evaluators.append(TransferEvaluator(known[name], splits))
    return evaluators
