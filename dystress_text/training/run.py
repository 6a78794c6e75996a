"""A run from its settings to its published result; text and images share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import nn

from dystress_text.training.accelerator import describe, global_batch_size, make_accelerator, on_main_process
from dystress_text.training.run_folder import check_output, prepare_output, read_record, write_record
from dystress_text.training.settings import EngineSettings
from dystress_text.training.similarity_log import SimilarityLog
from dystress_text.training.task import Task, TrainingSummary
from dystress_text.training.trainer import Trainer


class Run(Protocol):
    """A task with all that :func:`run` needs; a recipe's ``build`` makes it.

    Attributes:
        task: the task to train.
        samples: number of training samples.
        options: all options of the run, as in ``run.json``.
        data_id: identifies the training data's content, such as a checksum.
        record: the content of ``run.json``; grows during the run.
        similarity_log: of the objective, for ``--log_similarity``; else None.
        learned_temperature: the optimiser's parameter group of a learned temperature; None without one.
        make_optimizer: builds the optimiser of a network; None is AdamW with the settings' learning rate.
        best_metric: the task's name of the metric that selects the best model; None selects the last model.
    """

    @property
    def task(self) -> Task: ...

    @property
    def samples(self) -> int: ...

    @property
    def options(self) -> Mapping[str, Any]: ...

    @property
    def data_id(self) -> str: ...

    @property
    def record(self) -> dict[str, Any]: ...

    @property
    def similarity_log(self) -> SimilarityLog | None: ...

    @property
    def learned_temperature(self) -> dict[str, Any] | None: ...

    @property
    def make_optimizer(self) -> Callable[[nn.Module], torch.optim.Optimizer] | None: ...

    @property
    def best_metric(self) -> str | None: ...

    def begin(self, trainer: Trainer, before: Mapping[str, Any]) -> None:
        """Print what the run trains on, and measure the untrained model; on the main process, before the first step.

        Args:
            trainer: of this run.
            before: the record of the run that is resumed; empty for a new run.
        """

    def finish(self, summary: TrainingSummary, output: Path) -> None:
        """Complete the record and publish the result; on the main process, after the last step."""


def run(engine: EngineSettings, build: Callable[[Accelerator], Run]) -> dict[str, Any]:
    """Prepare, build, train and publish a run; returns what ``run.json`` holds.

    Args:
        engine: settings of the loop.
        build: loads data and network, and makes the task; called on all processes.

    Raises:
        UserError: the settings or the data are wrong, or the run cannot be resumed.
    """
    accelerator = make_accelerator(engine)
    output = Path(engine.output_dir)
    check_output(output, engine)
    global_batch_size(engine, accelerator.num_processes)
    built = build(accelerator)
    trainer = Trainer(
        built.task, built.samples, engine, accelerator, built.options, built.data_id, built.make_optimizer,
        built.similarity_log, built.learned_temperature, built.best_metric,
    )  # fmt: skip
    built.record.update(processes=accelerator.num_processes, device=describe(accelerator))
    accelerator.wait_for_everyone()  # all must have checked the folder before one of them writes to it
    try:
        on_main_process(accelerator, lambda: _begin(engine, output, built, trainer))
        summary = trainer.fit()
        built.record.update(_results(summary))
        if summary.steps < trainer.total_steps and accelerator.is_main_process:
            patience = f"{engine.early_stopping_patience} evaluations without a better {trainer.best_metric}"
            print(f"stopped after step {summary.steps:,} of {trainer.total_steps:,}: {patience}", flush=True)
        on_main_process(accelerator, lambda: built.finish(summary, output))
    finally:
        trainer.close()
    return built.record


def _begin(engine: EngineSettings, output: Path, built: Run, trainer: Trainer) -> None:
    before = read_record(output) if engine.resumes else {}
    prepare_output(output, engine, built.record)
    built.begin(trainer, before)
    if engine.resumes:
        first = trainer.first_step
        print(f"going on after step {first:,}" if first else "no checkpoint yet: from the start", flush=True)
    write_record(output, built.record)


def _results(summary: TrainingSummary) -> dict[str, Any]:
    return {
        "trained": summary.metrics,
        "best_step": summary.best_step,
        "skipped_steps": summary.skipped_steps,
        "steps": summary.steps,
        "train_seconds": round(summary.seconds, 2),
        "peak_memory_gb": round(summary.peak_memory_gb, 3),
    }
