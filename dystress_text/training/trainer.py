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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from tqdm import tqdm

from dystress_text.cli.progress import progress_bar
from dystress_text.core.temperature import TemperatureError
from dystress_text.errors import Interrupted, TrainingError, UserError
from dystress_text.training.accelerator import (
    Agreement,
    device_failure,
    global_batch_size,
    is_lost_process,
    on_main_process,
    peak_memory,
    seed_process,
)
from dystress_text.training.batches import Batch, BatchOrder, load_ahead
from dystress_text.training.best_model import ModelWriter, check_finite, is_best, note_best
from dystress_text.training.checkpoints import SavedState, TrainingState, identity_of, remove_old
from dystress_text.training.distributed import check_whole, collect_weights, network_to_train, tell_deepspeed
from dystress_text.training.gradient_cache import backward_in_chunks, check_no_batch_statistics
from dystress_text.training.losses import Failure, PendingLosses
from dystress_text.training.optimizer import adamw, count_steps, schedule
from dystress_text.training.run_folder import FAILURE, LOG, SIMILARITY_LOG, checkpoint_folder
from dystress_text.training.settings import EngineSettings
from dystress_text.training.similarity_log import SimilarityLog
from dystress_text.training.step_log import append, shorten
from dystress_text.training.stop_signals import StopSignals
from dystress_text.training.task import Task, TrainingSummary


