"""Write and load checkpoints.

A checkpoint consists of accelerate's ``save_state``, the state of the task as safetensors, and the
progress as JSON. Loading one cannot run code: accelerate loads its files with ``weights_only``, and
nothing is registered with it, which it would unpickle.
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
from dystress_text.training.accelerator import on_main_process
from dystress_text.training.run_folder import (
    STAGING,
    checkpoint_folders,
    describe_changes,
    write_record,
)
from dystress_text.training.run_record import INTERRUPTED, NOT_STARTED
from dystress_text.training.settings import FREE_OPTIONS, TrainingSettings
from dystress_text.training.task import TrainingPlan

_STATE = "training_state.json"
_TASK = "task.safetensors"
_RESUME = "resume_from_checkpoint"
_KEPT = 2  # checkpoints, the newest ones


@dataclass
class TrainingState:
    """The progress of a run. The best model is the saved one."""

    step: int = 0  # optimiser steps done
    best_metric: float | None = None  # what selected the best model
    best_step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # all metrics of the best model
    learned: dict[str, float] = field(default_factory=dict)  # the loss's parameters, at best_step
    train_seconds: float = 0.0  # spent in steps, not in evaluations
    losses: list[float] = field(default_factory=list)  # not yet logged
    skipped_steps: int = 0  # because a gradient overflowed in fp16

    def add_losses(self, losses: list[float], norm: float, fp16: bool) -> str | None:
        """Add the losses of a step.

        Args:
            losses: the loss of each batch.
            norm: the norm of the gradient; 0 if gradients are not clipped.
            fp16: whether training is in fp16: then a gradient that is not finite has overflowed,
                and the step was skipped.

        Returns:
            The reason to stop the run, or None.
        """
        if fp16 and not math.isfinite(norm):
            self.skipped_steps += 1
            return None
        if not math.isfinite(sum(losses)):
            return f"the loss is {sum(losses)}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        self.losses += losses
        return None


class Checkpoints:
    """Write and load checkpoints. A run resumes only with the same options and data."""

    def __init__(
        self, plan: TrainingPlan, settings: TrainingSettings, accelerator: Accelerator, folder: Path
    ) -> None:
        self.accelerator = accelerator
        self.task = plan.task.state
        self.settings = settings
        self.record = plan.record
        self.output = folder
        options = plan.record.settings.items()
        self.identity = {
            **{name: value for name, value in options if name not in FREE_OPTIONS},
            "device": accelerator.device.type,
            "mixed_precision": accelerator.mixed_precision,
            "number of processes": accelerator.num_processes,
            "training data": plan.data_id,
            **(plan.record.content or {}),
        }

    def write(self, state: TrainingState) -> None:
        """Write a checkpoint, and keep the newest two. Call it on all processes."""
        staging = self.output / STAGING
        final = self.output / f"checkpoint-{state.step}"

        def finish() -> None:
            tensors = {name: x.contiguous() for name, x in self.task.state_dict().items()}
            save_file(tensors, staging / _TASK)
            content = {"state": asdict(state), "identity": self.identity}
            (staging / _STATE).write_text(json.dumps(content), encoding="utf-8")
            shutil.rmtree(final, ignore_errors=True)
            staging.rename(final)
            if self.record.state == NOT_STARTED:
                self.record.state = INTERRUPTED
                write_record(self.output, self.record)
            for old in checkpoint_folders(self.output)[_KEPT:]:
                shutil.rmtree(old, ignore_errors=True)

        on_main_process(self.accelerator, lambda: shutil.rmtree(staging, ignore_errors=True))
        try:
            self.accelerator.save_state(str(staging))
        except RuntimeError as error:  # torch cannot write a file
            raise OSError(reason_of(error)) from error
        self.accelerator.wait_for_everyone()  # every process writes its own random state
        on_main_process(self.accelerator, finish)

    def find(self) -> tuple[Path | None, TrainingState]:
        """Return the newest checkpoint and its state, or None and a new state to start anew.

        Raises:
            ParameterError: the checkpoint is damaged or belongs to another run.
        """
        folders = checkpoint_folders(self.output)
        if not self.settings.resumes or not folders:
            return None, TrainingState()
        folder = folders[0]
        try:
            stored = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            state = TrainingState(**stored["state"])
            changed = describe_changes(dict(stored["identity"]), self.identity)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _unreadable(folder, error) from error
        if changed:
            reason = f"the run in {str(self.output)!r} had other settings ({changed})"
            raise ParameterError(_RESUME, f"{reason}; name another `output_dir`")
        return folder, state

    def load(self, folder: Path) -> None:
        """Load weights, optimizer, task and random states from a checkpoint.

        The caller restores the progress, which also determines the learning rate.
        """
        try:
            self.accelerator.load_state(str(folder))
            self.task.load_state_dict(load_file(folder / _TASK))
            stored = load(folder / f"random_states_{self.accelerator.process_index}.pkl")
            device = self.accelerator.device
            saved = stored["torch_manual_seed"]
            loaded = torch.get_rng_state()
            if device.type == "cuda":
                saved = stored["torch_cuda_manual_seed"][device.index or 0]
                loaded = torch.cuda.get_rng_state(device)
            if not torch.equal(saved, loaded):  # accelerate only logs this failure
                raise ValueError("the random state was not loaded")
        except Exception as error:  # the libraries raise many kinds
            raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> ParameterError:
    reason = f"{folder} cannot be loaded: {reason_of(error)}; remove it to resume from an older one"
    return ParameterError(_RESUME, reason)
