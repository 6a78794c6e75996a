"""The checkpoints of a run: its whole state is written to one, and loaded from it when the run is resumed.

A checkpoint is written under another name, gets a manifest with the size and checksum of each of its files, is flushed
to disk, and is then renamed. If a step of this fails, the earlier checkpoints stay as they are.
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType, broadcast_object_list, load
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from dystress_text.errors import UserError
from dystress_text.files.whole import damage_of, seal, write_json
from dystress_text.training.accelerator import on_main_process
from dystress_text.training.random_states import random_states
from dystress_text.training.run_folder import STAGING, checkpoint_folders

_STATE, _TASK = "training_state.json", "task.safetensors"


# options that may differ between a run and its continuation
FREE_OPTIONS = (
    "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "save_steps", "save_total_limit", "logging_steps",
    "report_to", "log_similarity", "high_similarity", "train_file", "text_column", "eval_file", "dataset", "data_dir",
    "preset", "random_pairs",
)  # fmt: skip


def as_before(options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The options of a record or a checkpoint; one that is younger has the value that the run behaved as.

    Args:
        options: by name.
        known: the names of the options of today.
    """
    rows = "infonce" if options.get("objective") == "macl" else None
    younger = {
        "rows": rows, "small_crops": 0, "small_crop_size": 96, "deterministic": False, "tf32": False, "held_out": 0
    }  # fmt: skip
    return {**{name: value for name, value in younger.items() if name in known}, **options}


@dataclass
class TrainingState:
    """The state of a run besides tensors.

    Attributes:
        step: optimiser steps done.
        best_metric: the metric of the best model.
        best_step: the step of the best model.
        metrics: all metrics of the best model.
        train_seconds: spent in steps.
        losses: read from the device and not logged yet.
        skipped_steps: by fp16, because the gradient overflowed.
        skipped_in_row: the number of skipped steps since the last step that was not skipped.
        not_better: evaluations since the best model's.

    Raises:
        ValueError: a counter is negative or not an integer, or a number is not finite.
    """

    step: int = 0
    best_metric: float | None = None
    best_step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    train_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    skipped_steps: int = 0
    skipped_in_row: int = 0
    not_better: int = 0

    def __post_init__(self) -> None:
        counters = (self.step, self.skipped_steps, self.skipped_in_row, self.best_step or 0, self.not_better)
        numbers = (self.train_seconds, self.best_metric or 0.0, *self.losses, *self.metrics.values())
        if not all(type(counter) is int and counter >= 0 for counter in counters):
            raise ValueError("a counter is negative or not an integer")
        if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
            raise ValueError("a metric, a loss or the time is not a finite number")


@dataclass(frozen=True)
class SavedState:
    """Writes and loads the state of a run.

    The state is the weights, the optimiser's state, the loss scale, the random states, the schedule and the task's
    state.

    Attributes:
        output: the run's folder.
        accelerator: of the run, with the prepared model.
        optimizer: as prepared by the accelerator.
        scheduler: of the learning rate.
        task: the task's state besides the model, such as the objective.
        identity: see :func:`identity_of`; it must be the same when the run is resumed.
    """

    output: Path
    accelerator: Accelerator
    optimizer: AcceleratedOptimizer
    scheduler: LRScheduler
    task: nn.Module
    identity: Mapping[str, Any]

    def write(self, final: Path, state: TrainingState, report: Mapping[str, Any] | None = None) -> None:
        """Write everything to a new folder, with ``report.json`` if there is a report; call it on all processes.

        Raises:
            OSError, RuntimeError, SafetensorError: something cannot be written.
        """
        staging = self.output / STAGING

        def finish() -> None:
            tensors = {name: tensor.contiguous() for name, tensor in self.task.state_dict().items()}
            save_file(tensors, staging / _TASK)
            content = {"state": asdict(state), "scheduler": self.scheduler.state_dict(), "identity": self.identity}
            (staging / _STATE).write_text(json.dumps(content), encoding="utf-8")
            if report is not None:
                write_json(staging / "report.json", report)
            seal(staging, final)

        on_main_process(self.accelerator, lambda: shutil.rmtree(staging, ignore_errors=True))
        self.accelerator.save_state(str(staging))
        self.accelerator.wait_for_everyone()  # every process writes its own random state
        on_main_process(self.accelerator, finish)

    def find(self, last_step: int) -> tuple[Path, TrainingState] | None:
        """The newest complete checkpoint and its state, the same on all processes; None if there is no checkpoint.

        Raises:
            UserError: all are damaged, or the newest complete one cannot be read, is of another run or of a step after
                ``last_step``.
        """
        newest: list[Path | None] = [None]

        def look() -> None:
            newest[0] = newest_complete(self.output)

        on_main_process(self.accelerator, look)
        folder = broadcast_object_list(newest)[0]
        if folder is None:
            return None
        try:
            stored = _read(folder)
            now = json.loads(json.dumps(self.identity))
            state, then = TrainingState(**stored["state"]), as_before(stored["identity"], now)
            then = {"device": now["device"], **then}  # older checkpoints do not say
            changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
            if not changed and not 0 < state.step <= last_step:
                raise ValueError(f"step {state.step} of {last_step}")
            if state.best_step is not None and now.get("metric_for_best_model") not in {None, *state.metrics}:
                raise ValueError("no metrics of the best model")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"--resume_from_checkpoint: {folder / _STATE} cannot be read: {error}") from error
        if changed:
            differences = "; ".join(f"{name} was {then.get(name)}, is {now.get(name)}" for name in changed)
            raise UserError(
                f"--resume_from_checkpoint: the run in {str(self.output)!r} had other settings ({differences}); "
                "give those of its run.json, or another --output_dir"
            )
        return folder, state

    def load(self, folder: Path) -> None:
        """Load everything except the :class:`TrainingState`.

        Raises:
            UserError: these versions of the libraries cannot read it.
        """
        try:
            self._load_schedule(_read(folder))
            groups = [dict(group) for group in self.optimizer.param_groups]
            self.accelerator.load_state(str(folder))
            if self.accelerator.distributed_type not in (DistributedType.FSDP, DistributedType.DEEPSPEED):
                check_optimizer(self.optimizer.optimizer, groups)
            if type(self.accelerator.step) is not int or not 0 <= self.accelerator.step < 2**63:
                raise ValueError("the number of batches is negative or not an integer")
            self.task.load_state_dict(load_file(folder / _TASK))
            self._check_random_states(folder)
        except Exception as error:  # the libraries raise many kinds
            reason = " ".join(str(error).split())
            raise UserError(f"--resume_from_checkpoint: {folder} cannot be loaded: {reason}") from error

    def _check_random_states(self, folder: Path) -> None:
        """Check that they were loaded; accelerate only warns about what it cannot read."""
        device = self.accelerator.device
        stored = load(folder / f"random_states_{self.accelerator.process_index}.pkl")
        drawn = [stored["torch_manual_seed"]]
        if device.type != "cpu":
            drawn.append(stored[f"torch_{device.type}_manual_seed"][device.index or 0])
        for of_run, of_checkpoint in zip(random_states(device), drawn, strict=True):
            if not torch.equal(of_run, of_checkpoint):
                raise ValueError("the random state was not loaded")

    def _load_schedule(self, stored: Mapping[str, Any]) -> None:
        """Check and load the schedule's state; all of it except the step follows from the settings."""
        step, schedule = stored["state"]["step"], stored["scheduler"]
        expected = json.loads(json.dumps(self.scheduler.state_dict())) | {"last_epoch": step, "_step_count": step + 1}
        if {**schedule, "_last_lr": expected["_last_lr"]} != expected:
            raise ValueError("the learning rate's schedule is another one")
        if not all(isinstance(rate, float) for rate in schedule["_last_lr"]):
            raise ValueError("a learning rate is not a number")
        self.scheduler.load_state_dict(schedule)


