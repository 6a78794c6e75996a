"""Begin and end a run: lock its folder, write its record, recognise a finished one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from dystress_text import __version__
from dystress_text.cli.progress import OUTPUT
from dystress_text.training.accelerator import describe, on_main_process, peak_memory
from dystress_text.training.run_folder import (
    checkpoint_folders,
    choose_folder,
    finish_replacement,
    locked_folder,
    prepare_folder,
    write_record,
)
from dystress_text.training.run_record import FINISHED, RunRecord
from dystress_text.training.settings import TRACKER_FOLDER, TrainingSettings
from dystress_text.training.trainer import Trainer


@contextmanager
def open_run(
    accelerator: Accelerator,
    settings: TrainingSettings,
    requested: Mapping[str, Any],
    content: Callable[[], Mapping[str, str]] = dict,
) -> Iterator[tuple[Path, RunRecord | None]]:
    """Lock the folder of a run. Enter it on all processes.

    Args:
        accelerator: the accelerator of the run.
        settings: the settings of the loop.
        requested: the options by which a finished run is recognised.
        content: as in :func:`~dystress_text.training.run_folder.finished_record`.

    Yields:
        The folder to train in, and the record of the run if it has finished already.
    """
    output = Path(settings.output_dir)
    with ExitStack() as held:

        def choose() -> tuple[Path, RunRecord | None]:
            held.enter_context(locked_folder(output))
            return choose_folder(output, settings, requested, content)

        folder, finished = on_main_process(accelerator, choose)
        if finished is None:
            accelerator.project_configuration.set_directories(str(folder / TRACKER_FOLDER))
        elif accelerator.is_main_process:
            OUTPUT.info(
                f"the run in {output} has finished; nothing was changed "
                "(overwrite_output_dir replaces it)"
            )
        yield folder, finished


def begin_record(trainer: Trainer, record: RunRecord) -> None:
    """Prepare the folder of a new or resumed run. Call it on the main process."""
    record.version = __version__
    record.processes = trainer.accelerator.num_processes
    record.device = describe(trainer.accelerator)
    prepare_folder(trainer.folder, trainer.settings, record)
    if trainer.settings.resumes:
        step = trainer.state.step
        OUTPUT.info(
            f"going on after step {step:,}" if step else "no checkpoint yet: starting at step 1"
        )


def end_record(trainer: Trainer, record: RunRecord) -> None:
    """Add the results of training to the record; let the run replace the one in its folder, if any.

    Call it on the main process.
    """
    state = trainer.state
    record.trained = state.metrics
    record.best_step = state.best_step
    record.skipped_steps = state.skipped_steps
    record.learned_temperature = state.learned
    record.steps = state.step
    record.train_seconds = round(state.train_seconds, 2)
    record.samples_per_second = round(trainer.samples_per_second, 1)
    record.peak_memory_gb = round(peak_memory(trainer.accelerator.device) / 1e9, 3)
    output = Path(trainer.settings.output_dir)
    if trainer.folder != output:
        finish_replacement(output)
        trainer.folder = output
    record.state = FINISHED


def finish_run(trainer: Trainer, record: RunRecord) -> None:
    """Write the record of a finished run; remove its checkpoints unless they are kept."""
    write_record(trainer.folder, record)
    if not trainer.settings.keep_checkpoints:
        for folder in checkpoint_folders(trainer.folder):
            shutil.rmtree(folder)
