"""A text run: what it loads, what it prints and measures before the first step and after the last one."""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.registry import Temperature
from dystress_text.encoders.encoder import SentenceEncoder, check_length, check_views
from dystress_text.encoders.masked_lm import TokenMasking
from dystress_text.encoders.pooling import POOLERS
from dystress_text.encoders.saved_model import load_saved
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import PREPARED_SETS, suite_folder
from dystress_text.evaluation.evaluators import (
    Evaluation,
    build_evaluation,
    digest_of,
    further_lines,
    sts_line,
    sts_metrics,
)
from dystress_text.evaluation.random_pairs import random_pairs
from dystress_text.evaluation.readers import POSITIVE_SCORE, StsPairs
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.evaluation.sts import Embed, pair_similarities, score_vectors
from dystress_text.files.places import EMBEDDED
from dystress_text.files.prepared_data import variant_of
from dystress_text.files.text_lines import CorpusReport
from dystress_text.files.whole import versions
from dystress_text.simcse.corpus import TokenizedCorpus, TrainingText, load_corpus, tokenizer_id
from dystress_text.simcse.objective import TEXT, objective_of
from dystress_text.simcse.presets import PRESETS
from dystress_text.simcse.settings import RunSettings, TextSettings
from dystress_text.simcse.start import Start, load_start
from dystress_text.simcse.task import SimcseTask
from dystress_text.simcse.training_text import training_text
from dystress_text.training.accelerator import (
    describe,
    evaluation_dtype,
    gather_of,
    global_batch_size,
    keep_few_kernels,
)
from dystress_text.training.build_loss import build_temperature, learned_group
from dystress_text.training.presets import entry_of, settings_of, trained_with
from dystress_text.training.run_folder import TEXT_PROGRAM
from dystress_text.training.settings import EngineSettings, LossSettings
from dystress_text.training.similarity_log import similarity_log_of
from dystress_text.training.task import Run, TrainingSummary

Publish = Callable[[Path, Mapping[str, Any], ContrastiveLoss], str | None]


@dataclass(kw_only=True)
class TextRun(Run):
    """A run on sentences.

    Attributes:
        settings: as parsed.
        start: the encoder before the first step.
        text: the training sentences.
        evaluation: of the task.
        variants: of the prepared data, by option; None for published data.
        publish: writes card and page into the folder, and returns a line about them.
        accelerator: of the run.
    """

    task: SimcseTask
    settings: RunSettings
    start: Start
    text: TrainingText
    evaluation: Evaluation
    variants: Mapping[str, str | None]
    publish: Publish
    accelerator: Accelerator
    _sentences: list[str] = field(init=False)  # that are measured

    @property
    def dev(self) -> StsPairs | None:
        """The first set of scored pairs, which table and page show; None without scored pairs."""
        return next(iter(self.evaluation.pairs), None)

    def begin(self, steps: int, batch_size: int, before: Mapping[str, Any]) -> None:
        for line in (*self.start.notes, f"{self.task.corpus.report.summary()} ({self.text.name})"):
            _say(line)
        if self.settings.text.drop_duplicates:
            dropped = self.record["corpus"]["dropped"]
            _say(f"{dropped:,} samples with the tokens of an earlier one were dropped (--drop_duplicates)")
        self._sentences = some_sentences(self.text, self.task.corpus)  # now: a text may be gone at the end
        for option, variant in self.variants.items():
            if variant is not None:
                _say(f"--{option}: not the published data but a variant: {variant}")
        objective, columns = self.task.objective, self.task.corpus.columns
        _say(f"{type(objective).__name__} with {objective.temperature}")
        samples = "sentences" if columns == 1 else f"rows of {columns} sentences"
        _say(f"{steps:,} steps of {batch_size} {samples} on {describe(self.accelerator)}")
        self._measure_untrained()

    def _measure_untrained(self) -> None:
        dev, model = self.dev, self.task.model
        self.record["untrained"] = {}
        if dev is None:
            return
        vectors = vectors_by_pooler(dev, model, self.task.tokenizer)
        if self.start.has_head:
            vectors[model.pooler_type] = _encode(model, self.task.tokenizer, dev.sentences)
        self.record["untrained"] = untrained(dev, vectors)
        before = pair_similarities(dev, vectors[model.pooler_type]).histograms()
        self.record["similarities"] = {"set": dev.name, "before": before}
        if dev.positive_above != POSITIVE_SCORE:
            self.record["similarities"]["positive_above"] = dev.positive_above

    def finish(self, summary: TrainingSummary, output: Path) -> None:
        task, dev = self.task, self.dev
        self.record |= {
            "sentences_per_second": round(task.corpus.columns * summary.samples_per_second, 1),
            "padding_share": round(task.padding_share, 4),
        }
        best = load_saved(output)[0].to(self.accelerator.device)
        encode = partial(_encode, best, task.tokenizer)
        if self.evaluation.evaluators and task.evaluation_dtype != torch.float32:
            self.record["trained"] = self.evaluation(encode)  # the record's figures are the saved model's in fp32
        if dev is not None:
            self.record["similarities"]["after"] = pair_similarities(dev, encode(dev.sentences)).histograms()
        self._measure_random_pairs(encode, output)
        if self.settings.evaluation.has_several:
            self.record["evaluators"] = self.evaluation.record()
        published = self.publish(output, self.record, task.objective)
        self._report()
        if published is not None:
            _say(published)

    def _measure_random_pairs(self, encode: Embed, output: Path) -> None:
        """Write the cosines of random pairs into the model's folder; a run that has too few sentences goes without."""
        source = Path(self.settings.text.train_file or self.text.name).name
        try:
            found = random_pairs(encode(self._sentences).numpy(), source)
        except UserError as error:
            _say(f"no similarities of random pairs: {error}")
            return
        found.save(output)
        rates = ", ".join(f"{cosine:.3f} at {rate}" for rate, cosine in found.table())
        _say(f"similarity that random pairs reach: {rates} ({found.about()})")

    def _report(self) -> None:
        record, pooler = self.record, self.task.model.pooler_type
        _say(
            f"{record['sentences_per_second']:,.0f} sentences/s, {record['train_seconds']:,.0f} s of training, "
            f"{sum(self.evaluation.seconds.values()):,.0f} s of evaluation, "
            f"peak memory {record['peak_memory_gb']:.2f} GB, {100 * record['padding_share']:.1f} % padding"
        )
        if "learned_temperature" in record:
            ends = (f"{name} {value:.4f}" for name, value in record["learned_temperature"].items())
            _say(f"learned: {', '.join(ends)}")
        if self.dev is not None:
            for line in _table(self.dev, record, pooler):
                _say(line)
        for line in further_lines(self.evaluation, record["trained"], pooler):
            _say(line)


