"""Open the folder of a run, and write its record before and after training."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from dystress_text import __version__
from dystress_text.cli.progress import OUTPUT
from dystress_text.errors import TrainingError
from dystress_text.training.accelerator import (
    describe,
    describe_failure,
    on_main_process,
    peak_memory,
)
from dystress_text.training.run_folder import TRACKER_FOLDER, checkpoint_folders, write_record
from dystress_text.training.run_record import FINISHED
from dystress_text.training.run_state import (
    choose_folder,
    finish_replacement,
    locked_folder,
    prepare_folder,
)
from dystress_text.training.settings import TrainingSettings
from dystress_text.training.trainer import Trainer


@contextmanager
def open_run(
    accelerator: Accelerator,
    settings: TrainingSettings,
    requested: Mapping[str, Any],
    content: Callable[[], Mapping[str, str]] = dict,
) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Lock the folder of a run, on all processes.

    Args:
        accelerator: of the run.
        settings: of the run.
        requested: all options by name; a finished run must have the same.
        content: returns checksums of what they name; a finished run must have read the same.

    Yields:
        The folder of the run, and its record if it has already finished.
    """
    output = Path(settings.output_dir)
    with ExitStack() as held:

        def choose() -> tuple[Path, dict[str, Any] | None]:
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


@contextmanager
def before_first_step(accelerator: Accelerator) -> Iterator[None]:
    """Turn failures of devices and processes into one line; wait for all processes at the end."""
    try:
        yield
        accelerator.wait_for_everyone()  # until all have read the folder
    except (RuntimeError, MemoryError) as error:
        reason = describe_failure(error, accelerator)
        if reason is None:
            raise
        raise TrainingError(f"before the first step: {reason}") from error


def begin_record(
    trainer: Trainer, settings: TrainingSettings, folder: Path, record: dict[str, Any]
) -> None:
    """Write the record of a run that starts or resumes. Call it on the main process."""
    record.update(
        version=__version__,
        processes=trainer.accelerator.num_processes,
        device=describe(trainer.accelerator),
    )
    prepare_folder(folder, settings, record)
    if settings.resumes:
        step = trainer.state.step
        OUTPUT.info(
            f"going on after step {step:,}" if step else "no checkpoint yet: starting at step 1"
        )


def end_record(
    trainer: Trainer, settings: TrainingSettings, folder: Path, record: dict[str, Any]
) -> None:
    """Add the results to the record of a trained run, and move the run to its final folder.

    Call it on the main process.
    """
    state = trainer.state
    record.update(
        trained=state.metrics,
        best_step=state.best_step,
        skipped_steps=state.skipped_steps,
        steps=state.step,
        train_seconds=round(state.train_seconds, 2),
        peak_memory_gb=round(peak_memory(trainer.accelerator.device) / 1e9, 3),
    )
    if state.learned:
        record["learned_temperature"] = state.learned
    output = Path(settings.output_dir)
    if folder != output:
        finish_replacement(output)
        trainer.folder = output
    record["state"] = FINISHED


def finish_run(settings: TrainingSettings, record: Mapping[str, Any]) -> None:
    """Write the record of a finished run; then remove the checkpoints, which it no longer needs."""
    output = Path(settings.output_dir)
    write_record(output, record)
    if not settings.keep_checkpoints:
        for folder in checkpoint_folders(output):
            shutil.rmtree(folder)
