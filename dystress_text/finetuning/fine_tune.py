"""Fine-tune on text: from settings to a model that is saved, measured and, if asked, uploaded."""

from __future__ import annotations

import copy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accelerate import Accelerator
from accelerate.utils import set_seed
from sentence_transformers.base.evaluation import SentenceEvaluator

from dystress_text.analysis.compared_models import compared_models_of
from dystress_text.analysis.finished_run import (
    FinishedRun,
    baseline_lines,
    collapse_lines,
    held_out_lines,
    leave_report,
    results_table,
)
from dystress_text.analysis.tables import text_page
from dystress_text.cli.progress import OUTPUT
from dystress_text.cli.text_table import lay_out
from dystress_text.errors import ParameterError
from dystress_text.evaluation.evaluator_list import EvaluatorList, build_evaluators
from dystress_text.export.card import describe_base, write_card
from dystress_text.export.copies import check_push, export
from dystress_text.finetuning.content import content_of, read_content
from dystress_text.finetuning.held_out import RECALL
from dystress_text.finetuning.initial_model import (
    TextModel,
    check_saving,
    distill_text,
    load_initial_model,
)
from dystress_text.finetuning.measures import Measurements, description, variants_of_data
from dystress_text.finetuning.settings import FineTuningSettings
from dystress_text.finetuning.task import TextTask
from dystress_text.finetuning.texts import TrainingText, first_samples, training_text
from dystress_text.finetuning.training_data import TrainingData, fit_settings, prepare_data
from dystress_text.io.atomic import MODEL_STAGING, versions
from dystress_text.io.paths import model_path
from dystress_text.losses.objectives import ContrastiveLoss
from dystress_text.models.hybrid import check_dense
from dystress_text.models.loading import is_sentence_transformer, load_sentence_transformer, quiet
from dystress_text.models.masked_lm import TokenMasking
from dystress_text.models.static import PIVOT, STATIC
from dystress_text.training.accelerator import (
    StopSignals,
    before_first_step,
    describe,
    limit_kernel_caches,
    make_accelerator,
    make_gather,
    on_main_process,
)
from dystress_text.training.global_state import full_fp32, restored_global_state
from dystress_text.training.run import (
    begin_record,
    end_record,
    finish_run,
    open_run,
)
from dystress_text.training.run_folder import TEXT_PROGRAM
from dystress_text.training.run_record import Hybrid, RunRecord
from dystress_text.training.settings import TrainingSettings
from dystress_text.training.task import TrainingPlan
from dystress_text.training.trainer import Trainer


def fine_tune(
    settings: FineTuningSettings,
    texts: TrainingText | None = None,
    evaluator: SentenceEvaluator | None = None,
) -> FinishedRun:
    """Train a model. In a launch of several processes, call it on each of them.

    Args:
        settings: the settings of model, data, loss, evaluation and training.
        texts: training texts, which replace those that the settings name.
        evaluator: the user's evaluator, which runs before those of the settings.

    Raises:
        UserError: an option or the data are invalid, or training fails.
        Interrupted: SIGTERM or Ctrl-C ended the run after a checkpoint.
    """
    if not isinstance(evaluator, SentenceEvaluator | None):
        reason = "expected a SentenceEvaluator, such as SequentialEvaluator for several"  # type: ignore[unreachable]
        raise ParameterError("evaluator", reason)
    output = Path(settings.training.output_dir)
    if settings.text.push_to_hub is not None:
        check_push(settings.text.push_to_hub)
    with restored_global_state(), full_fp32(), quiet():
        limit_kernel_caches()
        accelerator = make_accelerator(settings.training)
        read = partial(read_content, settings, texts, evaluator)
        with open_run(accelerator, settings.training, settings.asked(), read) as (folder, finished):
            if finished is not None:
                upload = partial(_upload, settings.text.push_to_hub, output)
                on_main_process(accelerator, upload)
                return FinishedRun(output, finished)
            with before_first_step(accelerator):
                if settings.text.dense_model is not None:  # reading the text may take minutes
                    option = "hybrid" if settings.text.distill is None else "distill"
                    check_dense(settings.text.dense_model, option)
                with accelerator.local_main_process_first():  # the others reuse its downloads
                    text = texts or training_text(settings.text)
                on_main_process(accelerator, partial(_print_first_samples, text, settings))
                loss = copy.deepcopy(settings.loss).to(accelerator.device)
                loss.gather = make_gather(accelerator)
                evaluation = build_evaluators(
                    settings.evaluation, settings.text.data_dir, evaluator
                )
                set_seed(settings.training.seed)
                distilled = on_main_process(
                    accelerator, partial(distill_text, settings.text, text, accelerator.device)
                )
                initial = load_initial_model(
                    settings.text, settings.given, text, settings.evaluation.language, distilled
                )
                initial.to(accelerator.device)
                metric = on_main_process(
                    accelerator, partial(_choose_metric, evaluation, settings.training, initial)
                )
                with accelerator.local_main_process_first():  # the others read its cache
                    data = prepare_data(text, initial, settings)
                check = partial(
                    check_saving, initial, settings.text.max_seq_length, output / MODEL_STAGING
                )
                on_main_process(accelerator, check)
                training = fit_settings(settings, data, initial, accelerator.num_processes)
                task = _make_task(settings, initial, data, loss, evaluation)
                spread = task.spread()
                record = _new_record(
                    settings, training, initial, data, evaluation, metric, accelerator
                )
                plan = TrainingPlan(
                    task=task,
                    samples=len(data),
                    data_id=data.corpus.identity,
                    record=record,
                    # a mean cosine of 1.0000, unless the untrained model has nearly that
                    has_collapsed=lambda: spread > 1e-3 and task.spread() < 5e-5,
                )
                trainer = Trainer(plan, training, accelerator, folder)
            measures = Measurements(initial, data, evaluation, record)
            try:
                on_main_process(accelerator, partial(_begin, settings, trainer, measures))
                trainer.fit()
                with StopSignals(accelerator):  # signals wait for card and page, which take seconds
                    publish = partial(_publish, settings, trainer, measures)
                    record = on_main_process(accelerator, trainer.naming_saved_model()(publish))
            finally:
                trainer.close()
    return FinishedRun(output, record)


