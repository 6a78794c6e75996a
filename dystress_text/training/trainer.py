"""The training loop for text and images, on accelerate.

What is trained is a :class:`~dystress_text.training.task.Task`.
"""

from __future__ import annotations

import gc
import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm
from transformers import get_scheduler

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import DataError, Interrupted, ParameterError, TrainingError, reason_of
from dystress_text.io.atomic import append_json
from dystress_text.losses.objectives import ContrastiveLoss
from dystress_text.losses.temperature import TemperatureError
from dystress_text.training.accelerator import StopSignals, describe_failure, on_main_process
from dystress_text.training.batches import (
    Batch,
    BatchOrder,
    backward_in_chunks,
    count_steps,
    prefetch,
)
from dystress_text.training.checkpoints import Checkpoints, TrainingState
from dystress_text.training.run_folder import LOG, SIMILARITY_LOG, shorten_logs
from dystress_text.training.settings import TrainingSettings
from dystress_text.training.similarity_log import SimilarityLog
from dystress_text.training.task import TrainingPlan

LEARNED_RATE = 1e-3  # default peak learning rate of a loss's parameters


class Trainer:
    """Train the task of a run. Call :meth:`fit`, then :meth:`close`, on all processes.

    Args:
        plan: the task and how to train it.
        settings: the settings of the loop.
        accelerator: the result of :func:`~dystress_text.training.accelerator.make_accelerator`.
        folder: the folder of the run; None for ``settings.output_dir``.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        settings: TrainingSettings,
        accelerator: Accelerator,
        folder: Path | None = None,
    ) -> None:
        self.plan = plan
        self.task = plan.task
        self.settings = settings
        self.accelerator = accelerator
        self.folder = folder or Path(settings.output_dir)
        rank = accelerator.process_index
        self.order = BatchOrder(
            plan.samples, settings.train_batch_size, settings.seed, rank, accelerator.num_processes
        )
        self.steps_per_epoch, self.total_steps = count_steps(len(self.order), settings)
        # each process has its own random numbers, for dropout and augmentation
        set_seed(int(np.random.SeedSequence([settings.seed, rank]).generate_state(1)[0]))
        optimizer = _make_optimizer(plan, settings)
        self.model, self.optimizer = accelerator.prepare(plan.task.model, optimizer)
        kind = settings.lr_scheduler_type
        if kind == "constant":
            kind = "constant_with_warmup"
        warmup = math.ceil(settings.warmup_ratio * self.total_steps)
        self.scheduler: LambdaLR = get_scheduler(kind, self.optimizer, warmup, self.total_steps)
        self._checkpoints = Checkpoints(plan, settings, accelerator, self.folder)
        self._resumed, self.state = self._checkpoints.find()
        self._similarities: SimilarityLog | None = None
        if settings.log_similarity and isinstance(plan.task.objective, ContrastiveLoss):
            self._similarities = SimilarityLog(plan.task.objective)
        self._fp16 = accelerator.scaler is not None
        # loss and gradient norm, (2,), of each batch since the last read
        self._pending: list[Tensor] = []

    def fit(self) -> TrainingState:
        """Train to the end; save the best model; return the final state.

        Raises:
            DataError: a sample is damaged. A single process has saved a checkpoint.
            TrainingError: the loss is not finite, a file cannot be written, or another process
                ended.
            Interrupted: SIGTERM or Ctrl-C stopped the run, after a checkpoint was saved.
        """
        try:
            return self._fit()
        except DataError as error:  # while loading ahead
            step = self.state.step
            # other processes may be inside a step
            if not step or self.accelerator.num_processes > 1:
                raise
            self._read_losses()
            self._checkpoints.write(self.state)
            advice = f"step {step} is saved, `resume_from_checkpoint` goes on"
            raise DataError(f"{error}; {advice}") from error
        except TemperatureError as error:
            raise TrainingError(str(error)) from error
        except (OSError, RuntimeError, MemoryError, SafetensorError) as error:
            reason = describe_failure(error, self.accelerator)
            if reason is None:
                raise
            raise self._failure(reason) from error

    @contextmanager
    def naming_saved_model(self) -> Iterator[None]:
        """Turn any failure in this context into one line that names the saved model."""
        try:
            yield
        except ParameterError:  # of an upload, which names the folder itself
            raise
        except Exception as error:
            raise self._failure(f"{type(error).__name__}: {reason_of(error)}") from error

    def close(self) -> None:
        """End the trackers, and free the prepared model.

        If the process group ended before the model is freed, gloo's destructor would hang.
        """
        self.model = self.task.model
        self.accelerator.free_memory()
        if self.accelerator.num_processes > 1:
            gc.collect()
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def _fit(self) -> TrainingState:
        state = self.state
        if self._resumed is not None:
            self._resume(self._resumed)
        if self.settings.report_to != "none":
            options = self.plan.record.settings.items()
            plain = {name: value for name, value in options if isinstance(value, int | float | str)}
            self.accelerator.init_trackers("dystress", config=plain)
        self.model.train()
        bar = progress_bar(
            show=self.accelerator.is_main_process,
            total=self.total_steps,
            initial=state.step,
            desc="training",
            unit=" steps",
        )
        with StopSignals(self.accelerator) as stop, bar:
            self._mark = time.perf_counter()
            for micro_batches in self._batches(state.step):
                self._step(micro_batches)
                state.step += 1
                self._after_step(stop, bar)
                bar.update()
        return state

    def _resume(self, folder: Path) -> None:
        """Load a checkpoint, and remove later lines from the logs."""
        self._checkpoints.load(folder)
        step = self.state.step
        self.scheduler.last_epoch = step - 1
        self.scheduler._step_count = step + 1
        self.scheduler.step()
        on_main_process(self.accelerator, lambda: shorten_logs(self.folder, step))

    # ---- a step

    def _batches(self, start: int) -> Iterator[list[list[Batch]]]:
        """Yield the batches of each step from ``start`` on, each as a list of its chunks."""
        accumulation = self.settings.gradient_accumulation_steps
        size = self.order.batch_size // self.order.world_size
        chunk = self.settings.grad_cache_chunk or size

        def chunks() -> Iterator[tuple[NDArray[np.int64], int]]:
            for step in range(start, self.total_steps):
                epoch, i = divmod(step, self.steps_per_epoch)
                if i == 0 or step == start:
                    batches = self.order.epoch(epoch)
                for batch in batches[i * accumulation : (i + 1) * accumulation]:
                    for row in range(0, size, chunk):
                        yield batch[row : row + chunk], step

        loaded = prefetch(lambda chunk: self.task.load(*chunk), chunks(), self.accelerator.device)
        per_batch = math.ceil(size / chunk)
        for _ in range(start, self.total_steps):
            yield [list(islice(loaded, per_batch)) for _ in range(accumulation)]

    def _step(self, micro_batches: list[list[Batch]]) -> None:
        accelerator = self.accelerator
        step = self.state.step
        self.task.begin_step(step / self.steps_per_epoch, step / self.total_steps)
        clip = self.settings.max_grad_norm
        if clip == 0 and self._fp16:
            clip = math.inf  # compute the norm, which shows fp16 overflows
        for chunks in micro_batches:
            with accelerator.accumulate(self.model):
                loss = self._backward(chunks)
                norm = torch.zeros_like(loss)
                if accelerator.sync_gradients:
                    for parameter in self.task.objective.parameters():
                        # a user's temperature may have frozen or unused parameters
                        if parameter.grad is not None:
                            parameter.grad = accelerator.reduce(parameter.grad, "mean")
                    if clip > 0:
                        norm = accelerator.clip_grad_norm_(self.model.parameters(), clip).to(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            self._pending.append(torch.stack([loss, norm]))
        if self._similarities is not None:
            self._similarities.end_step()
        # also after an fp16 overflow, where the fused optimizer skips the step on the device
        self.scheduler.step()

    def _backward(self, chunks: list[Batch]) -> Tensor:
        """Add the gradient of a batch, given as chunks; return its loss."""
        task = self.task
        if len(chunks) > 1:
            return backward_in_chunks(task.embed, task.loss, self.model, chunks, self.accelerator)
        loss = task.loss(task.embed(self.model, chunks[0]))
        self.accelerator.backward(loss)
        return loss.detach()

    def _after_step(self, stop: StopSignals, bar: tqdm[Any]) -> None:
        """Log, evaluate, save and stop as the settings say."""
        settings = self.settings
        state = self.state
        last = state.step == self.total_steps
        evaluating = last or _due(state.step, settings.eval_steps)
        logging = evaluating or _due(state.step, settings.logging_steps)
        saving = not last and _due(state.step, settings.save_steps)
        stopping = 0 if last else stop.agreed()
        if not (logging or saving or stopping):
            return
        self._read_losses()
        state.train_seconds += time.perf_counter() - self._mark
        if evaluating or saving:
            on_main_process(self.accelerator, self._check_and_save)
        if logging:
            bar.set_postfix_str(self._log_losses(), refresh=False)
        if evaluating:
            on_main_process(self.accelerator, self.naming_saved_model()(self._evaluate))
        if saving or stopping:
            self._checkpoints.write(state)
        if stopping:
            name = signal.Signals(stopping).name
            raise Interrupted(
                stopping,
                f"stopped by {name} after step {state.step} of {self.total_steps}; "
                "`resume_from_checkpoint` continues",
            )
        self._mark = time.perf_counter()

    # ---- losses and logs

    def _read_losses(self) -> None:
        """Check and keep the losses since the last call; log their similarities.

        This waits for the device.

        Raises:
            TrainingError: a loss is not finite.
        """
        if not self._pending:
            return
        pending = torch.stack(self._pending)  # (batches, 2)
        self._pending.clear()
        read: list[list[float]] = self.accelerator.reduce(pending, "mean").tolist()
        accumulation = self.settings.gradient_accumulation_steps
        steps = [read[i : i + accumulation] for i in range(0, len(read), accumulation)]
        first = self.state.step - len(steps) + 1
        for step, batches in enumerate(steps, first):
            losses = [loss for loss, _ in batches]
            reason = self.state.add_losses(losses, batches[-1][1], self._fp16)
            if reason is not None:
                raise TrainingError(
                    f"{reason} at step {step} of {self.total_steps}; lower `learning_rate`, raise "
                    f"the temperature or use `mixed_precision` bf16 or no. {self._saved_model()}"
                )
        if self._similarities is not None:
            lines = self._similarities.read(self.accelerator)
            if self.accelerator.is_main_process:
                for step, line in enumerate(lines, first):
                    append_json(self.folder / SIMILARITY_LOG, {"step": step, **line})

    @property
    def samples_per_second(self) -> float:
        """Return the training speed over all processes, without evaluations."""
        batches = self.state.step * self.settings.gradient_accumulation_steps
        return batches * self.order.batch_size / max(self.state.train_seconds, 1e-9)

    def _log_losses(self) -> str:
        """Log the mean loss since the last line; return loss and speed for the progress bar."""
        losses = self.state.losses
        loss = sum(losses) / len(losses) if losses else math.nan
        losses.clear()
        values = {
            "loss": loss,
            "learning_rate": float(self.scheduler.get_last_lr()[0]),
            "samples_per_second": self.samples_per_second,
        }
        self._log(values)
        return f"loss {loss:.4f}, {self.samples_per_second:,.0f} samples/s"

    def _log(self, values: Mapping[str, float]) -> None:
        """Write values of this step to the log and to the tracker, on the main process."""
        if self.accelerator.is_main_process:
            self.accelerator.log(dict(values), step=self.state.step)
            append_json(self.folder / LOG, {"step": self.state.step, **values})

    # ---- the best model

    def _check_and_save(self) -> None:
        """Check that all weights are finite; save the last model if none was saved before.

        Raises:
            TrainingError: a weight is not finite.
        """
        weights = [parameter.detach() for parameter in self.task.model.parameters()]
        if not get_total_norm(weights, norm_type=math.inf).isfinite():  # NaN if one is
            step = self.state.step
            raise TrainingError(f"a weight is not finite at step {step}; lower `learning_rate`")
        if self.state.step == self.total_steps and self.state.best_step is None:
            self._save()

    def _evaluate(self) -> None:
        """Evaluate the model; save it if its metric is the best so far."""
        state = self.state
        record = self.plan.record
        name = record.settings.get("metric_for_best_model")
        metrics = dict(self.task.evaluate())
        if metrics:
            self._log(metrics)
        if self.plan.has_collapsed():
            record.collapsed_step = record.collapsed_step or state.step
            if state.best_step not in (None, state.step):
                return  # the model from before stays
        else:
            record.collapsed_step = None
        if name is None:
            state.metrics = metrics  # the last model is kept
            return
        value = metrics.get(name, math.nan)
        best = state.best_metric
        if best is None and math.isnan(value):
            raise TrainingError(
                f"{name} is not finite: all embeddings are equal, or some are not finite; lower "
                "`learning_rate` or raise the temperature"
            )
        if best is None or value > best:
            if state.best_step != state.step:
                self._save()
            state.best_metric = value
            state.metrics = metrics

    def _save(self) -> None:
        """Save the model of this step as the best one."""
        self.task.save(self.folder)
        self.state.best_step = self.state.step
        self.state.learned = self.task.objective.learned()

    def _failure(self, reason: str) -> TrainingError:
        return TrainingError(
            f"after step {self.state.step} of {self.total_steps}, in {str(self.folder)!r}: "
            f"{reason}. {self._saved_model()}"
        )

    def _saved_model(self) -> str:
        if self.state.best_step is None:
            return "This run has saved no model"
        return f"The model of step {self.state.best_step} is in {self.folder}"


def _due(step: int, every: int) -> bool:
    """Return whether ``step`` is a multiple of ``every``; never if that is 0."""
    return every > 0 and step % every == 0


def _make_optimizer(plan: TrainingPlan, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return the optimizer of the network and the loss; the loss has no weight decay."""
    if plan.make_optimizer is not None:
        optimizer = plan.make_optimizer(plan.task.model)
    else:
        groups = parameter_groups(plan.task.model, settings.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
    objective = plan.task.objective
    learned = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    if learned:
        rates = (getattr(part, "learning_rate", None) for part in objective.modules())
        rate = next(filter(None, rates), LEARNED_RATE)
        optimizer.add_param_group({"params": learned, "lr": rate, "weight_decay": 0.0})
    return optimizer


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups of parameters; biases and normalisation layers have no weight decay."""
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            group = decayed if parameter.ndim > 1 else others
            group.append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
