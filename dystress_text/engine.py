"""The one training loop, on accelerate, for text and vision.

A task says how a batch becomes embeddings, what their loss is, and how the model is evaluated and saved. The engine has
all the rest: devices and precision, the order of the samples, accumulation, clipping, the learning rate, progress,
trackers, the best model, checkpoints and the stop on a loss that is no number.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import broadcast_object_list, set_seed
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import get_scheduler

from dystress_text.batches import Batch, BatchOrder, load_ahead
from dystress_text.core.temperature import TemperatureError
from dystress_text.distributed import check_launch, collect_weights, network_to_train, tell_deepspeed
from dystress_text.errors import TrainingError, UserError
from dystress_text.gradient_cache import backward_in_chunks, check_no_batch_statistics
from dystress_text.progress import progress_bar
from dystress_text.records import to_json
from dystress_text.settings import EngineSettings

CHECKPOINT, STAGING, TRACKER_FOLDER, LOG = "checkpoint", ".checkpoint-writing", "tracker-logs", "metrics.jsonl"
CHECKPOINT_STATE = "training_state.json"  # the last file of a checkpoint to be written

# what may differ between a run and its continuation
FREE_OPTIONS = (
    "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "save_steps", "logging_steps", "report_to",
    "train_file", "text_column", "data_dir", "preset",
)  # fmt: skip


class Task(Protocol):
    """What is trained."""

    @property
    def state(self) -> nn.Module:
        """What a checkpoint holds beside the model, such as the objective."""

    @property
    def model(self) -> nn.Module:
        """The bare network; the engine passes the prepared one to :meth:`embed`."""

    def load(self, indices: NDArray[np.int64]) -> Batch:
        """The samples at ``indices`` as tensors on the CPU."""

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        """Take note of the progress: epochs done, and the fraction of the run in [0, 1]."""

    def embed(self, model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        """Embeddings of a batch, one tensor a view."""

    def loss(self, embeddings: tuple[Tensor, ...]) -> Tensor:
        """Scalar loss of :meth:`embed`'s result."""

    def evaluate(self) -> Mapping[str, float]:
        """Metrics of ``model``, by name. Must leave the random state alone."""

    def save(self, folder: Path) -> None:
        """Write ``model`` as users load it."""


@dataclass
class TrainingState:
    """What a checkpoint must know besides tensors."""

    step: int = 0
    best_metric: float | None = None
    best_step: int | None = None
    train_seconds: float = 0.0


@dataclass(frozen=True)
class TrainingSummary:
    """What a run was like.

    Attributes:
        steps: optimiser steps of the whole run.
        seconds: spent in training steps, evaluation and saving left out.
        samples_per_second: training samples over ``seconds``, all processes together.
        peak_memory_gb: of the device on CUDA, else of the process (resident), in 10^9 bytes.
        best_step: of the model kept; None if nothing was evaluated.
        metrics: of the model kept.
    """

    steps: int
    seconds: float
    samples_per_second: float
    peak_memory_gb: float
    best_step: int | None
    metrics: dict[str, float]


def make_accelerator(settings: EngineSettings) -> Accelerator:
    """The accelerator for these settings.

    Raises:
        UserError: the precision or the tracker is not available here.
    """
    trackers = [str(tracker.value) for tracker in get_available_trackers()]
    if settings.report_to not in ("none", *trackers):
        raise UserError(
            f"--report_to: {settings.report_to!r} is no tracker that is installed here; known are "
            f"{', '.join(['none', *trackers])}"
        )
    precision = resolve_precision(settings.mixed_precision)
    if precision == "fp16" and not torch.accelerator.is_available():
        raise UserError("--mixed_precision: fp16 needs an accelerator device; use bf16 or no on a CPU")
    try:
        accelerator = Accelerator(
            mixed_precision=precision,
            gradient_accumulation_steps=settings.gradient_accumulation_steps,
            log_with=None if settings.report_to == "none" else settings.report_to,
            project_dir=str(Path(settings.output_dir) / TRACKER_FOLDER),
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"accelerate cannot start here: {' '.join(str(error).split())}") from error
    check_launch(accelerator, settings)
    return accelerator


