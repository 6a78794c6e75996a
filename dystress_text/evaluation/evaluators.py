"""What a run is evaluated on while it trains: STS sets, scored pairs of one's own, and transfer tasks.

The main process evaluates. An evaluation leaves the run's random state as it is, so that the weights are bit for bit
those of a run without it.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dystress_text.errors import UserError
from dystress_text.evaluation.scored_pairs import read_scored_pairs
from dystress_text.evaluation.sets import eval_pairs
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.evaluation.sts import Embed, StsPairs, StsResult, evaluate_sts

AVERAGE = "avg_spearman"
_AVERAGE_NAMES = ("avg", "avg_sts", AVERAGE)  # the second is SimCSE's
_SIMCSE_NAMES = {  # where there is no metric of that very name
    "stsb_spearman": "sts_b_dev_spearman",
    "sickr_spearman": "sick_r_dev_spearman",
    "avg_transfer": "avg_transfer_dev",
}


class Evaluator(Protocol):
    """Measures an encoder."""

    @property
    def name(self) -> str:
        """As tables print it."""

    @property
    def best_metrics(self) -> Sequence[str]:
        """The metrics by which a model may be kept, higher is better; the first one is its choice."""

    def __call__(self, embed: Embed) -> Mapping[str, float]:
        """Metrics by name; ``embed`` makes vectors (n, dim) of sentences."""


@dataclass(frozen=True)
class StsEvaluator:
    """Spearman's correlation, alignment and uniformity on scored pairs.

    Attributes:
        pairs: the set.
    """

    pairs: StsPairs

    @property
    def name(self) -> str:
        return self.pairs.name

    @property
    def best_metrics(self) -> Sequence[str]:
        return (f"{self.pairs.slug}_spearman",)

    def __call__(self, embed: Embed) -> dict[str, float]:
        return sts_metrics(self.pairs, evaluate_sts(self.pairs, embed))


@dataclass
class Evaluation:
    """Evaluators one after another, each distinct sentence encoded once.

    Attributes:
        evaluators: in order; the first one chooses the model that is kept where nothing else is said.
        seconds: spent so far by each, the encoding of sentences that are new to it included.
    """

    evaluators: Sequence[Evaluator]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def pairs(self) -> list[StsPairs]:
        """The scored pairs among them."""
        return [evaluator.pairs for evaluator in self.evaluators if isinstance(evaluator, StsEvaluator)]

    def __call__(self, encode: Embed) -> dict[str, float]:
        """All metrics; with several sets of scored pairs the mean of their correlations too (``avg_spearman``)."""
        metrics: dict[str, float] = {}
        embed = EncodedOnce(encode)
        with random_state_kept():
            for evaluator in self.evaluators:
                start = time.perf_counter()
                metrics |= evaluator(embed)
                self.seconds[evaluator.name] = self.seconds.get(evaluator.name, 0.0) + time.perf_counter() - start
        if len(self.pairs) > 1:
            metrics[AVERAGE] = float(np.mean([metrics[f"{pairs.slug}_spearman"] for pairs in self.pairs]))
        return metrics

    def best_metric(self, name: str | None) -> str | None:
        """The metric by which the model is kept: the named one, else the first evaluator's; None for no evaluation.

        ``avg`` is the mean over all sets of scored pairs; SimCSE's names are understood.

        Raises:
            UserError: there is no such metric.
        """
        known = [metric for evaluator in self.evaluators for metric in evaluator.best_metrics]
        scored = [f"{pairs.slug}_spearman" for pairs in self.pairs]
        if name is None or name in known:
            return name or next(iter(known), None)
        if name in _AVERAGE_NAMES and scored:
            return AVERAGE if len(scored) > 1 else scored[0]
        if _SIMCSE_NAMES.get(name) in known:
            return _SIMCSE_NAMES[name]
        if name == "stsb_spearman" and scored:
            return scored[0]
        named = [*known, *(["avg"] if len(scored) > 1 else [])]
        reason = f"known: {', '.join(named)}" if named else "--eval_set none evaluates nothing"
        raise UserError(f"--metric_for_best_model: no {name!r}; {reason}")

    def record(self) -> dict[str, dict[str, float]]:
        """What ``run.json`` says of each evaluator: its pairs and distinct sentences if it has any, and its seconds."""
        sizes = {p.name: {"pairs": len(p), "sentences": len(p.sentences)} for p in self.pairs}
        return {
            e.name: {**sizes.get(e.name, {}), "seconds": round(self.seconds.get(e.name, 0.0), 2)}
            for e in self.evaluators
        }


class EncodedOnce:
    """A function from sentences to vectors that encodes each distinct sentence once.

    What is new in a call is encoded by itself, so that the first evaluator gets bit for bit what it gets alone.

    Args:
        encode: the encoder.
    """

    def __init__(self, encode: Embed) -> None:
        self.encode = encode
        self._rows: dict[str, int] = {}
        self._vectors: Tensor | None = None  # (distinct sentences, dim)

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """Vectors of sentences, (n, dim)."""
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._rows]
        if new:
            vectors = self.encode(new)
            self._vectors = vectors if self._vectors is None else torch.cat([self._vectors, vectors])
            self._rows.update(zip(new, range(len(self._rows), len(self._rows) + len(new)), strict=True))
        assert self._vectors is not None  # no evaluator asks for nothing
        return self._vectors[[self._rows[sentence] for sentence in sentences]]


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Leave the random states of Python, NumPy and torch (CPU and the current CUDA device) as they are."""
    begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if begun else []
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def build_evaluation(settings: EvaluationSettings, data_dir: str | Path | None = None) -> Evaluation:
    """The evaluators that the settings name: sets, then files, then transfer tasks.

    Args:
        settings: what to evaluate on.
        data_dir: where prepared data lie; None for the usual place.

    Raises:
        UserError: an unknown name, data that are nowhere or wrong, or two sets whose metrics would have one name.
    """
    sets = [pairs for name in settings.eval_set if (pairs := eval_pairs(name, data_dir)) is not None]
    limits = None if settings.eval_score_range is None else (settings.eval_score_range[0], settings.eval_score_range[1])
    files = [read_scored_pairs(file, settings.eval_columns, limits) for file in settings.eval_file or ()]
    taken = {AVERAGE.removesuffix("_spearman"): "the mean over all sets"}
    for pairs, what in [*((p, f"the set {p.name}") for p in sets), *zip(files, settings.eval_file or (), strict=True)]:
        if pairs.slug in taken:
            raise UserError(
                f"--eval_file: {what!r} and {taken[pairs.slug]!r} would both call their metrics "
                f"{pairs.slug}_spearman; rename the file"
            )
        taken[pairs.slug] = what
    evaluators: list[Evaluator] = [StsEvaluator(pairs) for pairs in (*sets, *files)]
    if settings.eval_transfer is not None:
        from dystress_text.evaluation.online import transfer_evaluator  # scikit-learn is slow to import

        evaluators.append(transfer_evaluator(settings.eval_transfer, data_dir))
    return Evaluation(evaluators)


