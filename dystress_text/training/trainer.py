"""The one training loop, on accelerate, for text and vision.

A task defines the embeddings of a batch, their loss, and how the model is evaluated and saved. The trainer does the
rest: devices and precision, the order of the samples, accumulation, clipping, the learning rate, progress, trackers,
the best model, checkpoints, and the stop on a signal or on a loss that is not finite.
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
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from tqdm import tqdm

from dystress_text.cli.progress import progress_bar
from dystress_text.core.temperature import TemperatureError
from dystress_text.errors import Interrupted, TrainingError, reason_of
from dystress_text.training.accelerator import (
    Agreement,
    failure_of,
    global_batch_size,
    on_main_process,
    seed_process,
)
from dystress_text.training.batches import Batch, BatchOrder, load_ahead
from dystress_text.training.build_loss import learned_values
from dystress_text.training.checkpoints import Checkpoints, TrainingState, identity_of, remove_old
from dystress_text.training.gradient_cache import backward_in_chunks, check_no_batch_statistics
from dystress_text.training.optimizer import adamw, count_steps, schedule
from dystress_text.training.run_folder import LOG, SIMILARITY_LOG, append, checkpoint_folder, shorten
from dystress_text.training.settings import EngineSettings
from dystress_text.training.stop_signals import StopRequest, stop_signals
from dystress_text.training.task import Embeddings, Run


class Trainer:
    """Trains the task of a run. Build it, then :meth:`fit`, then :meth:`close`, on all processes.

    Args:
        run: the task, and what belongs to it.
        settings: of the loop.
        accelerator: from :func:`make_accelerator`.
    """

    def __init__(self, run: Run, settings: EngineSettings, accelerator: Accelerator) -> None:
        self.run, self.task, self.settings, self.accelerator = run, run.task, settings, accelerator
        rank, processes = accelerator.process_index, accelerator.num_processes
        self.order = BatchOrder(run.samples, global_batch_size(settings, processes), settings.seed, rank, processes)
        self.steps_per_epoch, self.total_steps = count_steps(len(self.order), settings)
        if settings.grad_cache_chunk is not None:
            check_no_batch_statistics(run.task.model)
        seed_process(settings.seed, rank)
        network = run.task.model
        optimizer = run.make_optimizer(network) if run.make_optimizer else adamw(network, settings)
        if run.learned_temperature is not None:
            optimizer.add_param_group(run.learned_temperature)
        self.model, self.optimizer = accelerator.prepare(network, optimizer)
        self.scheduler = schedule(self.optimizer, settings, self.total_steps)
        self.folder = Path(settings.output_dir)
        identity = identity_of(run.options, accelerator, run.data_id)
        self._checkpoints = Checkpoints(self.folder, accelerator, self.optimizer, run.task.state, identity)
        found = self._checkpoints.find(self.total_steps) if settings.resumes else None
        self._resumed = None if found is None else found[0]
        self.state = TrainingState() if found is None else found[1]
        self._agree = Agreement(accelerator)
        self._fp16 = accelerator.scaler is not None
        self._pending: list[Tensor] = []  # a loss and a gradient's norm, (2,), for each batch since the last reading

    def fit(self) -> TrainingState:
        """Train to the end, keeping the best model in ``output_dir``, and return the final state.

        Raises:
            TrainingError: the loss, the gradient or the weights are not finite, a temperature reached zero, a file
                cannot be written, or another process has ended.
            Interrupted: SIGTERM or Ctrl-C, after a checkpoint.
        """
        try:
            return self._fit()
        except TemperatureError as error:
            raise TrainingError(f"{', '.join(f'--{name}' for name in error.options)}: {error}") from error
        except RuntimeError as error:
            reason = failure_of(error, self.accelerator)
            if reason is None:
                raise
            raise TrainingError(
                f"after step {self.state.step} of {self.total_steps}, batch of {self.order.batch_size}: {reason}. "
                f"{self._saved_model()}; complete checkpoints stay as they are"
            ) from error

    def close(self) -> None:
        """Free the prepared model and end the process group; the last call on every process.

        The objects of distributed training must be freed before the group. Otherwise the interpreter runs gloo's
        destructor while gloo still frees the tensors of a finished call, and the destructor waits for ever.
        """
        self.model = self.task.model
        self.accelerator.free_memory()
        gc.collect()
        self.accelerator.end_training()

    def _fit(self) -> TrainingState:
        state, main = self.state, self.accelerator.is_main_process
        if self._resumed is not None:
            self._resume(self._resumed)
        if self.settings.report_to != "none":
            plain = {k: v for k, v in self.run.options.items() if isinstance(v, (int, float, str, bool))}
            self.accelerator.init_trackers("dystress", config=plain)
        self.model.train()
        bar = progress_bar(show=main, total=self.total_steps, initial=state.step, desc="training", unit=" steps")
        with stop_signals(main) as stop, bar:
            self._mark = time.perf_counter()
            for micro_batches in self._batches(state.step):
                self._step(micro_batches)
                state.step += 1
                self._after_step(stop, bar)
                bar.update()
        return state

    def _resume(self, folder: Path) -> None:
        """Load the state of a checkpoint, and forget what was logged after it."""
        self._checkpoints.load(folder)
        step = self.state.step
        self.scheduler.last_epoch, self.scheduler._step_count = step - 1, step + 1
        self.scheduler.step()

        def shorten_logs() -> None:
            for log in (self.folder / LOG, self.folder / SIMILARITY_LOG):
                if log.is_file():
                    shorten(log, step)

        with self._writing():
            on_main_process(self.accelerator, shorten_logs)

    # ---- a step ----------------------------------------------------------------------------------------------------

    def _batches(self, start: int) -> Iterator[list[list[Batch]]]:
        """The micro-batches of each step from ``start`` on, each as a list of chunks that are embedded at once."""
        accumulation, chunk = self.settings.gradient_accumulation_steps, self.settings.grad_cache_chunk

        def chunks() -> Iterator[tuple[NDArray[np.int64], int]]:
            for step in range(start, self.total_steps):
                epoch, i = divmod(step, self.steps_per_epoch)
                if i == 0 or step == start:
                    batches = self.order.epoch(epoch)
                for batch in batches[i * accumulation : (i + 1) * accumulation]:
                    for rows in np.split(batch, range(chunk, len(batch), chunk)) if chunk else [batch]:
                        yield rows, step

        loaded = load_ahead(lambda chunk: self.task.load(*chunk), chunks(), self.accelerator.device)
        per_batch = -(-(self.order.batch_size // self.order.world_size) // chunk) if chunk else 1
        for _ in range(start, self.total_steps):
            yield [list(islice(loaded, per_batch)) for _ in range(accumulation)]

    def _step(self, micro_batches: list[list[Batch]]) -> None:
        accelerator = self.accelerator
        learned = (self.run.learned_temperature or {"params": []})["params"]
        clip = self.settings.max_grad_norm or (math.inf if self._fp16 else 0)  # fp16 overflows show in the norm
        self.task.begin_step(self.state.step / self.steps_per_epoch, self.state.step / self.total_steps)
        for chunks in micro_batches:
            norm: Tensor | None = None
            with accelerator.accumulate(self.model):
                if len(chunks) == 1:
                    loss = self._loss(self.task.embed(self.model, chunks[0]))
                    accelerator.backward(loss)
                else:
                    loss = backward_in_chunks(self.task.embed, self._loss, self.model, chunks, accelerator)
                if accelerator.sync_gradients:
                    for parameter in learned:  # before the check for overflow, so that all processes find it
                        parameter.grad = accelerator.reduce(parameter.grad, "mean")
                    if clip > 0:
                        norm = accelerator.clip_grad_norm_(self.model.parameters(), clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
            loss = loss.detach()
            self._pending.append(torch.stack([loss, loss.new_zeros(()) if norm is None else norm.to(loss)]))
        if self.run.similarity_log is not None:
            self.run.similarity_log.end_step()
        self.scheduler.step()  # also after an fp16 overflow: the fused optimizer skips the step on the device

    def _loss(self, embeddings: Embeddings) -> Tensor:
        if self.run.similarity_log is not None:  # before the loss, which may change a queue
            self.run.similarity_log.add(embeddings.views)
        return self.task.loss(embeddings)

    def _after_step(self, stop: StopRequest, bar: tqdm[Any]) -> None:
        """Log, evaluate, save and stop, each if it is due."""
        settings, state = self.settings, self.state
        last = state.step == self.total_steps
        every = {"epoch": self.steps_per_epoch, "no": 0}.get(settings.evaluation_strategy or "", settings.eval_steps)
        evaluating = last or (every > 0 and state.step % every == 0)
        logging = evaluating or state.step % settings.logging_steps == 0
        stopping = 0 if last else self._agree(stop.number)
        saving = stopping or (settings.save_steps > 0 and state.step % settings.save_steps == 0 and not last)
        if logging or saving:
            self._read_losses()
            self._log_similarities()
            now = time.perf_counter()
            state.train_seconds += now - self._mark
            self._mark = now
        if logging:
            bar.set_postfix_str(self._log_losses(), refresh=False)
        if evaluating:
            on_main_process(self.accelerator, self._evaluate)
        if saving:
            with self._writing():
                self._checkpoints.write(checkpoint_folder(self.folder, state.step), state)
            on_main_process(self.accelerator, lambda: remove_old(self.folder, settings.save_total_limit))
        if stopping:
            raise Interrupted(
                stopping,
                f"stopped by {signal.Signals(stopping).name} after step {state.step} of {self.total_steps}; "
                "--resume_from_checkpoint goes on from there",
            )
        self._mark = time.perf_counter() if evaluating or saving else self._mark

    # ---- losses and logs -------------------------------------------------------------------------------------------

    def _read_losses(self) -> None:
        """Read the losses since the last call, all that is read from the device, and end at one that is not finite."""
        if not self._pending:
            return
        read: list[list[float]] = self.accelerator.reduce(torch.stack(self._pending), "mean").tolist()
        self._pending.clear()
        batches = self.settings.gradient_accumulation_steps
        steps = [read[i : i + batches] for i in range(0, len(read), batches)]
        for step, rows in enumerate(steps, start=self.state.step - len(steps) + 1):
            losses, norm = [loss for loss, _ in rows], rows[-1][1]
            reason = self.state.add_losses(losses, norm, self._fp16)
            if reason is not None:
                epoch, batch = divmod(step - 1, self.steps_per_epoch)
                rate = self.scheduler.base_lrs[0] * self.scheduler.lr_lambdas[0](step - 1)
                raise TrainingError(
                    f"{reason} at step {step} of {self.total_steps} (epoch {epoch}, batch {batch}, learning rate "
                    f"{rate:.3g}); lower --learning_rate, raise --tau_min or use --mixed_precision bf16 or no. "
                    f"{self._saved_model()}"
                )

    @property
    def samples_per_second(self) -> float:
        """Training samples over the seconds in steps, all processes together."""
        samples = self.state.step * self.settings.gradient_accumulation_steps * self.order.batch_size
        return samples / max(self.state.train_seconds, 1e-9)

    def _log_losses(self) -> str:
        """Log the mean loss since the last log line, and return a short text with it."""
        losses = self.state.losses
        loss = sum(losses) / len(losses) if losses else math.nan
        losses.clear()
        rate = self.samples_per_second
        values = {"loss": loss, "learning_rate": float(self.scheduler.get_last_lr()[0]), "samples_per_second": rate}
        self._log(LOG, self.state.step, values)
        return f"loss {loss:.4f}, {rate:,.0f} samples/s"

    def _log_similarities(self) -> None:
        lines = [] if self.run.similarity_log is None else self.run.similarity_log.read(self.accelerator)
        for step, line in enumerate(lines, self.state.step - len(lines) + 1):
            self._log(SIMILARITY_LOG, step, line, "similarity/")

    def _log(self, file: str, step: int, values: Mapping[str, Any], prefix: str = "") -> None:
        """Write a line to a log and its numbers to the tracker, on the main process."""
        if self.accelerator.is_main_process:
            with self._writing():
                numbers = {f"{prefix}{name}": value for name, value in values.items() if isinstance(value, float)}
                self.accelerator.log(numbers, step=step)
                append(self.folder / file, step, values)

    # ---- the best model --------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Evaluate the model, and save it if it is the best one; without a metric the last one is."""
        state, name = self.state, self.run.best_metric
        metrics = dict(self.task.evaluate())
        if metrics:
            self._log(LOG, state.step, metrics)
        value = metrics[name] if name and metrics else None
        if value is not None and not (state.best_metric is None or value > state.best_metric):
            return
        if value is not None and math.isnan(value):
            raise TrainingError(f"{name} is {value} at step {state.step}: the vectors are all equal or not finite")
        check_finite(self.task.model, state.step)
        with self._writing():
            self.task.save(self.folder)
        state.best_metric, state.best_step, state.metrics = value, state.step, metrics
        state.learned = learned_values(self.task.state)

    def _saved_model(self) -> str:
        step = self.state.best_step
        return "This run has saved no model" if step is None else f"The model of step {step} is in {self.folder}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an error of writing into a :class:`TrainingError`."""
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            if failure_of(error, self.accelerator) is not None:
                raise
            raise TrainingError(
                f"cannot write to {str(self.folder)!r} after step {self.state.step}: {reason_of(error)}. "
                f"{self._saved_model()}; complete checkpoints stay as they are"
            ) from error


def check_finite(model: nn.Module, step: int) -> None:
    """Refuse weights that are not finite; reads one number from the device."""
    weights = [parameter.detach() for parameter in model.parameters()]
    if not get_total_norm(weights, norm_type=math.inf).isfinite():  # the largest weight; NaN if there is one
        raise TrainingError(f"a weight is not finite at step {step}; lower --learning_rate")