def build_text_run(
    settings: RunSettings,
    accelerator: Accelerator,
    publish: Publish,
) -> TextRun:
    """Load what a text run needs: its text, its encoder and its evaluation; call it on all processes.

    Args:
        settings: as parsed.
        accelerator: of the run.
        publish: see :class:`TextRun`.

    Raises:
        UserError: the settings or the data are wrong.
    """
    keep_few_kernels()
    text, engine = settings.text, settings.engine
    objective = objective_of(settings, gather_of(accelerator)).to(accelerator.device)
    with accelerator.local_main_process_first():
        source = training_text(text)
    if source.columns < 3 and text.hard_negative_weight != 0:
        raise UserError("--hard_negative_weight: this run has no hard negatives; --supervised reads them")
    evaluation = build_evaluation(settings.evaluation, text.data_dir)
    metric = evaluation.best_metric(engine.metric_for_best_model)
    set_seed(engine.seed)
    start = _start(settings, accelerator)
    masking = TokenMasking(start.tokenizer, text.mlm_probability, engine.seed) if text.do_mlm else None
    with accelerator.local_main_process_first():
        show = accelerator.is_main_process
        corpus = load_corpus(source, start.tokenizer, text.max_seq_length, text.max_train_samples, progress=show)
    read = len(corpus)
    corpus = corpus.distinct() if text.drop_duplicates else corpus
    dtype = evaluation_dtype(accelerator)
    task = SimcseTask(
        start.model, start.tokenizer, corpus, objective, evaluation, text.packing, masking, text.mlm_weight, dtype
    )
    data_id = f"{corpus.report.sha256}, tokenizer {tokenizer_id(start.tokenizer, text.max_seq_length)}"
    if settings.evaluation.eval_file is not None:
        data_id += f", --eval_file {digest_of(evaluation)}"
    options = settings.options() | {"pooler_type": start.model.pooler_type, "metric_for_best_model": metric}
    variants = _variants(settings, source)
    record = _record(settings, options, objective, corpus, accelerator.num_processes)
    record["corpus"]["dropped"] = read - len(corpus)
    record |= {"data_variants": variants, **start.about}
    return TextRun(
        task=task,
        samples=len(corpus),
        options=options,
        data_id=data_id,
        record=record,
        learned_temperature=learned_group(objective, settings.loss),
        similarity_log=similarity_log_of(engine, objective),
        best_metric=metric,
        settings=settings,
        start=start,
        text=source,
        evaluation=evaluation,
        variants=variants,
        publish=publish,
        accelerator=accelerator,
    )


