"""Measure and describe a text run before its first step and after its last one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from dystress_text.config.settings import RunSettings
from dystress_text.data.texts import reading_lines
from dystress_text.evaluation.catalogue import suite_folder
from dystress_text.evaluation.evaluators import (
    EvaluatorList,
    further_lines,
    lexical_line,
    sts_line,
    sts_metrics,
)
from dystress_text.evaluation.lexical import not_beaten
from dystress_text.evaluation.random_pairs import random_pairs, random_pairs_rows
from dystress_text.evaluation.readers import StsPairs
from dystress_text.evaluation.sts import similarity_histograms
from dystress_text.finetuning import holdout
from dystress_text.finetuning.initial_model import InitialModel
from dystress_text.finetuning.training_data import TrainingData
from dystress_text.io.prepared_data import variant_of
from dystress_text.models.embedder import encode
from dystress_text.models.hybrid import hybrid_part
from dystress_text.models.poolers import (
    FIRST,
    POOLERS,
    attends_to_the_left_only,
    embeddings_by_pooler,
)
from dystress_text.training.run_record import BASE, RunRecord
from dystress_text.training.settings import TrainingSettings


@dataclass
class RunMeasures:
    """Measures a run's model before and after training, into the run's record.

    Attributes:
        initial: the model.
        data: the training samples and the held-out ones.
        evaluation: the evaluators; the first set of scored pairs is shown in table and page.
        record: the content of ``run.json``, which the methods extend.
    """

    initial: InitialModel
    data: TrainingData
    evaluation: EvaluatorList
    record: dict[str, Any]
    _before: holdout.Measured | None = field(default=None, init=False)  # on held-out samples

    @property
    def shown_set(self) -> StsPairs | None:
        """The set of scored pairs that table and page show, if any."""
        return next(iter(self.evaluation.pairs), None)

    @property
    def _pooler(self) -> str:
        return str(self.initial.pooler)

    def before_training(self) -> None:
        """Measure the untrained model with each pooler, and the lexical baseline.

        For a hybrid, measure its dense model first: that is what the hybrid has to beat.
        """
        record = self.record
        shown = self.shown_set
        held_out = self.data.held_out
        models = {self._pooler: self.initial.untrained}
        hybrid = hybrid_part(self.initial.untrained)
        untrained: dict[str, dict[str, float]] = {}
        if hybrid is not None:
            models = {BASE: hybrid.model, **models}
            untrained[BASE] = {}
        lexical = self.evaluation.lexical_baseline()
        if shown is not None:
            untrained |= self._by_pooler(shown)
        record["eval_sha256"] = {
            str(each.primary_metric).rpartition("_")[0]: EvaluatorList([each]).digest()
            for each in self.evaluation.evaluators
        }
        direct = self.evaluation.direct
        for name, model in models.items():
            figures = untrained.setdefault(name, {})
            # _by_pooler has measured the set that is shown
            if name == BASE or len(direct.evaluators) > (shown is not None):
                figures |= direct(model) | figures
            if held_out:
                found = holdout.measure(held_out, partial(encode, model))
                figures[holdout.metric_of(held_out)] = 100 * float(found[0].mean())
                if self._before is None:
                    self._before = found
            if not figures:
                del untrained[name]
        if held_out:
            lexical[holdout.metric_of(held_out)] = 100 * float(holdout.bm25_recall(held_out).mean())
        record["lexical"] = lexical
        record["untrained"] = untrained

    def _by_pooler(self, shown: StsPairs) -> dict[str, dict[str, float]]:
        """Measure the untrained model with each pooler on the shown set, best pooler first."""
        model = self.initial.untrained
        transformer = model.transformers_model
        embeddings = {}
        if transformer is not None and hybrid_part(model) is None:
            poolers = list(POOLERS)
            if attends_to_the_left_only(transformer):
                poolers = [name for name in POOLERS if name not in FIRST]
            embeddings = embeddings_by_pooler(model, shown.sentences, poolers)
        has_head = any(isinstance(module, Dense) for module in model)
        if has_head or self._pooler not in embeddings:
            embeddings[self._pooler] = encode(model, shown.sentences)
        self.record["similarities"] = {
            "set": shown.name,
            "positive_above": shown.positive_above,
            "before": similarity_histograms(shown, embeddings[self._pooler]),
        }
        metric = shown.metric("spearman")
        results = [(name, sts_metrics(shown, vectors)) for name, vectors in embeddings.items()]
        results.sort(key=lambda result: -result[1].get(metric, -math.inf))
        return dict(results)

    def after_training(self, model: SentenceTransformer) -> None:
        """Measure the saved model: held-out samples, similarities, random pairs."""
        record = self.record
        shown = self.shown_set
        held_out = self.data.held_out
        if self._before is not None:
            after = holdout.measure(held_out, partial(encode, model))
            metric = holdout.metric_of(held_out)
            record["trained"] = {**record["trained"], metric: 100 * float(after[0].mean())}
            record["held_out"] = holdout.compared(held_out, self._before, after)
        if shown is not None:
            embeddings = encode(model, shown.sentences)
            record["similarities"]["after"] = similarity_histograms(shown, embeddings)
        some = encode(model, self.data.corpus.some)
        record["random_pairs"] = random_pairs(some.cpu().numpy())

    def result_lines(self) -> list[str]:
        """Return lines with speed, learned temperatures, and figures before and after training."""
        record = self.record
        finished = RunRecord.from_json(record)
        lines = [self._speed()]
        learned = record.get("learned_temperature", {})
        if learned:
            values = ", ".join(f"{name} {value:.4f}" for name, value in learned.items())
            lines.append(f"learned: {values}")
        reached = random_pairs_rows(finished.random_pairs)
        if reached:
            shares = ", ".join(f"{cosine} by {share}" for share, cosine in reached)
            lines.append(f"similarity reached by random pairs: {shares}")
        if self.shown_set is not None:
            lines += self._table(self.shown_set, finished)
        trained = dict(record["trained"])
        if finished.held_out is not None:
            trained.pop(finished.held_out.metric)
        before = record["untrained"].get(self._pooler, {})
        lines += further_lines(self.evaluation, before, trained, record["lexical"], self._pooler)
        base = record["untrained"].get(BASE, {})
        lines += [f"{BASE}: {name} {base[name]:.2f}" for name in trained if name in base]
        lines += holdout.outcome(finished)
        return lines + not_beaten(finished)

    def _speed(self) -> str:
        record = self.record
        speed = (
            f"{record['sentences_per_second']:,.0f} sentences/s, {record['train_seconds']:,.0f} s "
            f"of training, {self.evaluation.seconds:,.0f} s of evaluation, peak memory "
            f"{record['peak_memory_gb']:.2f} GB"
        )
        if self.initial.is_static:
            return speed
        return f"{speed}, {100 * record['padding_share']:.1f} % padding"

    def _table(self, shown: StsPairs, finished: RunRecord) -> list[str]:
        """Return a table of the untrained model, the trained one and the lexical baseline."""
        record = self.record
        head = f"{'pooler':16} {'Spearman':>8} {'alignment':>9} {'uniformity':>10}"
        lines = [f"\n{shown.name:24} {head}"]
        titles = ("untrained, best pooler", "untrained")
        untrained = finished.untrained_best_and_own.items()
        for title, (pooler, figures) in zip(titles, untrained, strict=False):
            if pooler == BASE:
                title = "untrained"
            lines.append(sts_line(title, pooler, shown, figures))
        title = f"trained, step {record['best_step']}"
        lines.append(sts_line(title, self._pooler, shown, record["trained"]))
        return lines + lexical_line(shown, record["lexical"])


def variants_of_data(settings: RunSettings, data: TrainingData) -> dict[str, str | None]:
    """Return the variant of each prepared data set, by option; None for published data."""
    variants = {"train_file": variant_of(Path(data.text.name))}
    if set(settings.evaluation.eval_set) - {"mini_sts", "none"}:
        variants["eval_set"] = variant_of(suite_folder("senteval", settings.text.data_dir))
    return variants


def description(
    settings: RunSettings,
    training: TrainingSettings,
    data: TrainingData,
    measures: RunMeasures,
    steps: int,
    devices: str,
) -> list[str]:
    """Return lines that describe the data, the loss and the length of a run."""
    options, corpus = settings.text, data.corpus
    lines = [*measures.initial.notes]
    lines += reading_lines(data.text, corpus.report, options.drop_duplicates)
    if options.drop_duplicates:
        lines.append(f"{data.dropped:,} samples with the tokens of an earlier one are dropped")
    for name, variant in measures.record["data_variants"].items():
        if variant:
            lines.append(f"--{name}: not the published data but a variant: {variant}")
    if options.cropped:
        share = f"{options.crop_min} to {options.crop_max} of its {data.unit}"
        lines.append(f"views: two crops of a sample, each {share}")
    lines += [collection.summary() for collection in measures.evaluation.collections]
    lines.append(f"loss: {measures.record['loss']}")
    samples = "samples" if data.text.columns == 1 else f"rows of {corpus.columns} sentences"
    batch = training.train_batch_size
    epochs = steps * training.gradient_accumulation_steps / (len(data) // batch)
    length = f"{epochs:.4g} epochs, {steps:,} steps of {batch}"
    lines.append(f"{len(data):,} {samples}: {length} on {devices}")
    return lines
