"""A run from its settings to its published result; text and images share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from accelerate import Accelerator

from dystress_text import __version__
from dystress_text.errors import TrainingError
from dystress_text.files.places import revision
from dystress_text.training.accelerator import (
    StopSignals,
    describe,
    failure_of,
    make_accelerator,
    on_main_process,
    peak_memory,
)
from dystress_text.training.run_folder import TRACKER_FOLDER, read_record
from dystress_text.training.run_state import (
    FINISHED,
    REPLACING,
    choose_folder,
    finished_record,
    locked_folder,
    prepare_folder,
    take_place,
)
from dystress_text.training.settings import EngineSettings
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer


def run(
    engine: EngineSettings,
    build: Callable[[Accelerator], Run],
    asked: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Prepare, build, train and publish a run; returns what ``run.json`` holds.

    ``build`` loads data and network, and makes the task, on all processes. A finished run that is
    asked to resume, and had the options ``asked``, says so and stays as it is.
    """
    accelerator = make_accelerator(engine)
    output = Path(engine.output_dir)
    with ExitStack() as held:

        def opened() -> tuple[Path, dict[str, Any] | None]:
            if engine.resumes and not any(output.glob(f"{REPLACING}*")):
                # without the lock: a finished run may lie where nothing can be written
                finished = finished_record(output, asked)
                if finished is not None:
                    return output, finished
            held.enter_context(locked_folder(output))
            return choose_folder(output, engine, asked)

        folder, record = on_main_process(accelerator, opened)
        if record is None:
            accelerator.project_configuration.set_directories(str(folder / TRACKER_FOLDER))
            return _train(engine, build, accelerator, folder)
    if accelerator.is_main_process:
        print(
            f"{output} holds this run, finished; nothing was changed "
            "(--overwrite_output_dir replaces it)"
        )
    accelerator.end_training()
    return record


def _train(
    engine: EngineSettings,
    build: Callable[[Accelerator], Run],
    accelerator: Accelerator,
    folder: Path,
) -> dict[str, Any]:
    """Train in a folder that is this run's alone."""
    try:
        built = build(accelerator)
        engine = built.engine or engine
        trainer = Trainer(built, engine, accelerator, folder)
        accelerator.wait_for_everyone()  # all must have read the folder before one of them writes to it
    except RuntimeError as error:
        if (reason := failure_of(error, accelerator)) is None:
            raise
        raise TrainingError(f"before the first step: {reason}") from error
    built.record.update(
        version=__version__,
        revision=revision(),
        processes=accelerator.num_processes,
        device=describe(accelerator),
    )

    record, output = built.record, Path(engine.output_dir)

    def begin() -> None:
        before = read_record(folder) if engine.resumes else {}
        built.begin(trainer.total_steps, before)
        prepare_folder(folder, engine, record)
        if engine.resumes:
            step = trainer.state.step
            print(
                f"going on after step {step:,}" if step else "no checkpoint yet: from the start",
                flush=True,
            )

    def finish() -> None:
        if folder != output:
            take_place(output)
        record["state"] = FINISHED
        built.finish(trainer.samples_per_second, output)

    try:
        on_main_process(accelerator, begin)
        state = trainer.fit()
        record.update(
            trained=state.metrics,
            best_step=state.best_step,
            skipped_steps=state.skipped_steps,
            steps=state.step,
            train_seconds=round(state.train_seconds, 2),
            peak_memory_gb=round(peak_memory(accelerator.device) / 1e9, 3),
        )
        if state.learned:
            record["learned_temperature"] = state.learned
        with StopSignals(accelerator):  # card and page take seconds, for which a signal waits
            on_main_process(accelerator, finish)
    finally:
        trainer.close()
    return record
