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
from dystress_text.training.run_folder import (
    FINISHED,
    NEW,
    RECORD,
    TRACKER_FOLDER,
    claim_folder,
    finished_before,
    open_folder,
    prepare_folder,
    read_record,
    replaced,
    take_place,
    write_record,
)
from dystress_text.training.settings import EngineSettings, global_batch_size
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer


def run(
    engine: EngineSettings, build: Callable[[Accelerator], Run], asked: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Prepare, build, train and publish a run; returns what ``run.json`` holds.

    A finished run that is asked to resume says so and stays as it is.

    Args:
        engine: the settings of the loop.
        build: loads data and network, and makes the task, on all processes.
        asked: options by name; a finished run that is asked to resume must have had them.
    """
    accelerator = make_accelerator(engine)
    output = Path(engine.output_dir)

    def finished(folder: Path) -> dict[str, Any] | None:
        return finished_before(folder, asked) if engine.resumes else None

    with ExitStack() as held:
        # a finished run needs no lock, and may lie where nothing can be written
        record = on_main_process(accelerator, lambda: None if replaced(output) else finished(output))
        if record is None:
            on_main_process(accelerator, lambda: claim_folder(held, output))
            folder = on_main_process(accelerator, lambda: open_folder(output, engine, asked))
            record = on_main_process(accelerator, lambda: finished(folder))
        if record is not None:
            if accelerator.is_main_process:
                print(f"{output} holds this run, finished; nothing was changed (--overwrite_output_dir replaces it)")
            accelerator.end_training()
            return record
        accelerator.project_configuration.set_directories(str(folder / TRACKER_FOLDER))
        return _train(engine, build, accelerator, folder)


def _train(
    engine: EngineSettings, build: Callable[[Accelerator], Run], accelerator: Accelerator, folder: Path
) -> dict[str, Any]:
    """Train in a folder that is this run's alone."""
    global_batch_size(engine, accelerator.num_processes)  # before the data are read
    try:
        built = build(accelerator)
        trainer = Trainer(built, engine, accelerator, folder)
        accelerator.wait_for_everyone()  # all must have read the folder before one of them writes to it
    except RuntimeError as error:
        if (reason := failure_of(error, accelerator)) is None:
            raise
        raise TrainingError(f"before the first step: {reason}") from error
    built.record.update(
        version=__version__, revision=revision(), processes=accelerator.num_processes, device=describe(accelerator)
    )

    def begin() -> None:
        before = read_record(folder) if engine.resumes else {}
        prepare_folder(folder, engine, built.record)
        try:
            built.begin(trainer.total_steps, trainer.order.batch_size, before)
        except BaseException:
            if built.record["state"] == NEW:  # what is refused before the first step leaves nothing
                (folder / RECORD).unlink()
            raise
        if engine.resumes:
            step = trainer.state.step
            print(f"going on after step {step:,}" if step else "no checkpoint yet: from the start", flush=True)
        write_record(folder, built.record)

    def finish() -> None:
        output = Path(engine.output_dir)
        if folder != output:
            take_place(output)
        built.record["state"] = FINISHED
        built.finish(trainer.samples_per_second, output)

    try:
        on_main_process(accelerator, begin)
        state = trainer.fit()
        built.record.update(
            trained=state.metrics,
            best_step=state.best_step,
            skipped_steps=state.skipped_steps,
            steps=state.step,
            train_seconds=round(state.train_seconds, 2),
            peak_memory_gb=round(peak_memory(accelerator.device) / 1e9, 3),
        )
        if state.learned:
            built.record["learned_temperature"] = state.learned
        with StopSignals(accelerator):  # card and page take seconds, for which a signal waits
            on_main_process(accelerator, finish)
    finally:
        trainer.close()
    return built.record