def digest_of(evaluation: Evaluation) -> str:
    """A checksum of all scored pairs: what decides, besides the settings, which model is kept."""
    digest = hashlib.sha256()
    for pairs in evaluation.pairs:
        digest.update(repr((pairs.slug, pairs.first, pairs.second, pairs.scores.tolist())).encode())
    return digest.hexdigest()


def sts_metrics(pairs: StsPairs, result: StsResult) -> dict[str, float]:
    """A result as metrics named after its set."""
    return {f"{pairs.slug}_{key}": value for key, value in vars(result).items()}


def sts_line(title: str, pooler: str, pairs: StsPairs, metrics: Mapping[str, float]) -> str:
    """A line of the table at the end of a run: what a pooler reaches on a set."""
    spearman, alignment, uniformity = (metrics[name] for name in _names(pairs))
    return f"{title:24} {pooler:16} {spearman:8.2f} {alignment:9.4f} {uniformity:10.4f}"


def further_lines(evaluation: Evaluation, metrics: Mapping[str, float], pooler: str) -> list[str]:
    """Lines of the table at the end of a run for all metrics but those of the first set of scored pairs."""
    pairs_of_all = evaluation.pairs
    shown = {name for pairs in pairs_of_all[:1] for name in _names(pairs)}
    lines = []
    for pairs in pairs_of_all[1:]:
        lines.append(sts_line(pairs.name, pooler, pairs, metrics))
        shown.update(_names(pairs))
    return lines + [f"{name:41} {value:8.2f}" for name, value in metrics.items() if name not in shown]


def _names(pairs: StsPairs) -> list[str]:
    return [f"{pairs.slug}_{key}" for key in ("spearman", "alignment", "uniformity")]