def _record(
    settings: RunSettings,
    options: Mapping[str, Any],
    objective: ContrastiveLoss,
    corpus: TokenizedCorpus,
    processes: int,
) -> dict[str, Any]:
    """What the record of a run begins with."""
    return {
        "program": TEXT_PROGRAM,
        "settings": options,
        "objective": type(objective).__name__,
        "temperature": repr(objective.temperature),
        "temperature_parameters": objective.temperature.values(),
        "corpus": asdict(corpus.report),
        "versions": versions("sentence-transformers", "tokenizers"),
        **paper_row(settings, objective.temperature, processes),
    }


def _start(settings: RunSettings, accelerator: Accelerator) -> Start:
    """The encoder before the first step, on its device; its length limit and its views are checked."""
    text = settings.text
    start = load_start(model_path(text.model_name_or_path), text, settings.given)
    start.model.to(accelerator.device)
    check_length(text.max_seq_length, start.tokenizer, start.model)
    if text.dropout != 0 and not text.supervised:  # --dropout 0 is on purpose
        check_views(start.model, start.tokenizer)
    return start


def some_sentences(text: TrainingText, corpus: TokenizedCorpus, most: int = 4_000) -> list[str]:
    """Distinct sentences of a training text, the first of a sample each, for random pairs; the same for all seeds."""
    chosen = np.random.default_rng(0).permutation(corpus.report.sentences // text.columns)[:most] * text.columns
    rows, last = set(chosen.tolist()), int(chosen.max()) + 1
    found = text.sentences(CorpusReport(), last, array("q"))
    return list(dict.fromkeys(sentence for row, sentence in enumerate(found) if row in rows))


def paper_row(settings: RunSettings, temperature: Temperature, processes: int) -> dict[str, Any]:
    """The record's entry about the row of the paper that the preset stands for; empty where there is none.

    Args:
        settings: of the run.
        temperature: of the run.
        processes: their number.
    """
    preset = PRESETS[settings.preset]
    row = RunSettings(
        settings_of(preset, TextSettings),
        settings_of(preset, EvaluationSettings),
        settings_of(preset, LossSettings),
        settings_of(preset, EngineSettings),
        settings.preset,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a falling logit is said about the run's own temperature
        of_row = build_temperature(row.loss, TEXT)
    batch = global_batch_size(settings.engine, processes)
    return entry_of(
        preset,
        trained_with(settings.options(), temperature, batch),
        trained_with(row.options(), of_row, row.engine.train_batch_size),
    )


def model_path(name: str) -> str:
    """A model's path. The embedded model is found from any working directory, and by its name in older records."""
    folder, _, inner = name.rpartition("embedded/")
    return str(EMBEDDED / inner) if folder in ("dystress_text/", "data/") and not Path(name).exists() else name


def _encode(model: SentenceEncoder, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str]) -> Tensor:
    vectors = model.encode(sentences, tokenizer)
    assert isinstance(vectors, Tensor)
    return vectors


def vectors_by_pooler(dev: StsPairs, model: SentenceEncoder, tokenizer: PreTrainedTokenizerBase) -> dict[str, Tensor]:
    """Vectors of the sentences of a set, (distinct sentences, dim), by pooler."""
    vectors = model.encode(dev.sentences, tokenizer, poolers=POOLERS)
    assert isinstance(vectors, dict)
    return vectors


def untrained(dev: StsPairs, vectors: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """The metrics of each pooler's vectors before training, by pooler, the best one first."""
    results = {name: sts_metrics(dev, score_vectors(dev, vectors[name])) for name in POOLERS}
    return dict(sorted(results.items(), key=lambda item: -item[1][f"{dev.slug}_spearman"]))


def _variants(settings: RunSettings, source: TrainingText) -> dict[str, str | None]:
    variants = {"train_file": variant_of(Path(source.name))}
    if set(settings.evaluation.eval_set) & set(PREPARED_SETS):
        variants["eval_set"] = variant_of(suite_folder("senteval", settings.text.data_dir))
    return variants


def _table(dev: StsPairs, record: Mapping[str, Any], pooler: str) -> list[str]:
    """The table at the end of a run: the set before and after training."""
    best = next(iter(record["untrained"]))
    rows = [("untrained, best pooler", best, record["untrained"][best])]
    if best != pooler:
        rows.append(("untrained", pooler, record["untrained"][pooler]))
    rows.append((f"trained, step {record['best_step']}", pooler, record["trained"]))
    header = f"\n{dev.name:24} {'pooler':16} {'Spearman':>8} {'alignment':>9} {'uniformity':>10}"
    return [header, *(sts_line(name, row_pooler, dev, values) for name, row_pooler, values in rows)]


def _say(line: str) -> None:
    print(line, flush=True)
