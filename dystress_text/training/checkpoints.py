"""The checkpoints of a run: accelerate's ``save_state`` with two files more, written aside and
renamed.

accelerate would unpickle registered objects whatever they hold, so the task's state is kept as
safetensors and the progress as JSON. What accelerate writes itself it loads with ``weights_only``,
so that no file can run code.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import load
from safetensors.torch import load_file, save_file

from dystress_text.errors import ParameterError, reason_of
from dystress_text.io.atomic import raise_disk_errors
from dystress_text.training.accelerator import on_main_process
from dystress_text.training.run_folder import (
    STAGING,
    checkpoint_folders,
    differences,
    write_record,
)
from dystress_text.training.run_record import INTERRUPTED, NOT_STARTED
from dystress_text.training.settings import FREE_OPTIONS, TrainingSettings
from dystress_text.training.task import Run

_STATE = "training_state.json"
_TASK = "task.safetensors"
_RESUME = "resume_from_checkpoint"
_KEPT = 2  # checkpoints, the newest ones
_OVERFLOWS = 50  # so many skipped steps in a row end an fp16 run


@dataclass
class TrainingState:
    """The state of a run besides tensors."""

    step: int = 0  # optimiser steps done
    best_metric: float | None = None  # the metric of the best model
    best_step: int | None = None  # the step of the best model
    metrics: dict[str, float] = field(default_factory=dict)  # all metrics of the best model
    # what the loss had learned at the best model
    learned: dict[str, float] = field(default_factory=dict)
    train_seconds: float = 0.0  # spent in steps
    losses: list[float] = field(default_factory=list)  # read from the device and not logged yet
    skipped_steps: int = 0  # by fp16, because the gradient overflowed
    spread: float = 0.0  # of the probe's vectors before the first step
    skipped_in_row: int = 0  # the number of skipped steps since the last step that was not skipped

    def add_losses(self, losses: list[float], norm: float, fp16: bool) -> str | None:
        """Add the losses of a step's batches; returns why the run cannot go on after the step, if
        it cannot.

        The norm is 0 where the gradient was not clipped.
        """
        if fp16 and not math.isfinite(norm):
            self.skipped_steps += 1
            self.skipped_in_row += 1
            if self.skipped_in_row < _OVERFLOWS:
                return None
            return f"fp16 has skipped {_OVERFLOWS} steps in a row"
        self.skipped_in_row = 0
        for loss in losses:
            if not math.isfinite(loss):
                return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        self.losses += losses
        return None


class Checkpoints:
    """Writes and loads the state of a run, whose options and data must be the same when it is
    resumed.
    """

    def __init__(
        self, run: Run, settings: TrainingSettings, accelerator: Accelerator, folder: Path
    ) -> None:
        self.accelerator = accelerator
        self.task = run.task.state
        self.settings = settings
        self.record = run.record
        self.output = folder
        options = {name: x for name, x in run.options.items() if name not in FREE_OPTIONS}
        self.identity = {
            **options,
            "device": accelerator.device.type,
            "mixed_precision": accelerator.mixed_precision,
            "number of processes": accelerator.num_processes,
            "training data": run.data_id,
        }

    def write(self, state: TrainingState) -> None:
        """Write everything to a new folder, and remove the oldest; call it on all processes."""
        staging = self.output / STAGING
        final = self.output / f"checkpoint-{state.step}"

        def finish() -> None:
            tensors = {name: x.contiguous() for name, x in self.task.state_dict().items()}
            save_file(tensors, staging / _TASK)
            content = {"state": asdict(state), "identity": self.identity}
            (staging / _STATE).write_text(json.dumps(content), encoding="utf-8")
            shutil.rmtree(final, ignore_errors=True)
            staging.rename(final)
            if self.record.get("state") == NOT_STARTED:
                self.record["state"] = INTERRUPTED
                write_record(self.output, self.record)
            for old in checkpoint_folders(self.output)[_KEPT:]:
                shutil.rmtree(old, ignore_errors=True)

        on_main_process(self.accelerator, lambda: shutil.rmtree(staging, ignore_errors=True))
        try:
            with raise_disk_errors(self.output):
                self.accelerator.save_state(str(staging))
        except RuntimeError as error:  # what torch says of a file that cannot be written
            raise OSError(reason_of(error)) from error
        self.accelerator.wait_for_everyone()  # every process writes its own random state
        with raise_disk_errors(self.output):
            on_main_process(self.accelerator, finish)

    def find(self) -> tuple[Path | None, TrainingState]:
        """The newest checkpoint if the run resumes, and where it goes on. A checkpoint of another
        run is refused.
        """
        folders = checkpoint_folders(self.output)
        if not self.settings.resumes or not folders:
            return None, TrainingState()
        folder = folders[0]
        try:
            stored = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            state = TrainingState(**stored["state"])
            changed = differences(dict(stored["identity"]), self.identity)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _unreadable(folder, error) from error
        if changed:
            reason = f"the run in {str(self.output)!r} had other settings ({changed})"
            advice = "give those of its run.json, or another --output_dir"
            raise ParameterError(_RESUME, f"{reason}; {advice}")
        return folder, state

    def load(self, folder: Path) -> None:
        """Load everything except the :class:`TrainingState` and the learning rate, which follows
        from its step.
        """
        try:
            self.accelerator.load_state(str(folder))
            self.task.load_state_dict(load_file(folder / _TASK))
            stored = load(folder / f"random_states_{self.accelerator.process_index}.pkl")
            pairs = [(stored["torch_manual_seed"], torch.get_rng_state())]
            device = self.accelerator.device
            if device.type == "cuda":
                of_devices = stored["torch_cuda_manual_seed"]
                pairs.append((of_devices[device.index or 0], torch.cuda.get_rng_state(device)))
            # accelerate only logs it
            if not all(torch.equal(*pair) for pair in pairs):
                raise ValueError("the random state was not loaded")
        except Exception as error:  # the libraries raise many kinds
            raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> ParameterError:
    reason = f"{folder} cannot be loaded: {reason_of(error)}"
    advice = "without this folder the run goes on from the one before"
    return ParameterError(_RESUME, f"{reason}; {advice}")
