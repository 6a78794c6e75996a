"""A text run: what it loads, what it prints and measures before the first step and after the last
one.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor

from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.loading import check_saving, load_saved, reads_forward
from dystress_text.encoders.masked_lm import TokenMasking
from dystress_text.encoders.pooling import FIRST, POOLERS
from dystress_text.encoders.saving import prompt_of
from dystress_text.encoders.static import NEW, StaticEncoder
from dystress_text.errors import ParameterError
from dystress_text.evaluation.catalogue import suite_folder
from dystress_text.evaluation.embedder import prompted
from dystress_text.evaluation.evaluators import (
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
from dystress_text.simcse import halves
from dystress_text.simcse.corpus import TokenCroppedCorpus, TokenizedCorpus, load_corpus
from dystress_text.simcse.crops import Crops
from dystress_text.simcse.settings import PROGRAM, RunSettings
from dystress_text.simcse.start import load_start
from dystress_text.simcse.task import SimcseTask
from dystress_text.simcse.texts import TableText, training_text
from dystress_text.training.accelerator import describe, gather_of, keep_few_kernels
from dystress_text.training.batches import count_steps
from dystress_text.training.presets import paper_row
from dystress_text.training.run_folder import TEXT_PROGRAM
from dystress_text.training.run_record import RunRecord
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
        publish: Callable[[Path, dict[str, Any], SentenceEncoder, int], None],
    ) -> None:
        keep_few_kernels()
        text, engine = settings.text, settings.engine
        self.settings, self.accelerator, self.publish = settings, accelerator, publish
        objective = copy.deepcopy(settings.loss).to(accelerator.device)
        objective.gather = gather_of(accelerator)
        with accelerator.local_main_process_first():
            self.text = training_text(text)
        if self.text.columns < 3 and objective.hard_negative_weight != 0:
            raise ParameterError(
                "loss", "hard_negative_weight: there are no hard negatives; --supervised reads them"
            )
        self.evaluation = build_evaluation(settings.evaluation, text.data_dir)
        self.best_metric = self.evaluation.best_metric(engine.metric_for_best_model)
        self.dev = next(iter(self.evaluation.pairs), None)  # the set that table and page show
        set_seed(engine.seed)
        self.start = start = load_start(text, settings.given, self.text)
        start.model.to(accelerator.device)
        masking = (
            TokenMasking(start.tokenizer, text.mlm_probability, engine.seed)
            if text.do_mlm
            else None
        )
        crops = Crops(engine.seed, text.crop_min, text.crop_max, text.max_seq_length)
        static = isinstance(start.model, StaticEncoder)
        self.unit = "tokens" if static else "words"  # of a crop
        with accelerator.local_main_process_first():
            read = load_corpus(
                self.text, start.tokenizer, text.max_seq_length, text.max_train_samples,
                crops=crops if text.views == "crop" and not static else None,
            )  # fmt: skip
        if static and text.views == "crop":
            read = TokenCroppedCorpus(**vars(read), crops=crops)
        if text.model_name_or_path == NEW:
            table: Any = start.model.transformer
            table.start(
                read.texts_with(table.embedding.num_embeddings), len(read.offsets) - 1, engine.seed
            )
        corpus = read.distinct() if text.drop_duplicates else read
        dropped = len(read) - len(corpus)
        corpus = self._without_held_out(read, corpus)
        self.samples = len(corpus)
        self.engine = self._fitted(read)
        self.task = SimcseTask(
            start.model, start.tokenizer, corpus, objective, self.evaluation, masking=masking,
            mlm_weight=text.mlm_weight,
        )  # fmt: skip
        own = settings.evaluation.eval_file or settings.evaluation.eval_retrieval
        self.data_id = corpus.identity + (
            f", --eval_file {self.evaluation.digest()}" if own else ""
        )
        self.options = settings.options() | {
            "pooler_type": start.model.pooler_type, "metric_for_best_model": self.best_metric,
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
            **start.about,
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
            self.start.notes.append(f"{len(self.held)} texts are held out" if self.held else few)
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
            self.start.notes.append(f"batches of {fewer}, as there are no more samples")
            engine = replace(engine, train_batch_size=fewer)
        if self.samples < (batch := engine.train_batch_size):
            counts = read.report.summary() + "; drop_duplicates keeps the first of each" * (
                len(read) > self.samples
            )
            reason = f"{batch} exceeds the {self.samples} samples of {self.text.name!r} ({counts})"
            raise ParameterError("train_batch_size", reason)
        if isinstance(self.start.model, StaticEncoder) and "learning_rate" not in given:
            _, steps = count_steps(self.samples // batch, engine)
            engine = replace(
                engine,
                learning_rate=engine.learning_rate * min(1.0, math.sqrt(FULL_RATE_STEPS / steps)),
            )
        layers = getattr(self.start.model.transformer.config, "num_hidden_layers", 0)
        if layers >= DEEP and engine.learning_rate > DEEP_RATE and self.settings.text.lora is None:
            warnings.warn(
                f"learning_rate: {engine.learning_rate:g} is for a small encoder; one of {layers} layers learns with "
                "1e-5 to 5e-5, as --learning_rate 3e-5 says, and may be spoilt by more",
                stacklevel=2,
            )
        return engine

    def begin(self, steps: int, before: Mapping[str, Any]) -> None:
        task, corpus = self.task, self.task.corpus
        columns = (
            f": {', '.join(self.text.rows.column_names)}"
            if isinstance(self.text, TableText)
            else ""
        )
        counts = corpus.report.summary(self.settings.text.drop_duplicates)
        lines = [*self.start.notes, f"{counts} ({self.text.name}{columns})"]
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
        check_saving(
            task.model, task.tokenizer, Path(self.settings.engine.output_dir) / MODEL_STAGING
        )
        self.record["words"] = self.evaluation.words()
        self.record["untrained"] = {} if self.dev is None else self._measure_untrained(self.dev)
        untrained = prompted(self._encode_untrained, task.model)
        further = len(self.evaluation.direct.evaluators) > (
            self.dev is not None
        )  # dev is measured by now
        figures = self.evaluation.direct(untrained) if further else {}
        if figures or self.held:
            of_pooler = self.record["untrained"].setdefault(task.model.pooler_type, {})
            of_pooler |= {name: figure for name, figure in figures.items() if name not in of_pooler}
        if self.held:
            self.before = halves.measure(self.held, untrained)
            of_pooler[halves.METRIC] = 100 * self.before[0].mean()
            self.record["words"][halves.METRIC] = 100 * halves.by_words(self.held).mean()

    def _variants(self) -> dict[str, str | None]:
        """The variants of prepared data, by option; None for published data."""
        variants = {"train_file": variant_of(Path(self.text.name))}
        if set(self.settings.evaluation.eval_set) - {"mini_sts", "none"}:
            variants["eval_set"] = variant_of(suite_folder("senteval", self.settings.text.data_dir))
        return variants

    @property
    def _beyond_pooling(self) -> bool:
        """Whether more than a pooler makes the start's vectors: a head that was trained before,
        weights of layers.
        """
        model = self.task.model
        return model.layers is not None or (
            model.keep_head and self.record["head"]["starts"] != "new"
        )

    def _encode_untrained(self, texts: Sequence[str]) -> Tensor:
        """The vectors before training, (n, dim), without a head that is new."""
        model, tokenizer = self.task.model, self.task.tokenizer
        if self._beyond_pooling:
            return model.encode(texts, tokenizer, raw=True)
        return model.encode_by_pooler(texts, tokenizer, [model.pooler_type])[model.pooler_type]

    def _measure_untrained(self, dev: StsPairs) -> dict[str, dict[str, float]]:
        """The figures of each pooler before training, the best one first."""
        model, tokenizer = self.task.model, self.task.tokenizer
        unfit = (
            FIRST if reads_forward(model.transformer, tokenizer) else ()
        )  # a decoder's first token sees no other
        poolers = [name for name in POOLERS if name not in unfit]
        if isinstance(model, StaticEncoder):  # the mean is all it can
            poolers = [model.pooler_type]
        texts = [prompt_of(model.transformer) + sentence for sentence in dev.sentences]
        vectors = model.encode_by_pooler(
            texts, tokenizer, poolers
        )  # (distinct sentences, dim) each
        if self._beyond_pooling:
            vectors[model.pooler_type] = model.encode(texts, tokenizer)
        self.record["similarities"] = {
            "set": dev.name,
            "positive_above": dev.positive_above,
            "before": similarity_histograms(dev, vectors[model.pooler_type]),
        }
        self.record["eval_sha256"] = {
            each.best_metrics[0].rpartition("_")[0]: replace(
                self.evaluation, evaluators=[each]
            ).digest()
            for each in self.evaluation.evaluators
        }
        results = {name: sts_metrics(dev, vectors[name]) for name in poolers}
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
        best, tokenizer = load_saved(output)
        plain = partial(best.to(self.accelerator.device).encode, tokenizer=tokenizer, raw=True)
        encode = prompted(plain, best)
        if self.held:
            after = halves.measure(self.held, encode)
            self.record["trained"] = {
                **self.record["trained"],
                halves.METRIC: 100 * after[0].mean(),
            }
            self.record["halves"] = halves.compared(self.held, self.before, after)
        if dev is not None:
            self.record["similarities"]["after"] = similarity_histograms(dev, encode(dev.sentences))
        self.record["random_pairs"] = random_pairs(encode(task.corpus.some).numpy())
        print(*self._results(), sep="\n", flush=True)
        self.publish(output, self.record, best, tokenizer.model_max_length)

    def _results(self) -> list[str]:
        """Speed, what was learned, and the table of the set before and after training."""
        record, dev, pooler = self.record, self.dev, self.task.model.pooler_type
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
            f"{cosine} by {share}" for share, cosine in random_pairs_rows(record["random_pairs"])
        ):
            lines.append(f"similarity reached by random pairs: {reached}")
        if dev is not None:
            lines.append(
                f"\n{dev.name:24} {'pooler':16} {'Spearman':>8} {'alignment':>9} {'uniformity':>10}"
            )
            titles = ("untrained, best pooler", "untrained")
            before = RunRecord.from_json(record).untrained_best_and_own.items()
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
        finished = RunRecord.from_json(record)
        return lines + halves.outcome(finished) + not_beaten(finished)