def _print_first_samples(text: TrainingText, settings: FineTuningSettings) -> None:
    """Print the first samples of a text before all of it is read, which may take minutes."""
    samples = first_samples(text, settings.text.max_train_samples)
    OUTPUT.info("\n".join([f"reading {text.name}", *samples]))


def _choose_metric(
    evaluation: EvaluatorList, training: TrainingSettings, initial: TextModel
) -> str | None:
    """Return the metric that selects the best model, after a first call of the user's evaluator."""
    evaluation.try_own(initial.untrained, reserved=[RECALL.name])
    if evaluation.ignored:
        OUTPUT.info(f"evaluator: not used as figures: {', '.join(evaluation.ignored)}")
    return evaluation.best_metric(training.metric_for_best_model)


def _make_task(
    settings: FineTuningSettings,
    initial: TextModel,
    data: TrainingData,
    loss: ContrastiveLoss,
    evaluation: EvaluatorList,
) -> TextTask:
    options = settings.text
    masking = None
    if options.do_mlm:
        tokenizer: Any = initial.model.tokenizer
        masking = TokenMasking(tokenizer, options.mlm_probability, settings.training.seed)
    return TextTask(
        initial, data.corpus, loss, evaluation, masking=masking, mlm_weight=options.mlm_weight
    )


def _new_record(
    settings: FineTuningSettings,
    training: TrainingSettings,
    initial: TextModel,
    data: TrainingData,
    evaluation: EvaluatorList,
    metric: str | None,
    accelerator: Accelerator,
) -> RunRecord:
    """Return the record of a run as it is before the first step."""
    options = settings.options() | {
        "pooler_type": initial.pooler,
        "metric_for_best_model": metric,
        "train_batch_size": training.train_batch_size,
        "learning_rate": training.learning_rate,
    }
    base = settings.text.model_name_or_path
    start = "untrained"
    if base != STATIC and is_sentence_transformer(model_path(base)):
        start = Path(base).name
    checksums = partial(content_of, settings, data.corpus.report.sha256, evaluation)
    return RunRecord(
        program=TEXT_PROGRAM,
        settings=options,
        content=on_main_process(accelerator, checksums),  # it reads whole models
        corpus={
            **asdict(data.corpus.report),
            "samples": len(data),
            "titled": data.text.titled,
        },
        metrics=evaluation.metrics,
        versions=versions("sentence-transformers", "tokenizers"),
        data_variants=variants_of_data(settings, data),
        start=start,
        head=initial.head,
        document_row=initial.document_row,
    )


def _begin(settings: FineTuningSettings, trainer: Trainer, measures: Measurements) -> None:
    """Print the description, measure the untrained model, write the record."""
    lines = description(settings, trainer.settings, measures, trainer.total_steps)
    OUTPUT.info("\n".join([*lines, f"on {describe(trainer.accelerator)}"]))
    measures.before_training()
    begin_record(trainer, measures.record)


def _publish(settings: FineTuningSettings, trainer: Trainer, measures: Measurements) -> RunRecord:
    """Measure the trained model; write record, card and page; upload the model if asked."""
    record = measures.record
    end_record(trainer, record)
    output = trainer.folder
    model = load_sentence_transformer(str(output), str(trainer.accelerator.device))
    measures.after_training(model)
    record.base_model = describe_base(model_path(settings.text.model_name_or_path))
    trust = ""
    if settings.text.is_hybrid:
        dense = describe_base(settings.text.dense_model or STATIC)
        record.hybrid = Hybrid(**vars(dense), pivot=PIVOT)
        trust = " with trust_remote_code"
    finish_run(trainer, record)  # first, as card and page can be made again
    sentences = measures.data.text.columns * trainer.samples_per_second
    speed = (
        f"{sentences:,.0f} sentences/s, {record.train_seconds:,.0f} s of training, "
        f"{measures.evaluation.seconds:,.0f} s of evaluation, "
        f"peak memory {record.peak_memory_gb:.2f} GB"
    )
    OUTPUT.info(speed)
    if record.trained:
        OUTPUT.info(f"\n{lay_out(results_table(record))}")
    for line in [*held_out_lines(record), *baseline_lines(record), *collapse_lines(record)]:
        OUTPUT.info(line)
    write_card(output, record, model)
    run = FinishedRun(output, record)
    page = leave_report(output, lambda: text_page(compared_models_of(run)))
    OUTPUT.info(f"\nSentenceTransformer({str(output)!r}) loads the model{trust}.\n{page}")
    _upload(settings.text.push_to_hub, output)
    return record


def _upload(repository: str | None, output: Path) -> None:
    """Upload the model of a finished run if a repository is named."""
    if repository is not None:
        with TemporaryDirectory() as folder:
            export(output, "native", Path(folder) / "copy", repository)
