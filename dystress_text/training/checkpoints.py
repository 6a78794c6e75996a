"""The checkpoints of a run: accelerate's ``save_state`` with two files more, written aside and renamed.

accelerate would unpickle registered objects whatever they hold, so the task's state is kept as safetensors and the
progress as JSON. What accelerate writes itself it loads with ``weights_only``, so that no file can run code.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import load
from safetensors.torch import load_file, save_file
from torch import nn

from dystress_text.errors import ParameterError, reason_of
from dystress_text.training.accelerator import on_main_process
from dystress_text.training.gradient_cache import random_states
from dystress_text.training.run_folder import STAGING, checkpoint_folders
from dystress_text.training.settings import FREE_OPTIONS

_STATE, _TASK = "training_state.json", "task.safetensors"
_OVERFLOWS = 50  # so many skipped steps in a row end an fp16 run


@dataclass
class TrainingState:
    """The state of a run besides tensors.

    Attributes:
        step: optimiser steps done.
        best_metric: the metric of the best model.
        best_step: the step of the best model.
        metrics: all metrics of the best model.
        learned: what the loss had learned at the best model.
        train_seconds: spent in steps.
        losses: read from the device and not logged yet.
        skipped_steps: by fp16, because the gradient overflowed.
        skipped_in_row: the number of skipped steps since the last step that was not skipped.
    """

    step: int = 0
    best_metric: float | None = None
    best_step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    learned: dict[str, float] = field(default_factory=dict)
    train_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    skipped_steps: int = 0
    skipped_in_row: int = 0

    def check(self) -> None:
        """Refuse what a damaged file has made of it."""
        counts = (self.step, self.skipped_steps, self.skipped_in_row, self.best_step or 0)
        numbers = (*counts, self.train_seconds, self.best_metric or 0, *self.losses, *self.metrics.values())
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError("a counter is negative or not an integer")
        if not all(type(x) in (int, float) and math.isfinite(x) for x in (*numbers, *self.learned.values())):
            raise ValueError("a metric, a loss or the time is not a finite number")

    def add_losses(self, losses: list[float], norm: float, fp16: bool) -> str | None:
        """Add the losses of a step's batches; returns why the run cannot go on after the step, if it cannot.

        Args:
            losses: one for each batch.
            norm: of the step's gradient; 0 where it was not clipped.
            fp16: the loss is scaled, so that a step whose gradient overflows was skipped.
        """
        if fp16 and not math.isfinite(norm):
            self.skipped_steps += 1
            self.skipped_in_row += 1
            return f"fp16 has skipped {_OVERFLOWS} steps in a row" if self.skipped_in_row >= _OVERFLOWS else None
        self.skipped_in_row = 0
        for value, name in (*((loss, "the loss") for loss in losses), (norm, "the gradient's norm")):
            if not math.isfinite(value):
                return f"{name} is {value}"
        self.losses += losses
        return None


@dataclass(frozen=True)
class Checkpoints:
    """Writes and loads the state of a run: weights, optimiser, loss scale, random states, task and progress.

    Attributes:
        output: the run's folder.
        accelerator: of the run, with the prepared model.
        optimizer: as prepared by the accelerator.
        task: the task's state besides the model, such as the objective.
        identity: see :func:`identity_of`; it must be the same when the run is resumed.
    """

    output: Path
    accelerator: Accelerator
    optimizer: AcceleratedOptimizer
    task: nn.Module
    identity: Mapping[str, Any]

    def write(self, final: Path, state: TrainingState) -> None:
        """Write everything to a new folder; call it on all processes."""
        staging = self.output / STAGING

        def finish() -> None:
            save_file({name: x.contiguous() for name, x in self.task.state_dict().items()}, staging / _TASK)
            content = {"state": asdict(state), "identity": self.identity}
            (staging / _STATE).write_text(json.dumps(content), encoding="utf-8")
            shutil.rmtree(final, ignore_errors=True)
            staging.rename(final)

        on_main_process(self.accelerator, lambda: shutil.rmtree(staging, ignore_errors=True))
        self.accelerator.save_state(str(staging))
        self.accelerator.wait_for_everyone()  # every process writes its own random state
        on_main_process(self.accelerator, finish)

    def find(self, last_step: int) -> tuple[Path, TrainingState] | None:
        """The newest checkpoint and its state; None without one. That of another run is refused."""
        folder = next(iter(checkpoint_folders(self.output)), None)
        if folder is None:
            return None
        now = json.loads(json.dumps(self.identity))
        try:
            stored = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            state, then = TrainingState(**stored["state"]), dict(stored["identity"])
            state.check()
            changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
            if not changed and not 0 < state.step <= last_step:
                raise ValueError(f"step {state.step} of {last_step}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _unreadable(folder, error) from error
        if changed:
            differences = "; ".join(f"{name} was {then.get(name)}, is {now.get(name)}" for name in changed)
            raise ParameterError(
                "resume_from_checkpoint",
                f"the run in {str(self.output)!r} had other settings ({differences}); "
                "give those of its run.json, or another --output_dir",
            )
        return folder, state

    def load(self, folder: Path) -> None:
        """Load everything except the :class:`TrainingState` and the learning rate, which follows from its step."""
        try:
            # a group's "step" is a state: some optimisers count there
            groups = [{k: v for k, v in group.items() if k != "step"} for group in self.optimizer.param_groups]
            self.accelerator.load_state(str(folder))
            for group, options in zip(self.optimizer.param_groups, groups, strict=True):
                group.update(options)
            check_fit(self.optimizer.state)
            if type(self.accelerator.step) is not int or not 0 <= self.accelerator.step < 2**63:
                raise ValueError("the number of batches is negative or not an integer")
            self.task.load_state_dict(load_file(folder / _TASK))
            self._check_random_states(folder)
        except Exception as error:  # the libraries raise many kinds
            raise _unreadable(folder, error) from error

    def _check_random_states(self, folder: Path) -> None:
        """accelerate only logs that it cannot load them."""
        device = self.accelerator.device
        stored = load(folder / f"random_states_{self.accelerator.process_index}.pkl")
        drawn = [stored["torch_manual_seed"]]
        if device.type != "cpu":
            drawn.append(stored[f"torch_{device.type}_manual_seed"][device.index or 0])
        for of_run, of_checkpoint in zip(random_states(device), drawn, strict=True):
            if not torch.equal(of_run, of_checkpoint):
                raise ValueError("the random state was not loaded")


def check_fit(states: Mapping[torch.Tensor, Mapping[str, Any]]) -> None:
    """Refuse an optimiser's state that is not of its parameters' form; its fused step does not look."""
    for parameter, state in states.items():
        for value in state.values():
            scalar = value is None or isinstance(value, int | float)
            if not scalar and not (value.is_floating_point() and value.shape in ((), parameter.shape)):
                raise ValueError("the optimiser's state does not fit its parameters")
    if len({frozenset(state) for state in states.values()}) > 1:
        raise ValueError("the optimiser's state is not of one form")


def _unreadable(folder: Path, error: Exception) -> ParameterError:
    return ParameterError(
        "resume_from_checkpoint",
        f"{folder} cannot be loaded: {reason_of(error)}; without this folder the run goes on from the one before",
    )


def identity_of(options: Mapping[str, Any], accelerator: Accelerator, data_id: str) -> dict[str, Any]:
    """What must be the same when a run is resumed.

    Args:
        options: all options of the run; those in ``FREE_OPTIONS`` may change.
        accelerator: of the run.
        data_id: identifies the training data's content.
    """
    return {name: value for name, value in options.items() if name not in FREE_OPTIONS} | {
        "device": accelerator.device.type,
        "mixed_precision": accelerator.mixed_precision,
        "number of processes": accelerator.num_processes,
        "training data": data_id,
    }


def remove_old(output: Path, keep: int) -> None:
    """Remove all checkpoints but the newest ``keep``."""
    for folder in checkpoint_folders(output)[keep:]:
        shutil.rmtree(folder, ignore_errors=True)
