"""Measure a text run before its first step and after its last one, and describe it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor

from dystress_text.evaluation.catalogue import suite_folder
from dystress_text.evaluation.cosines import nearest_texts, random_pairs, similarity_histograms
from dystress_text.evaluation.evaluator_list import EvaluatorList
from dystress_text.evaluation.evaluators import sts_metrics
from dystress_text.evaluation.text_sets import StsPairs
from dystress_text.finetuning.held_out import RECALL, bm25_hits, dense_hits, recall_gain
from dystress_text.finetuning.initial_model import TextModel
from dystress_text.finetuning.settings import FineTuningSettings
from dystress_text.finetuning.training_data import TrainingData
from dystress_text.io.prepared_data import variant_of
from dystress_text.io.words import reader_for
from dystress_text.models.encoding import encode
from dystress_text.models.hybrid import dense_columns, hybrid_part
from dystress_text.models.poolers import (
    FIRST,
    POOLERS,
    attends_to_the_left_only,
    embeddings_by_pooler,
)
from dystress_text.training.run_record import BASE, RunRecord
from dystress_text.training.settings import TrainingSettings


@dataclass
class Measurements:
    """Measures a run's model before and after training, and writes the results into its record.

    Attributes:
        text_model: the model of the run.
        data: the training samples and the held-out rows.
        evaluation: the evaluators. The table at the end and the page show the first set of scored
            pairs.
        record: the record of the run, which the methods fill.
    """

    text_model: TextModel
    data: TrainingData
    evaluation: EvaluatorList
    record: RunRecord
    # whether each held-out anchor found its positive before training, (n,)
    _before: NDArray[np.float64] | None = field(default=None, init=False)

    @property
    def shown_set(self) -> StsPairs | None:
        """The set of scored pairs that the table and the page show; None without one."""
        return next(iter(self.evaluation.pairs), None)

    def before_training(self) -> None:
        """Measure the untrained model with each pooler, and the lexical baseline.

        For a hybrid, measure the dense model too: the hybrid has to beat it.
        """
        record = self.record
        shown = self.shown_set
        held_out = self.data.held_out
        own = self.text_model.untrained
        lexical = self.evaluation.lexical_baseline()
        untrained: dict[str, dict[str, float]] = {}
        models = {record.pooler: own}
        hybrid = hybrid_part(own)
        if hybrid is not None and "dense" in hybrid.parts:
            models = {BASE: hybrid.model, **models}
        elif shown is not None:
            untrained |= self._metrics_by_pooler(own, shown)
        for name, model in models.items():
            figures = untrained.setdefault(name, {})
            figures |= self.evaluation.direct(model)
            if held_out:
                hits = dense_hits(held_out, partial(encode, model))
                figures[RECALL.name] = 100 * float(hits.mean())
                if self._before is None:
                    self._before = hits
        untrained[record.pooler] |= self.evaluation.own_untrained
        self._add_untrained_samples(own)
        if shown is not None:
            metric = shown.metric("spearman").name
            before = similarity_histograms(shown, encode(own, shown.sentences))
            above = shown.positive_above
            record.similarities = {"set": shown.name, "positive_above": above, "before": before}
            if hybrid is None:  # best pooler first
                ranked = sorted(untrained, key=lambda name: -untrained[name].get(metric, -math.inf))
                untrained = {name: untrained[name] for name in ranked}
        readers = [each.reader for each in self.evaluation.direct.evaluators]
        if held_out:
            texts = [text for row in held_out for text in row]
            reader = reader_for(record.settings["language"], texts)
            lexical[RECALL.name] = 100 * float(bm25_hits(held_out, reader.name).mean())
            readers.append(reader)
            record.metrics = {**record.metrics, RECALL.name: RECALL}
        record.lexical = lexical
        record.lexical_words = ", ".join(dict.fromkeys(reader.title for reader in readers))
        record.untrained = {name: figures for name, figures in untrained.items() if figures}

    def _metrics_by_pooler(
        self, model: SentenceTransformer, shown: StsPairs
    ) -> dict[str, dict[str, float]]:
        """Return the metrics of the untrained model with each pooler on the shown set."""
        transformer = model.transformers_model
        if transformer is None:
            return {}
        poolers = list(POOLERS)
        if attends_to_the_left_only(transformer):
            poolers = [name for name in POOLERS if name not in FIRST]
        embeddings = embeddings_by_pooler(model, shown.sentences, poolers)
        return {name: sts_metrics(shown, vectors) for name, vectors in embeddings.items()}

    def _add_untrained_samples(self, model: SentenceTransformer) -> None:
        if self._shows_samples:
            vectors = encode(model, self.data.corpus.sampled_texts)  # (texts, dim)
            columns = dense_columns(model)
            if columns is not None:  # the dense model's vectors are the first numbers
                self._add_samples(BASE, vectors[:, :columns])
            self._add_samples(self.record.start, vectors)

    @property
    def _shows_samples(self) -> bool:
        options = self.record.settings
        return not (options["supervised"] or options["no_samples"])

    def _add_samples(self, label: str, vectors: Tensor) -> None:
        """Record some training texts, each with its nearest texts by ``vectors`` (texts, dim)."""
        seed = self.record.settings["seed"]
        self.record.samples[label] = nearest_texts(self.data.corpus.sampled_texts, vectors, seed)

    def after_training(self, model: SentenceTransformer) -> None:
        """Measure the trained model: held-out rows, similarities, random pairs, nearest texts."""
        record = self.record
        shown = self.shown_set
        if self._before is not None:
            after = dense_hits(self.data.held_out, partial(encode, model))
            recall = 100 * float(after.mean())
            record.trained = {**record.trained, RECALL.name: recall}
            record.held_out = recall_gain(self._before, after)
        if shown is not None:
            embeddings = encode(model, shown.sentences)
            record.similarities["after"] = similarity_histograms(shown, embeddings)
        vectors = encode(model, self.data.corpus.sampled_texts)
        record.random_pairs = random_pairs(vectors.cpu().numpy())
        if self._shows_samples:
            self._add_samples("trained", vectors)


def variants_of_data(settings: FineTuningSettings, data: TrainingData) -> dict[str, str | None]:
    """Map each data option to the name of its variant, or None for the published data."""
    variants = {"train_file": variant_of(Path(data.text.name))}
    if set(settings.evaluation.eval_set) - {"mini_sts", "none"}:
        variants["eval_set"] = variant_of(suite_folder("senteval", settings.text.data_dir))
    return variants


def description(
    settings: FineTuningSettings, training: TrainingSettings, measures: Measurements, steps: int
) -> list[str]:
    """Return lines that describe the data, the loss and the length of a run."""
    options = settings.text
    data = measures.data
    lines = [*measures.text_model.notes, f"{data.corpus.report.summary()} ({data.text.name})"]
    if options.drop_duplicates:
        lines.append("samples with the tokens of an earlier one are dropped")
    if options.cropped:
        unit = "tokens" if measures.text_model.is_static else "words"
        share = f"{options.crop_min} to {options.crop_max} of its {unit}"
        titled = "title and body, and as often " if data.text.titled else ""
        lines.append(f"views: {titled}two crops of a sample, each {share}")
    lines += [collection.summary() for collection in measures.evaluation.collections]
    lines.append(f"loss: {measures.record.loss}")
    batch = training.train_batch_size
    epochs = steps * training.gradient_accumulation_steps / (len(data) // batch)
    length = f"{epochs:.4g} epochs, {steps:,} steps of {batch}"
    lines.append(f"{len(data):,} {data.text.unit}s: {length}")
    return lines
