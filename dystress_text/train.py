"""Fine-tune an encoder with SimCSE, unsupervised or supervised, and a similarity-dependent temperature.

    accelerate launch dystress_text/train.py                          # the paper's run: BERT-base, Wiki1M, STS-B dev
    python dystress_text/train.py --preset quickstart                 # no network, no GPU
    accelerate launch dystress_text/train.py --train_file mine.txt    # own sentences, one a line
    accelerate launch dystress_text/train.py --temp 0.05              # SimCSE's constant temperature
    accelerate launch dystress_text/train.py --supervised --train_file triplets.csv
    accelerate launch dystress_text/train.py settings.yaml --seed 1   # settings from a file, flags on top

The model lands in ``out/`` (``--output_dir``) in sentence-transformers' format.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.cli.command_line import exit_code
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.encoders.encoder import POOLERS, SentenceEncoder, check_length, check_views
from dystress_text.encoders.masked_lm import TokenMasking
from dystress_text.encoders.saved_model import load_saved
from dystress_text.errors import UserError
from dystress_text.evaluation.evaluators import (
    Evaluation,
    build_evaluation,
    digest_of,
    further_lines,
    sts_line,
    sts_metrics,
)
from dystress_text.evaluation.sets import PREPARED_SETS
from dystress_text.evaluation.similarities import pair_similarities
from dystress_text.evaluation.sts import POSITIVE_SCORE, StsPairs, score_vectors
from dystress_text.export.card import describe_base, write_card
from dystress_text.files.places import EMBEDDED, data_root
from dystress_text.files.prepared_data import variant_of
from dystress_text.files.tables import LOADERS, is_table
from dystress_text.files.whole import versions
from dystress_text.report.page import leave_page
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.corpus import MAX_LINE_BYTES, TokenizedCorpus, load_corpus, tokenizer_id
from dystress_text.simcse.objective import objective_of
from dystress_text.simcse.quickstart import write_documentation_corpus
from dystress_text.simcse.settings import RunSettings, TextSettings
from dystress_text.simcse.start import load_start
from dystress_text.simcse.task import SimcseTask
from dystress_text.simcse.training_text import text_of_rows, text_of_table, wiki1m
from dystress_text.training.accelerator import describe, gather_of, global_batch_size, make_accelerator, on_main_process
from dystress_text.training.build_loss import learned_end_points, learned_group
from dystress_text.training.distributed import check_whole
from dystress_text.training.run_folder import check_output, prepare_output, write_record
from dystress_text.training.similarity_log import watch_of
from dystress_text.training.trainer import Trainer, TrainingSummary


def train(settings: RunSettings) -> dict[str, Any]:
    """Run the whole recipe and return what ``run.json`` holds.

    Raises:
        UserError: something that the settings or the data must put right, or a run that cannot go on.
    """
    text, engine = settings.text, settings.engine
    accelerator = make_accelerator(engine)
    show = accelerator.is_main_process
    output = Path(engine.output_dir)
    check_output(output, engine)
    global_batch_size(engine, accelerator.num_processes)
    objective = objective_of(settings, gather_of(accelerator)).to(accelerator.device)
    with accelerator.local_main_process_first():
        train_file, columns = _train_file(text, show)
    if columns < 3 and text.hard_negative_weight != 0:
        raise UserError("--hard_negative_weight: there are no hard negatives; --supervised reads them")
    evaluation = build_evaluation(settings.evaluation, text.data_dir)
    dev = next(iter(evaluation.pairs), None)
    engine.metric_for_best_model = evaluation.best_metric(engine.metric_for_best_model)
    set_seed(engine.seed)
    beginning = load_start(_model_path(text.model_name_or_path), text, settings.given)
    model, tokenizer = beginning.model, beginning.tokenizer
    text.pooler_type = model.pooler_type  # a sentence-transformers model has its own
    masking = None
    if text.do_mlm:
        check_whole(accelerator, "--do_mlm")
        masking = TokenMasking(tokenizer, text.mlm_probability, engine.seed)
    model.to(accelerator.device)
    check_length(text.max_seq_length, tokenizer, model)
    if text.dropout != 0 and not text.supervised:  # who says 0 means it
        check_views(model, tokenizer)
    with accelerator.local_main_process_first():
        most = None if text.max_train_samples is None else text.max_train_samples * columns
        corpus = load_corpus(train_file, tokenizer, text.max_seq_length, most, progress=show)
    if text.supervised:
        _check_rows(corpus, columns)
    task = SimcseTask(
        model, tokenizer, corpus, objective, evaluation, text.packing, columns, text.mask_duplicates, masking,
        text.mlm_weight,
    )  # fmt: skip
    data_id = f"{corpus.report.sha256}, tokenizer {tokenizer_id(tokenizer, text.max_seq_length)}"
    if settings.evaluation.eval_file is not None:
        data_id += f", --eval_file {digest_of(evaluation)}"
    trainer = Trainer(
        task, len(task), engine, accelerator, settings.options(), data_id, watch=watch_of(engine, objective),
        beside=learned_group(objective, settings.loss),
    )  # fmt: skip
    variants = {"train_file": variant_of(train_file)}
    if set(settings.evaluation.eval_set) & set(PREPARED_SETS):
        variants["eval_set"] = variant_of(data_root(text.data_dir) / "senteval")
    record = _record(settings, accelerator, corpus, objective) | {"data_variants": variants} | beginning.about
    accelerator.wait_for_everyone()  # all have looked at the folder before one of them writes there

    def start() -> None:
        record["base_model"] = describe_base(_model_path(text.model_name_or_path))
        prepare_output(output, engine, record)
        for note in beginning.notes:
            _say(note)
        _say(f"{corpus.report.summary()} ({train_file})")
        for option, variant in variants.items():
            if variant is not None:
                _say(f"--{option}: not the published data but a variant: {variant}")
        _say(f"{type(objective).__name__} with {objective.temperature}")
        samples = "sentences" if columns == 1 else f"rows of {columns} sentences"
        _say(f"{trainer.total_steps:,} steps of {trainer.order.batch_size} {samples} on {describe(accelerator)}")
        if engine.resume_from_checkpoint:
            first = trainer.first_step
            _say(f"going on after step {first:,}" if first else "no checkpoint yet: from the start")
        vectors = {} if dev is None else vectors_by_pooler(dev, model, tokenizer)
        if dev is not None and beginning.has_head:
            vectors[text.pooler_type] = task.encode(dev.sentences)
        record["untrained"] = {} if dev is None else untrained(dev, vectors)
        if dev is not None:
            before = pair_similarities(dev, vectors[text.pooler_type]).histograms()
            record["similarities"] = {"set": dev.name, "before": before}
            if dev.positive_above != POSITIVE_SCORE:
                record["similarities"]["positive_above"] = dev.positive_above

    try:
        on_main_process(accelerator, start)
        record.update(_results(trainer.fit(), task))

        def finish() -> None:
            if dev is not None:
                kept, _ = load_saved(output)
                vectors = kept.to(accelerator.device).encode(dev.sentences, tokenizer)
                assert isinstance(vectors, Tensor)
                record["similarities"]["after"] = pair_similarities(dev, vectors).histograms()
            if settings.evaluation.has_several:
                record["evaluators"] = evaluation.record()
            write_record(output, record)
            write_card(output, record)
            _report(evaluation, record, settings, output)
            _say(leave_page(output, objective.temperature))

        on_main_process(accelerator, finish)
    finally:
        trainer.close()
    return record


def vectors_by_pooler(dev: StsPairs, model: SentenceEncoder, tokenizer: PreTrainedTokenizerBase) -> dict[str, Tensor]:
    """Vectors of the sentences of a set by pooler, (distinct sentences, dim)."""
    vectors = model.encode(dev.sentences, tokenizer, poolers=POOLERS)
    assert isinstance(vectors, dict)
    return vectors


def untrained(dev: StsPairs, vectors: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """What the vectors of each pooler reach before training: metrics by pooler, the best one first."""
    results = {name: sts_metrics(dev, score_vectors(dev, vectors[name])) for name in POOLERS}
    return dict(sorted(results.items(), key=lambda item: -item[1][f"{dev.slug}_spearman"]))


def _train_file(text: TextSettings, show: bool) -> tuple[Path, int]:
    """The training text, and how many of its lines are a sample."""
    if text.supervised:
        if text.train_file is None or not is_table(text.train_file):
            raise UserError(f"--supervised: needs a table as --train_file ({', '.join(LOADERS)}, or one on the hub)")
        return text_of_rows(text.train_file, text.text_columns, progress=show)
    return _sentences(text, show), 1


def _check_rows(corpus: TokenizedCorpus, columns: int) -> None:
    """See that no line was left out, as the rows behind it would not be rows any more."""
    report = corpus.report
    for kind, what in (("over_long", f"more than {MAX_LINE_BYTES:,} bytes"), ("nul", "a NUL byte")):
        if kind in report.first_line:
            row, column = divmod(report.first_line[kind] - 1, columns)
            raise UserError(f"--train_file: row {row + 1} has {what} in column {column + 1}")


def _sentences(text: TextSettings, show: bool) -> Path:
    if text.train_file is None:
        return wiki1m(text.data_dir)
    if text.train_file == "python-documentation":
        return write_documentation_corpus()
    if is_table(text.train_file):
        return text_of_table(text.train_file, text.text_column, progress=show)
    if text.text_column is not None:
        raise UserError(f"--text_column: {text.train_file!r} is a text, one sentence a line, and has no columns")
    if not os.path.isfile(text.train_file):
        raise UserError(f"--train_file: no file {text.train_file!r}")
    return Path(text.train_file)


def _model_path(name: str) -> str:
    """The embedded model is found from any working directory, also under the name of older records."""
    folder, _, inner = name.rpartition("embedded/")
    return str(EMBEDDED / inner) if folder in ("dystress_text/", "data/") and not Path(name).exists() else name


def _record(
    settings: RunSettings, accelerator: Accelerator, corpus: TokenizedCorpus, objective: ContrastiveLoss
) -> dict[str, Any]:
    """What is known before the first step."""
    return {
        "program": "dystress_text/train.py",
        "settings": settings.options(),
        "objective": type(objective).__name__,
        "temperature": repr(objective.temperature),
        "corpus": asdict(corpus.report),
        "processes": accelerator.num_processes,
        "device": describe(accelerator),
        "versions": versions("sentence-transformers", "tokenizers"),
    }


def _results(summary: TrainingSummary, task: SimcseTask) -> dict[str, Any]:
    """What is known after the last step."""
    return {
        "trained": summary.metrics,
        "best_step": summary.best_step,
        "skipped_steps": summary.skipped_steps,
        "steps": summary.steps,
        "train_seconds": round(summary.seconds, 2),
        "sentences_per_second": round(task.columns * summary.samples_per_second, 1),
        "peak_memory_gb": round(summary.peak_memory_gb, 3),
        "padding_share": round(task.padding_share, 4),
        "duplicate_pairs": int(task.objective.duplicates) if task.mask_duplicates else None,
        **learned_end_points(task.objective.temperature),
    }


def _report(evaluation: Evaluation, record: dict[str, Any], settings: RunSettings, output: Path) -> None:
    dev = next(iter(evaluation.pairs), None)
    _say(
        f"{record['sentences_per_second']:,.0f} sentences/s, {record['train_seconds']:,.0f} s of training, "
        f"{sum(evaluation.seconds.values()):,.0f} s of evaluation, "
        f"peak memory {record['peak_memory_gb']:.2f} GB, {100 * record['padding_share']:.1f} % padding"
    )
    if record["duplicate_pairs"]:
        _say(f"{record['duplicate_pairs']:,} pairs of equal samples were no negatives (--mask_duplicates)")
    if "learned_temperature" in record:
        _say("learned: " + ", ".join(f"{name} {value:.4f}" for name, value in record["learned_temperature"].items()))
    if dev is not None:
        pooler = settings.text.pooler_type
        best = next(iter(record["untrained"]))
        rows = [("untrained, best pooler", best, record["untrained"][best])]
        if best != pooler:
            rows.append(("untrained", pooler, record["untrained"][pooler]))
        rows.append((f"trained, step {record['best_step']}", pooler, record["trained"]))
        _say(f"\n{dev.name:24} {'pooler':16} {'Spearman':>8} {'alignment':>9} {'uniformity':>10}")
        for name, row_pooler, values in rows:
            _say(sts_line(name, row_pooler, dev, values))
    for line in further_lines(evaluation, record["trained"], settings.text.pooler_type):
        _say(line)
    _say(f"\nSentenceTransformer({str(output)!r}) loads the model.")


def _say(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)  # of each checkpoint: --do_mlm shares weights

    def work() -> bool:
        train(parse(sys.argv[1:] if argv is None else argv, __doc__))
        return True

    return exit_code("train.py", work)


if __name__ == "__main__":
    sys.exit(main())