def resolve_precision(name: str) -> str:
    """``auto`` to what the launcher says, else to what this machine is fast in.

    Raises:
        UserError: the launcher says something else than no, bf16 or fp16.
    """
    if name != "auto":
        return name
    said = os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower()
    if said not in ("", "no", "bf16", "fp16"):
        raise UserError(f"ACCELERATE_MIXED_PRECISION: {said!r} is no precision of this program; use no, bf16 or fp16")
    if said not in ("", "no"):  # the launcher says "no" where nobody said anything
        return said
    use_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("true", "1", "yes")
    if torch.cuda.is_available() and not use_cpu:
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    fast = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")  # private, so they may go: then fp32
    return "bf16" if any(getattr(torch.cpu, name, bool)() for name in fast) else "no"


def global_batch_size(settings: EngineSettings, world_size: int) -> int:
    """Samples a batch over all processes.

    Raises:
        UserError: less than 2, or not divisible by the number of processes.
    """
    if settings.per_device_train_batch_size is not None:
        option, size = "per_device_train_batch_size", settings.per_device_train_batch_size * world_size
    else:
        option, size = "train_batch_size", settings.train_batch_size
    if size < 2:
        raise UserError(f"--{option}: must be at least 2 (a pair alone has no negatives), got {size}")
    if size % world_size:
        raise UserError(
            f"--{option}: {size} does not divide among {world_size} processes; use a multiple of {world_size}, or "
            "--per_device_train_batch_size"
        )
    return size


def on_main_process(accelerator: Accelerator, work: Callable[[], None]) -> None:
    """Run ``work`` on the main process while the others wait; its error ends all of them, and none is left waiting.

    Raises:
        TrainingError: in the other processes, with the main process's message.
    """
    caught: Exception | None = None
    if accelerator.is_main_process:
        try:
            work()
        except Exception as error:  # to be raised below, when the others know
            caught = error
    if accelerator.num_processes > 1:
        message = broadcast_object_list([None if caught is None else f"the main process failed: {caught}"])[0]
        if message is not None and caught is None:
            raise TrainingError(message)
    if caught is not None:
        raise caught


def describe(accelerator: Accelerator) -> str:
    """Devices and precision, for people."""
    return f"{accelerator.num_processes} x {accelerator.device.type}, precision {accelerator.mixed_precision}"


def seed_process(seed: int, rank: int) -> None:
    """Give each process its own stream of random numbers, for dropout and augmentation."""
    set_seed(int(np.random.SeedSequence([seed, rank]).generate_state(1)[0]))


