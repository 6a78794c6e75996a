"""A run from its settings to its published result; text and images share it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from dystress_text.training.accelerator import (
    describe,
    global_batch_size,
    make_accelerator,
    on_main_process,
    peak_memory,
)
from dystress_text.training.run_folder import check_output, prepare_output, read_record, write_record
from dystress_text.training.settings import EngineSettings
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer


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
    global_batch_size(engine, accelerator.num_processes)  # before the data are read
    built = build(accelerator)
    trainer = Trainer(built, engine, accelerator)
    built.record.update(processes=accelerator.num_processes, device=describe(accelerator))

    def begin() -> None:
        before = read_record(output) if engine.resumes else {}
        prepare_output(output, engine, built.record)
        built.begin(trainer.total_steps, trainer.order.batch_size, before)
        if engine.resumes:
            step = trainer.state.step
            print(f"going on after step {step:,}" if step else "no checkpoint yet: from the start", flush=True)
        write_record(output, built.record)

    accelerator.wait_for_everyone()  # all must have checked the folder before one of them writes to it
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
        on_main_process(accelerator, lambda: built.finish(trainer.samples_per_second, output))
    finally:
        trainer.close()
    return built.record