class Trainer:
    """Trains a task. Build it, then :meth:`fit`.

    Args:
        task: the task to train.
        data_size: number of training samples.
        settings: of the loop.
        accelerator: from :func:`make_accelerator`.
        options: all options of the run, for trackers and for the check of a resumed run; None for those in
            ``settings``.
        data_id: identifies the data's content, such as a checksum.
        make_optimizer: builds the optimiser of a network; None is AdamW with the settings' learning rate.
        similarity_log: of the task's objective; its figures go to ``similarity.jsonl``.
        extra_group: a parameter group outside the network, such as a temperature's: its gradient is averaged over the
            processes and not clipped, and it has the group's own learning rate.
        best_metric: the task's name of the metric that selects the best model; None is that of the settings.

    Raises:
        UserError: the settings do not fit each other or the data, or the checkpoint to resume is damaged or of another
            run.
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
        similarity_log: SimilarityLog | None = None,
        extra_group: dict[str, Any] | None = None,
        best_metric: str | None = None,
    ) -> None:
        self.task = task
        self._extra: list[nn.Parameter] = [] if extra_group is None else extra_group["params"]
        self.similarity_log = similarity_log
        self.best_metric = best_metric or settings.metric_for_best_model
        if settings.early_stopping_patience is not None and self.best_metric is None:
            raise UserError("--early_stopping_patience: nothing is evaluated, so no metric says when to stop")
        self.settings = settings
        self.options = dict(vars(settings) if options is None else options)
        self.accelerator = accelerator
        self.order = BatchOrder(
            data_size,
            global_batch_size(settings, accelerator.num_processes),
            settings.seed,
            accelerator.process_index,
            accelerator.num_processes,
        )
        self.steps_per_epoch, self.total_steps = count_steps(len(self.order), settings)
        if settings.grad_cache_chunk is not None:
            check_no_batch_statistics(task.model)
        seed_process(settings.seed, accelerator.process_index)
        network = network_to_train(accelerator, task.model)
        optimizer = make_optimizer(network) if make_optimizer else adamw(network, settings)
        if extra_group is not None:
            check_whole(accelerator, "--learn_temperature")
            optimizer.add_param_group(extra_group)
        tell_deepspeed(accelerator, self.order.batch_size // accelerator.num_processes, settings)
        self.model, self.optimizer = accelerator.prepare(network, optimizer)
        self.scheduler = schedule(self.optimizer, settings, self.total_steps)
        self.state = TrainingState()
        self.folder = Path(settings.output_dir)
        identity = identity_of(self.options, accelerator, data_id)
        self._saved = SavedState(self.folder, accelerator, self.optimizer, self.scheduler, task.state, identity)
        self._checkpointed = self._saved.find(self.total_steps) if settings.resumes else None
        self._writer = ModelWriter(self.folder)
        self._agree = Agreement(accelerator)
        self._losses = PendingLosses(settings.gradient_accumulation_steps, accelerator.scaler is not None)

    @property
    def first_step(self) -> int:
        """The number of steps before the checkpoint to resume from; 0 for a new run."""
        return 0 if self._checkpointed is None else self._checkpointed[1].step

    def fit(self) -> TrainingSummary:
        """Train to the end, keeping the best model in ``output_dir``, and return the summary.

        The caller must call :meth:`close` after its last exchange with the other processes.

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
            reason = device_failure(error, self.accelerator.device)
            if reason is not None:
                raise TrainingError(
                    f"after step {self.state.step} of {self.total_steps}, batch of {self.order.batch_size}: {reason}. "
                    f"{self._saved_model()}; complete checkpoints stay as they are"
                ) from error
            if self.accelerator.num_processes > 1 and is_lost_process(error):
                raise TrainingError(
                    f"another process of this run is gone after step {self.state.step} of {self.total_steps}; its last "
                    f"output says why. {self._saved_model()}"
                ) from error
            raise

    def _fit(self) -> TrainingSummary:
        if self._checkpointed is not None:
            folder, self.state = self._checkpointed
            self._saved.load(folder)
            self._writer.written = self.state.best_step
            with self._writing():
                on_main_process(self.accelerator, self._shorten_logs)
        settings, state, main = self.settings, self.state, self.accelerator.is_main_process
        if settings.report_to != "none":
            self.accelerator.init_trackers("dystress", config=_trackable(self.options))
        self.model.train()
        bar = progress_bar(show=main, total=self.total_steps, initial=state.step, desc="training", unit=" steps")
        with StopSignals(main) as stop, bar:
            self._mark = time.perf_counter()
            for micro_batches in () if self._enough() else self._batches(state.step):
                self._step(micro_batches)
                state.step += 1
                if self._after_step(stop, bar):
                    break
                bar.update()
        self._finish_writing()
        return TrainingSummary(
            steps=state.step,
            seconds=state.train_seconds,
            samples_per_second=self._samples(state.step) / max(state.train_seconds, 1e-9),
            peak_memory_gb=peak_memory(self.accelerator.device) / 1e9,
            best_step=state.best_step,
            skipped_steps=state.skipped_steps,
            metrics=state.metrics,
        )

    def _enough(self) -> bool:
        """Whether no evaluation was better than the best one for too long; the same on all processes."""
        patience = self.settings.early_stopping_patience
        return patience is not None and self._agree(self.state.not_better) >= patience

    def _after_step(self, stop: StopSignals, bar: tqdm[Any]) -> bool:
        """Log, evaluate, save and stop, each if it is due; returns whether the run ends early."""
        settings, state = self.settings, self.state
        last = state.step == self.total_steps
        every = {"epoch": self.steps_per_epoch, "no": 0}.get(settings.evaluation_strategy or "", settings.eval_steps)
        evaluating = last or (every > 0 and state.step % every == 0)
        logging = evaluating or state.step % settings.logging_steps == 0
        stopping = 0 if last else self._agree(stop.requested)
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
            self._evaluate()
        if saving:
            self._checkpoint()
        if stopping:
            raise Interrupted(
                stopping,
                f"stopped by {signal.Signals(stopping).name} after step {state.step} of {self.total_steps}; "
                "--resume_from_checkpoint goes on from there",
            )
        self._mark = time.perf_counter() if evaluating or saving else self._mark
        return evaluating and not last and self._enough()

    def close(self) -> None:
        """Free the prepared model and end the process group; the last call on every process.

        The objects of distributed training must be freed before the group. Otherwise the interpreter runs gloo's
        destructor while gloo still frees the tensors of a finished call, and the destructor waits for ever.
        """
        self._writer.close()
        self.model = self.task.model
        self.accelerator.free_memory()
        gc.collect()
        self.accelerator.end_training()

    def _samples(self, steps: int) -> int:
        return steps * self.settings.gradient_accumulation_steps * self.order.batch_size

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
        self.task.begin_step(self.state.step / self.steps_per_epoch, self.state.step / self.total_steps)
        clip = self.settings.max_grad_norm or (math.inf if self._losses.fp16 else 0)  # fp16 overflows show in the norm
        for chunks in micro_batches:
            norm: Tensor | None = None
            with self.accelerator.accumulate(self.model):
                if len(chunks) == 1:
                    embeddings = self.task.embed(self.model, chunks[0])
                    if self.similarity_log is not None:
                        self.similarity_log.add(embeddings.views)
                    loss = self.task.loss(embeddings)
                    self.accelerator.backward(loss)
                else:
                    loss, embeddings = backward_in_chunks(self.task, self.model, chunks, self.accelerator)
                    if self.similarity_log is not None:
                        self.similarity_log.add(embeddings.views)
                if self.accelerator.sync_gradients:
                    for parameter in self._extra:  # before the check for overflow, so that all processes find it
                        parameter.grad = self.accelerator.reduce(parameter.grad, "mean")
                if self.accelerator.sync_gradients and clip > 0:
                    norm = self.accelerator.clip_grad_norm_(self.model.parameters(), clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
            self._losses.add(loss, None if norm is None else _local(norm))
        if self.similarity_log is not None:
            self.similarity_log.end_step()
        self.scheduler.step()  # also after an fp16 overflow: the fused optimizer skips the step on the device

    def _read_losses(self) -> None:
        """Read the losses since the last call.

        Raises:
            TrainingError: a loss or gradient is not finite, or fp16 skips step after step.
        """
        failure = self._losses.read(self.accelerator, self.state)
        if failure is not None:
            self._fail(failure)

    def _fail(self, failure: Failure) -> NoReturn:
        """Write the state and the samples of a failed step, and stop."""
        epoch, i = divmod(failure.step - 1, self.steps_per_epoch)
        batches = self.settings.gradient_accumulation_steps
        samples = self.order.whole_epoch(epoch)[i * batches : (i + 1) * batches]
        rate = self.scheduler.base_lrs[0] * self.scheduler.lr_lambdas[0](failure.step - 1)
        report = {
            "step": failure.step, "losses": failure.losses, "gradient_norm": failure.gradient_norm,
            "learning_rate": rate, "samples": samples.tolist(),
        }  # fmt: skip
        with self._writing():
            self._saved.write(self.folder / FAILURE, self.state, report)
        raise TrainingError(
            f"{failure.reason} at step {failure.step} of {self.total_steps} (epoch {epoch}, batch {i}, learning rate "
            f"{rate:.3g}); lower --learning_rate, raise --tau_min or use --mixed_precision bf16 or no. The state and "
            f"the batch's samples are in {self.folder / FAILURE}. {self._saved_model()}"
        )

    def _saved_model(self) -> str:
        with suppress(Exception):  # the model before is then the one that is there
            self._writer.finish()
        if self._writer.written is None:
            return "This run has saved no model"
        return f"The model of step {self._writer.written} is in {self.folder}"

    def _log_losses(self) -> str:
        """Log the mean loss since the last log line, and return a short text with it."""
        losses = self.state.losses
        loss = sum(losses) / len(losses) if losses else math.nan
        losses.clear()
        rate = self._samples(self.state.step) / self.state.train_seconds
        self._log({"loss": loss, "learning_rate": float(self.scheduler.get_last_lr()[0]), "samples_per_second": rate})
        return f"loss {loss:.4f}, {rate:,.0f} samples/s"

    def _evaluate(self) -> None:
        collect_weights(self.accelerator, self.model, self.task.model)
        on_main_process(self.accelerator, self._evaluate_and_keep)

    def _evaluate_and_keep(self) -> None:
        with self._writing():
            self._writer.finish()  # so that a failed write stops the run here
        metrics = dict(self.task.evaluate())
        if metrics:
            self._log(metrics)
        if is_best(self.state, metrics, self.best_metric):
            check_finite(self.task.model, self.state.step)
            with self._writing():
                self._writer.start(self.task.snapshot(), self.state.step)
            note_best(self.state, metrics, self.best_metric)
        else:
            self.state.not_better += 1

    def _log(self, values: Mapping[str, float]) -> None:
        if self.accelerator.is_main_process:
            with self._writing():
                self.accelerator.log(dict(values), step=self.state.step)
                append(self.folder / LOG, self.state.step, values)

    def _log_similarities(self) -> None:
        lines = [] if self.similarity_log is None else self.similarity_log.read(self.accelerator)
        if self.accelerator.is_main_process:
            with self._writing():
                for step, line in enumerate(lines, self.state.step - len(lines) + 1):
                    plain = {f"similarity/{name}": value for name, value in line.items() if isinstance(value, float)}
                    self.accelerator.log(plain, step=step)
                    append(self.folder / SIMILARITY_LOG, step, line)

    def _shorten_logs(self) -> None:
        for log in (LOG, SIMILARITY_LOG):
            if (self.folder / log).is_file():
                shorten(self.folder / log, self.state.step)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _finish_writing(self) -> None:
        """Wait until the best model is in the run's folder; all processes call this."""
        with self._writing():
            on_main_process(self.accelerator, self._writer.finish)

    def _checkpoint(self) -> None:
        self._finish_writing()  # so that a resumed run finds the model that the checkpoint names
        with self._writing():
            self._saved.write(checkpoint_folder(self.folder, self.state.step), self.state)
        if self.accelerator.is_main_process:
            remove_old(self.folder, self.settings.save_total_limit)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an error of writing into a :class:`TrainingError`."""
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            if is_lost_process(error):
                raise
            raise TrainingError(
                f"cannot write to {str(self.folder)!r} after step {self.state.step}: {' '.join(str(error).split())}. "
                f"{self._saved_model()}; complete checkpoints stay as they are"
            ) from error


def _local(norm: Tensor) -> Tensor:
    """A norm as a plain tensor; a norm over shards is the same on every process."""
    whole: Tensor = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return whole


def _trackable(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if isinstance(value, (int, float, str, bool))}