class Trainer:
    """Trains a task. Build it, then :meth:`fit`.

    Args:
        task: what is trained.
        data_size: number of training samples.
        settings: of the loop.
        accelerator: from :func:`make_accelerator`.
        options: all options of the run, for trackers and for the check that a resumed run is the same run; those of
            ``settings`` if none are given.
        data_id: names the data's content, such as a checksum.
        make_optimizer: the optimizer of a network's trainable parameters; None is AdamW with the settings' rate.

    Raises:
        UserError: settings that do not fit each other or the data, or a checkpoint to resume that is damaged or of
            another run.
    """

    def __init__(
        self,
        task: Task,
        data_size: int,
        settings: EngineSettings,
        accelerator: Accelerator,
        options: Mapping[str, Any] | None = None,
        data_id: str = "",
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    ) -> None:
        self.task = task
        self.settings = settings
        self.options = dict(vars(settings) if options is None else options)
        self.data_id = data_id
        self.accelerator = accelerator
        self.order = BatchOrder(
            data_size,
            global_batch_size(settings, accelerator.num_processes),
            settings.seed,
            accelerator.process_index,
            accelerator.num_processes,
        )
        self.steps_per_epoch = len(self.order) // settings.gradient_accumulation_steps
        if self.steps_per_epoch == 0:
            raise UserError(
                f"--gradient_accumulation_steps: {settings.gradient_accumulation_steps} batches a step, "
                f"but an epoch has {len(self.order)}"
            )
        self.total_steps = (
            settings.max_steps if settings.max_steps > 0 else settings.num_train_epochs * self.steps_per_epoch
        )
        if settings.grad_cache_chunk is not None:
            check_no_batch_statistics(task.model)
        seed_process(settings.seed, accelerator.process_index)
        network = network_to_train(accelerator, task.model)
        optimizer = make_optimizer(network) if make_optimizer else adamw(network, settings)
        tell_deepspeed(accelerator, self.order.batch_size // accelerator.num_processes, settings)
        self.model, self.optimizer = accelerator.prepare(network, optimizer)
        rising = settings.lr_scheduler_type == "constant" and settings.warmup_ratio > 0
        self.scheduler = get_scheduler(
            "constant_with_warmup" if rising else settings.lr_scheduler_type,
            self.optimizer,
            num_warmup_steps=math.ceil(settings.warmup_ratio * self.total_steps),
            num_training_steps=self.total_steps,
        )
        self.state = TrainingState()
        self.folder = Path(settings.output_dir)
        self._checkpointed = self._read_checkpoint() if settings.resume_from_checkpoint else None
        self._pending: list[Tensor] = []  # losses that were not read from the device yet
        self._metrics: dict[str, float] = {}

    def fit(self) -> TrainingSummary:
        """Train to the end, keeping the best model in ``output_dir``, and return the summary.

        The caller calls :meth:`close` when it has no more to say to the other processes.

        Raises:
            TrainingError: the loss or the weights are no numbers, or a temperature reached zero.
        """
        try:
            return self._fit()
        except TemperatureError as error:
            raise TrainingError(f"--alpha, --a_0: {error}") from error

    def _fit(self) -> TrainingSummary:
        settings, state = self.settings, self.state
        if self._checkpointed is not None:
            self._resume(self._checkpointed)
        if settings.report_to != "none":
            self.accelerator.init_trackers("dystress", config=_trackable(self.options))
        self.model.train()
        first_step = state.step
        mark = time.perf_counter()
        with progress_bar(
            show=self.accelerator.is_main_process,
            total=self.total_steps,
            initial=first_step,
            desc="training",
            unit=" steps",
        ) as bar:
            for micro_batches in self._batches(first_step):
                self._step(micro_batches)
                state.step += 1
                last = state.step == self.total_steps
                evaluating = last or (settings.eval_steps > 0 and state.step % settings.eval_steps == 0)
                saving = settings.save_steps > 0 and state.step % settings.save_steps == 0 and not last
                if state.step % settings.logging_steps == 0 or evaluating or saving:
                    loss = self._read_losses()
                    state.train_seconds += time.perf_counter() - mark
                    mark = time.perf_counter()
                    rate = self._samples(state.step) / state.train_seconds
                    self._log(
                        {"loss": loss, "learning_rate": self.scheduler.get_last_lr()[0], "samples_per_second": rate}
                    )
                    bar.set_postfix_str(f"loss {loss:.4f}, {rate:,.0f} samples/s", refresh=False)
                if evaluating:
                    self._evaluate()
                if saving:
                    self._checkpoint()
                if evaluating or saving:
                    mark = time.perf_counter()
                bar.update()
        return TrainingSummary(
            steps=self.total_steps,
            seconds=state.train_seconds,
            samples_per_second=self._samples(state.step) / max(state.train_seconds, 1e-9),
            peak_memory_gb=peak_memory(self.accelerator.device) / 1e9,
            best_step=state.best_step,
            metrics=self._metrics,
        )

    def close(self) -> None:
        """Let go of the prepared model and end the process group; the last call on every process.

        Distributed training's own objects must go before the group does: gloo's destructor, run by the interpreter
        while gloo still frees the tensors of a finished call, waits for ever.
        """
        self.model = self.task.model
        self.accelerator.free_memory()
        gc.collect()
        self.accelerator.end_training()

    def _samples(self, steps: int) -> int:
        return steps * self.settings.gradient_accumulation_steps * self.order.batch_size

    def _batches(self, start: int) -> Iterator[list[list[Batch]]]:
        """What each step from ``start`` on is made of: micro-batches, each in the chunks that are embedded at once."""
        accumulation, chunk = self.settings.gradient_accumulation_steps, self.settings.grad_cache_chunk

        def chunks() -> Iterator[NDArray[np.int64]]:
            for step in range(start, self.total_steps):
                epoch, i = divmod(step, self.steps_per_epoch)
                if i == 0 or step == start:
                    batches = self.order.epoch(epoch)
                for batch in batches[i * accumulation : (i + 1) * accumulation]:
                    yield from np.split(batch, range(chunk, len(batch), chunk)) if chunk else [batch]

        loaded = load_ahead(self.task.load, chunks(), self.accelerator.device)
        per_batch = -(-(self.order.batch_size // self.order.world_size) // chunk) if chunk else 1
        for _ in range(start, self.total_steps):
            yield [list(islice(loaded, per_batch)) for _ in range(accumulation)]

    def _step(self, micro_batches: list[list[Batch]]) -> None:
        self.task.begin_step(self.state.step / self.steps_per_epoch, self.state.step / self.total_steps)
        for chunks in micro_batches:
            with self.accelerator.accumulate(self.model):
                if len(chunks) == 1:
                    loss = self.task.loss(self.task.embed(self.model, chunks[0]))
                    self.accelerator.backward(loss)
                else:
                    loss = backward_in_chunks(self.task, self.model, chunks, self.accelerator)
                if self.accelerator.sync_gradients and self.settings.max_grad_norm > 0:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
            self._pending.append(loss.detach())
        self.scheduler.step()  # also when fp16 overflowed: the fused optimizer skips on the device and tells nobody

    def _read_losses(self) -> float:
        """Mean of the losses since the last call over all processes; the loop's only read from the device.

        Raises:
            TrainingError: one of them is not finite.
        """
        losses: list[float] = self.accelerator.reduce(torch.stack(self._pending), "mean").tolist()
        self._pending.clear()
        for i, loss in enumerate(losses):
            if not math.isfinite(loss):
                steps = len(losses) // self.settings.gradient_accumulation_steps
                step = self.state.step - steps + i // self.settings.gradient_accumulation_steps + 1
                raise TrainingError(
                    f"the loss is {loss} at step {step} of {self.total_steps} (learning rate "
                    f"{self.scheduler.get_last_lr()[0]:.3g}); lower --learning_rate, raise --tau_min or "
                    f"use --mixed_precision bf16 or no. {self._kept()}"
                )
        return sum(losses) / len(losses)

    def _kept(self) -> str:
        if self.state.best_step is None:
            return "This run has saved no model"
        return f"The model of step {self.state.best_step} is kept in {self.folder}"

    def _evaluate(self) -> None:
        collect_weights(self.accelerator, self.model, self.task.model)
        on_main_process(self.accelerator, self._evaluate_and_keep)

    def _evaluate_and_keep(self) -> None:
        metrics = dict(self.task.evaluate())
        if metrics:
            self._log(metrics)
        name = self.settings.metric_for_best_model
        value = metrics[name] if name and metrics else None
        best = self.state.best_metric
        if value is None or (not math.isnan(value) and (best is None or value > best)):
            if not all(bool(parameter.isfinite().all()) for parameter in self.task.model.parameters()):
                raise TrainingError(f"the weights are no numbers at step {self.state.step}; lower --learning_rate")
            self.task.save(self.folder)
            self.state.best_metric, self.state.best_step = value, self.state.step
            self._metrics = metrics
        elif best is None:
            raise TrainingError(f"{name} is {value} at step {self.state.step}: the vectors are all equal or no numbers")

    def _log(self, values: Mapping[str, float]) -> None:
        if self.accelerator.is_main_process:
            self.accelerator.log(dict(values), step=self.state.step)
            with (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.write(to_json({"step": self.state.step, **values}) + "\n")

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Write ``checkpoint/`` anew, under another name first."""
        staging, final = self.folder / STAGING, self.folder / CHECKPOINT
        on_main_process(self.accelerator, lambda: shutil.rmtree(staging, ignore_errors=True))
        self.accelerator.save_state(str(staging))
        self.accelerator.wait_for_everyone()  # every process writes its own random state

        def finish() -> None:
            tensors = {name: tensor.contiguous() for name, tensor in self.task.state.state_dict().items()}
            save_file(tensors, staging / "task.safetensors")
            state = {
                **vars(self.state),
                "scheduler": self.scheduler.state_dict(),
                "metrics": self._metrics,
                "identity": self._identity(),
            }
            (staging / CHECKPOINT_STATE).write_text(json.dumps(state))
            shutil.rmtree(final, ignore_errors=True)
            staging.rename(final)

        on_main_process(self.accelerator, finish)

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a resumed run to be the run that was interrupted."""
        fixed = {name: value for name, value in self.options.items() if name not in FREE_OPTIONS}
        return fixed | {
            "mixed_precision": self.accelerator.mixed_precision,
            "number of processes": self.accelerator.num_processes,
            "training data": self.data_id,
        }

    def _read_checkpoint(self) -> dict[str, Any]:
        folder = find_checkpoint(self.folder)
        try:
            stored: dict[str, Any] = json.loads((folder / CHECKPOINT_STATE).read_text())
            then = stored.pop("identity")
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"--resume_from_checkpoint: {folder / CHECKPOINT_STATE} is damaged: {error}") from error
        now = json.loads(json.dumps(self._identity()))
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if changed:
            differences = "; ".join(f"{name} was {then.get(name)}, is {now.get(name)}" for name in changed)
            raise UserError(
                f"--resume_from_checkpoint: the run in {str(self.folder)!r} had other settings ({differences}); "
                "give those of its run.json, or another --output_dir"
            )
        return stored

    def _resume(self, stored: dict[str, Any]) -> None:
        folder = find_checkpoint(self.folder)
        self.scheduler.load_state_dict(stored.pop("scheduler"))
        self._metrics = stored.pop("metrics")
        self.accelerator.load_state(str(folder))
        self.task.state.load_state_dict(load_file(folder / "task.safetensors"))
        self.state.__dict__.update(stored)

        def shorten_log() -> None:
            lines = (self.folder / LOG).read_text().splitlines() if (self.folder / LOG).is_file() else []
            kept = [line for line in lines if (_step_of(line) or math.inf) <= self.state.step]
            (self.folder / LOG).write_text("".join(line + "\n" for line in kept))

        on_main_process(self.accelerator, shorten_log)


def _step_of(line: str) -> int | None:
    """The step of a log line; None for one that was torn when the run was killed."""
    try:
        step: int = json.loads(line)["step"]
    except ValueError:
        return None
    return step


def find_checkpoint(output_dir: Path) -> Path:
    """The checkpoint of a run.

    Raises:
        UserError: there is none.
    """
    folder = output_dir / CHECKPOINT
    if not (folder / CHECKPOINT_STATE).is_file():
        raise UserError(f"--resume_from_checkpoint: {str(output_dir)!r} holds no checkpoint (see --save_steps)")
    return folder


def adamw(model: nn.Module, settings: EngineSettings) -> torch.optim.Optimizer:
    """Fused AdamW."""
    groups = parameter_groups(model, settings.weight_decay)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters, those of biases and normalisation layers (one dimension) without weight decay."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: allocated on a CUDA device, else resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _trackable(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if isinstance(value, (int, float, str, bool))}
