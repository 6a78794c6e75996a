"""A text run: what it loads, what it prints and measures before the first step and after the last
one.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.utils import set_seed
from sentence_transformers import SentenceTransformer

from dystress_text.errors import ParameterError
from dystress_text.evaluation.catalogue import suite_folder
from dystress_text.evaluation.evaluators import (
    Evaluation,
    build_evaluation,
    further_lines,
    sts_line,
    sts_metrics,
    words_line,
)
from dystress_text.evaluation.random_pairs import random_pairs, random_pairs_rows
from dystress_text.evaluation.readers import StsPairs
from dystress_text.evaluation.sts import similarity_histograms
from dystress_text.evaluation.words import not_beaten
from dystress_text.files.prepared_data import variant_of
from dystress_text.files.text_lines import CorpusReport
from dystress_text.files.whole import MODEL_STAGING, versions
from dystress_text.models.embedder import encode
from dystress_text.models.loading import load_sentence_transformer
from dystress_text.models.masked_lm import TokenMasking
from dystress_text.models.poolers import (
    FIRST,
    POOLERS,
    attends_to_the_left_only,
    embeddings_by_pooler,
)
from dystress_text.models.static import NEW, initialize_by_idf, table_of
from dystress_text.simcse import halves
from dystress_text.simcse.corpus import TokenCroppedCorpus, TokenizedCorpus, load_corpus
from dystress_text.simcse.crops import Crops
from dystress_text.simcse.initial_model import NEW_HEAD, check_saving, load_initial_model
from dystress_text.simcse.settings import PROGRAM, RunSettings
from dystress_text.simcse.task import SimcseTask
from dystress_text.simcse.texts import TextSummary, TrainingText, training_text
from dystress_text.training.accelerator import describe, gather_of, keep_few_kernels
from dystress_text.training.batches import count_steps
from dystress_text.training.presets import paper_row
from dystress_text.training.run_folder import TEXT_PROGRAM, untrained_of
from dystress_text.training.settings import EngineSettings
from dystress_text.training.task import Run

FULL_RATE_STEPS = 250  # of a table; longer runs take a preset's rate x sqrt(250 / steps), so that words stay words
DEEP, DEEP_RATE = 12, 1e-4  # layers from which on a higher rate is said to be one


class TextRun(Run):
    """A run on sentences; build it on all processes.

    ``publish`` writes record, card and page into the folder; the number is the most tokens that the
    model reads.
    """

    task: SimcseTask

    def __init__(
        self,
        settings: RunSettings,
        accelerator: Accelerator,
        publish: Callable[[Path, dict[str, Any], SentenceTransformer], None],
        texts: TrainingText | None = None,
    ) -> None:
        keep_few_kernels()
        text, engine = settings.text, settings.engine
        self.settings, self.accelerator, self.publish = settings, accelerator, publish
        objective = copy.deepcopy(settings.loss).to(accelerator.device)
        objective.gather = gather_of(accelerator)
        with accelerator.local_main_process_first():
            self.text = texts or training_text(text)
        if self.text.columns < 3 and objective.hard_negative_weight != 0:
            raise ParameterError(
                "loss", "hard_negative_weight: there are no hard negatives; --supervised reads them"
            )
        self.evaluation = build_evaluation(settings.evaluation, text.data_dir)
        self.best_metric = self.evaluation.best_metric(engine.metric_for_best_model)
        self.dev = next(iter(self.evaluation.pairs), None)  # the set that table and page show
        set_seed(engine.seed)
        self.initial = initial = load_initial_model(text, settings.given, self.text)
        initial.embedder.to(accelerator.device)
        initial.model.to(accelerator.device)
        masking = (
            TokenMasking(initial.tokenizer, text.mlm_probability, engine.seed)
            if text.do_mlm
            else None
        )
        crops = Crops(engine.seed, text.crop_min, text.crop_max, text.max_seq_length)
        static = initial.is_static
        self.unit = "tokens" if static else "words"  # of a crop
        with accelerator.local_main_process_first():
            read = load_corpus(
                self.text, initial.tokenizer, text.max_seq_length, text.max_train_samples,
                crops=crops if text.views == "crop" and not static else None,
            )  # fmt: skip
        if static and text.views == "crop":
            read = TokenCroppedCorpus(**vars(read), crops=crops)
        if text.model_name_or_path == NEW:
            static_model = initial.embedder.model
            texts_with = read.texts_with(len(table_of(static_model)))
            initialize_by_idf(static_model, texts_with, len(read.offsets) - 1, engine.seed)
        corpus = read.distinct() if text.drop_duplicates else read
        dropped = len(read) - len(corpus)
        corpus = self._without_held_out(read, corpus)
        self.samples = len(corpus)
        self.engine = self._fitted(read)
        self.task = SimcseTask(
            initial, corpus, objective, self.evaluation, masking=masking, mlm_weight=text.mlm_weight,
        )  # fmt: skip
        own = settings.evaluation.eval_file or settings.evaluation.eval_retrieval
        self.data_id = corpus.identity + (
            f", --eval_file {self.evaluation.digest()}" if own else ""
        )
        self.options = settings.options() | {
            "pooler_type": initial.pooler, "metric_for_best_model": self.best_metric,
            "train_batch_size": self.engine.train_batch_size, "learning_rate": self.engine.learning_rate,
        }  # fmt: skip
        self.record = {
            "program": TEXT_PROGRAM,
            "settings": self.options,
            "loss": str(objective),
            "corpus": {**asdict(corpus.report), "dropped": dropped},
            "collections": {each.name: each.about for each in self.evaluation.collections},
            "versions": versions("sentence-transformers", "tokenizers"),
            **paper_row(PROGRAM, settings.options()),
            **initial.metadata,
        }

    def _without_held_out(self, read: TokenizedCorpus, corpus: TokenizedCorpus) -> TokenizedCorpus:
        text = self.settings.text
        self.held: list[str] = []
        if (
            text.views == "crop"
            and text.held_out
            and not {*self.settings.evaluation.eval_set} - {"none"}
        ):
            samples = self.text.sentences(CorpusReport(), text.max_train_samples)
            self.held, numbers = halves.hold_out(read, samples, text.held_out)
            few = f"no text is held out: there must be {10 * halves.LEAST} that can be cropped"
            self.initial.notes.append(f"{len(self.held)} texts are held out" if self.held else few)
            corpus = replace(
                corpus, chosen=np.setdiff1d(corpus.numbers(np.arange(len(corpus))), numbers)
            )
        return corpus

    def _fitted(self, read: TokenizedCorpus) -> EngineSettings:
        """The settings of the loop; batch size and a table's rate, where a preset has them, follow
        the samples.
        """
        engine, given, ranks = (
            self.settings.engine,
            self.settings.given,
            self.accelerator.num_processes,
        )
        fewer = self.samples // ranks * ranks
        if 2 <= fewer < engine.train_batch_size and "train_batch_size" not in given:
            self.initial.notes.append(f"batches of {fewer}, as there are no more samples")
            engine = replace(engine, train_batch_size=fewer)
        if self.samples < (batch := engine.train_batch_size):
            counts = read.report.summary() + "; drop_duplicates keeps the first of each" * (
                len(read) > self.samples
            )
            reason = f"{batch} exceeds the {self.samples} samples of {self.text.name!r} ({counts})"
            raise ParameterError("train_batch_size", reason)
        if self.initial.is_static and "learning_rate" not in given:
            _, steps = count_steps(self.samples // batch, engine)
            engine = replace(
                engine,
                learning_rate=engine.learning_rate * min(1.0, math.sqrt(FULL_RATE_STEPS / steps)),
            )
        transformer = self.initial.model.transformers_model
        layers = getattr(getattr(transformer, "config", None), "num_hidden_layers", 0)
        if layers >= DEEP and engine.learning_rate > DEEP_RATE and self.settings.text.lora is None:
            warnings.warn(
                f"learning_rate: {engine.learning_rate:g} is for a small encoder; one of {layers} layers learns with "
                "1e-5 to 5e-5, as --learning_rate 3e-5 says, and may be spoilt by more",
                stacklevel=2,
            )
        return engine

    def begin(self, steps: int, before: Mapping[str, Any]) -> None:
        task, corpus = self.task, self.task.corpus
        read = TextSummary.of(self.text, corpus.report)
        lines = [*self.initial.notes, *read.lines(self.settings.text.drop_duplicates)]
        if self.settings.text.drop_duplicates:
            lines.append(
                f"{self.record['corpus']['dropped']:,} samples with the tokens of an earlier one are dropped"
            )
        self.record["data_variants"] = variants = self._variants()
        told = "not the published data but a variant"
        lines += [f"--{name}: {told}: {variant}" for name, variant in variants.items() if variant]
        if (text := self.settings.text).views == "crop":
            lines.append(
                f"views: two crops of a sample, each {text.crop_min} to {text.crop_max} of its {self.unit}"
            )
        lines += [collection.summary() for collection in self.evaluation.collections]
        lines.append(f"loss: {task.objective}")
        samples = "samples" if self.text.columns == 1 else f"rows of {corpus.columns} sentences"
        batch_size = (engine := self.engine or self.settings.engine).train_batch_size
        epochs = steps * engine.gradient_accumulation_steps / (self.samples // batch_size)
        length = f"{epochs:.4g} epochs, {steps:,} steps of {batch_size}"
        lines.append(f"{self.samples:,} {samples}: {length} on {describe(self.accelerator)}")
        print(*lines, sep="\n", flush=True)
        check_saving(self.initial, Path(self.settings.engine.output_dir) / MODEL_STAGING)
        self.record["words"] = self.evaluation.lexical_baseline()
        self.record["untrained"] = {} if self.dev is None else self._measure_untrained(self.dev)
        untrained = self.initial.untrained
        further = len(self.evaluation.direct.evaluators) > (self.dev is not None)
        figures = self.evaluation.direct(untrained) if further else {}
        if figures or self.held:
            of_pooler = self.record["untrained"].setdefault(str(self.initial.pooler), {})
            of_pooler |= {name: figure for name, figure in figures.items() if name not in of_pooler}
        if self.held:
            self.before = halves.measure(self.held, partial(encode, untrained))
            of_pooler[halves.METRIC] = 100 * self.before[0].mean()
            self.record["words"][halves.METRIC] = 100 * halves.by_words(self.held).mean()

    def _variants(self) -> dict[str, str | None]:
        """The variants of prepared data, by option; None for published data."""
        variants = {"train_file": variant_of(Path(self.text.name))}
        if set(self.settings.evaluation.eval_set) - {"mini_sts", "none"}:
            variants["eval_set"] = variant_of(suite_folder("senteval", self.settings.text.data_dir))
        return variants

    @property
    def _has_trained_parts(self) -> bool:
        """Whether more than a pooler follows the transformer: a trained head, weights of layers."""
        head = self.record["head"] or {"kept": False}
        return self.initial.pooler is None or (head["kept"] and head["starts"] != NEW_HEAD)

    def _measure_untrained(self, dev: StsPairs) -> dict[str, dict[str, float]]:
        """The figures of each pooler before training, the best one first."""
        own = str(self.initial.pooler)
        untrained = self.initial.untrained
        transformer = untrained.transformers_model
        if transformer is None:  # of a static or a hybrid model
            embeddings = {own: encode(untrained, dev.sentences)}
        else:
            poolers = list(POOLERS)
            if attends_to_the_left_only(transformer, self.initial.tokenizer):
                poolers = [name for name in POOLERS if name not in FIRST]  # it sees no other token
            embeddings = embeddings_by_pooler(untrained, dev.sentences, poolers)
            if self._has_trained_parts:
                embeddings[own] = encode(untrained, dev.sentences)
        self.record["similarities"] = {
            "set": dev.name,
            "positive_above": dev.positive_above,
            "before": similarity_histograms(dev, embeddings[own]),
        }
        self.record["eval_sha256"] = {
            str(each.primary_metric).rpartition("_")[0]: Evaluation([each]).digest()
            for each in self.evaluation.evaluators
        }
        results = {name: sts_metrics(dev, vectors) for name, vectors in embeddings.items()}
        return dict(
            sorted(
                results.items(),
                key=lambda result: -result[1].get(dev.metric("spearman"), -math.inf),
            )
        )

    def finish(self, samples_per_second: float, output: Path) -> None:
        task, dev = self.task, self.dev
        self.record |= {
            "sentences_per_second": round(self.text.columns * samples_per_second, 1),
            "padding_share": round(task.padding_share, 4),
        }
        best = load_sentence_transformer(str(output), str(self.accelerator.device))
        if self.held:
            after = halves.measure(self.held, partial(encode, best))
            self.record["trained"] = {
                **self.record["trained"],
                halves.METRIC: 100 * after[0].mean(),
            }
            self.record["halves"] = halves.compared(self.held, self.before, after)
        if dev is not None:
            self.record["similarities"]["after"] = similarity_histograms(
                dev, encode(best, dev.sentences)
            )
        self.record["random_pairs"] = random_pairs(encode(best, task.corpus.some).cpu().numpy())
        print(*self._results(), sep="\n", flush=True)
        self.publish(output, self.record, best)

    def _results(self) -> list[str]:
        """Speed, what was learned, and the table of the set before and after training."""
        record, dev, pooler = self.record, self.dev, str(self.initial.pooler)
        padding = (
            "" if self.unit == "tokens" else f", {100 * record['padding_share']:.1f} % padding"
        )
        lines = [
            f"{record['sentences_per_second']:,.0f} sentences/s, {record['train_seconds']:,.0f} s of training, "
            f"{self.evaluation.seconds:,.0f} s of evaluation, "
            f"peak memory {record['peak_memory_gb']:.2f} GB{padding}"
        ]
        if learned := record.get("learned_temperature"):
            lines.append(
                "learned: " + ", ".join(f"{name} {value:.4f}" for name, value in learned.items())
            )
        if reached := ", ".join(
            f"{cosine} by {share}" for share, cosine in random_pairs_rows(record)
        ):
            lines.append(f"similarity reached by random pairs: {reached}")
        if dev is not None:
            lines.append(
                f"\n{dev.name:24} {'pooler':16} {'Spearman':>8} {'alignment':>9} {'uniformity':>10}"
            )
            titles = ("untrained, best pooler", "untrained")
            before = untrained_of(record).items()
            lines += [
                sts_line(title, name, dev, of)
                for title, (name, of) in zip(titles, before, strict=False)
            ]
            lines.append(
                sts_line(f"trained, step {record['best_step']}", pooler, dev, record["trained"])
            )
            lines += words_line(dev, record["words"])
        shown = {
            name: figure for name, figure in record["trained"].items() if name != halves.METRIC
        }
        lines += further_lines(
            self.evaluation, record["untrained"].get(pooler, {}), shown, record["words"], pooler
        )
        return lines + halves.outcome(record) + not_beaten(record)