def check_optimizer(optimizer: torch.optim.Optimizer, before: Sequence[Mapping[str, Any]]) -> None:
    """Check that the state that an optimizer has loaded fits its parameters; its fused step does not check this.

    Args:
        optimizer: with the state of a checkpoint.
        before: the options of its parameter groups before loading.

    Raises:
        ValueError: the options differ from those before, or the state has another form.
    """
    for group, options in zip(optimizer.param_groups, before, strict=True):
        for name in options.keys() | group.keys():
            value = group.get(name)
            match name:
                case "lr":
                    fits = isinstance(value, float)
                case "step":  # some optimizers count in the group, from the first step on
                    fits = type(value) is int and value >= 0
                case _:
                    fits = value == options.get(name)
            if name != "params" and not fits:
                raise ValueError(f"the optimizer's {name} is {value!r}")
        states = [optimizer.state[parameter] for parameter in group["params"] if parameter in optimizer.state]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if states and state.keys() != states[0].keys():
                raise ValueError("the optimizer's state is not of one form")
            for name, entry in state.items():
                if isinstance(entry, torch.Tensor):
                    fits = entry.is_floating_point() and (entry.ndim == 0 or entry.shape == parameter.shape)
                else:
                    fits = entry is None or isinstance(entry, int | float)
                if not fits:
                    raise ValueError(f"the optimizer's {name} does not fit its parameter")
        if (
            states
            and isinstance(optimizer, torch.optim.AdamW)
            and not {"step", "exp_avg", "exp_avg_sq"} <= states[0].keys()
        ):
            raise ValueError("the optimizer's state is not whole")


def _read(folder: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    return stored


def identity_of(options: Mapping[str, Any], accelerator: Accelerator, data_id: str) -> dict[str, Any]:
    """What must be the same when a run is resumed.

    Args:
        options: all options of the run; those in :data:`FREE_OPTIONS` may change.
        accelerator: of the run.
        data_id: identifies the training data's content.
    """
    return {name: value for name, value in options.items() if name not in FREE_OPTIONS} | {
        "device": accelerator.device.type,
        "mixed_precision": accelerator.mixed_precision,
        "number of processes": accelerator.num_processes,
        "training data": data_id,
    }


def newest_complete(output: Path) -> Path | None:
    """The newest undamaged checkpoint of a run; None if the run has no checkpoints.

    A damaged one is passed over with a warning.

    Raises:
        UserError: all checkpoints are damaged.
    """
    folders = checkpoint_folders(output)
    for folder in folders:
        damage = damage_of(folder)
        if damage is None:
            return folder
        warnings.warn(f"{folder} is damaged and passed over: {damage}", stacklevel=2)
    if folders:
        raise UserError(f"--resume_from_checkpoint: every checkpoint in {str(output)!r} is damaged")
    return None


def remove_old(output: Path, keep: int) -> None:
    """Remove all checkpoints but the newest ``keep``."""
    for folder in checkpoint_folders(output)[keep:]:
        shutil.rmtree(folder, ignore_errors=True)
