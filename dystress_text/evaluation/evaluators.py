"""Evaluators for scored pairs, transfer tasks and search.

Each measures a model while it trains, here or in sentence-transformers' trainer, and any encoder
for the result lines of ``dystress evaluate``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from sentence_transformers.base.evaluation import SentenceEvaluator
from torch import Tensor

from dystress_text.errors import DataError
from dystress_text.evaluation.catalogue import TransferTask
from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.retrieval import METRICS, WITH_BM25, Collection
from dystress_text.evaluation.statistics import EACH
from dystress_text.evaluation.sts import score_vectors, spearman, subset_figures
from dystress_text.evaluation.text_encoder import Encoder, TextEncoder
from dystress_text.evaluation.text_sets import Labelled, StsPairs, checksum_of
from dystress_text.io.words import WordReader, reader_for
from dystress_text.models.encoding import encode
from dystress_text.training.run_record import Metric


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
    language: str | None = None  # of the lexical baseline; None detects it
    similarity: str | None = None  # the similarity function; None for the model's own
    scores: Sequence[float] = ()  # the gold scores of pairs

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
        return finite({metric.name: figures[key] for key, metric in metrics if key in figures})


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
        metric = Metric(f"{task.name.lower()}_dev", "accuracy", title, "transfer")
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


def sts_metrics(pairs: StsPairs, vectors: Tensor, similarity: str = "cosine") -> dict[str, float]:
    """Score embeddings of ``pairs.sentences``, (n, dim); leave out metrics that are NaN."""
    scores = score_vectors(pairs, vectors, similarity)
    return finite({pairs.metric(measure).name: score for measure, score in scores.items()})


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are finite; a set without similar pairs has no alignment."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
