"""Set up devices and precision; coordinate the processes of a run."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeVar, cast

import psutil
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import (
    InitProcessGroupKwargs,
    broadcast_object_list,
    parse_flag_from_env,
)

from dystress_text.errors import (
    ParameterError,
    TrainingError,
    UserError,
    is_out_of_memory,
    reason_of,
)
from dystress_text.losses.gather import Gather, LocalGather, ProcessGather
from dystress_text.training.settings import AUTO_FP16, TRACKER_FOLDER, TrainingSettings

T = TypeVar("T")
_ECHO_SECONDS = 1.0  # ignore the duplicate SIGINT that launchers forward
# the main process may evaluate for longer than NCCL's default timeout of ten minutes
_TIMEOUT = timedelta(hours=12)


def make_accelerator(settings: TrainingSettings) -> Accelerator:
    """Return the accelerator of a run, and choose the kernels of this process.

    Raises:
        UserError: the launcher, the precision or the tracker is not supported.
    """
    try:
        accelerator = Accelerator(
            mixed_precision=resolve_precision(settings.mixed_precision),
            gradient_accumulation_steps=settings.gradient_accumulation_steps,
            log_with=None if settings.report_to == "none" else settings.report_to,
            project_dir=str(Path(settings.output_dir) / TRACKER_FOLDER),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=_TIMEOUT)],
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"accelerate cannot start here: {reason_of(error)}") from error
    if settings.report_to != "none" and not accelerator.log_with:  # accelerate only logs it
        reason = f"accelerate finds no {settings.report_to}; install its package"
        raise ParameterError("report_to", reason)
    # accelerate prefers the launcher's number
    accelerator.gradient_accumulation_steps = settings.gradient_accumulation_steps
    _check_launch(accelerator, settings.train_batch_size)
    set_kernels(settings.deterministic)
    return accelerator


def _check_launch(accelerator: Accelerator, batch_size: int) -> None:
    """Reject launches whose setup the trainer does not support."""
    count = accelerator.num_processes
    if count == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "the launcher started several processes, but accelerate found no devices to join them "
            "on; for CPUs set the environment variable ACCELERATE_USE_CPU=true"
        )
    kind = accelerator.distributed_type.value
    if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise UserError(f"{kind} is not supported: launch with one whole model per process")
    if batch_size % count:
        reason = f"must be divisible by {count}, the number of processes; got {batch_size}"
        raise ParameterError("train_batch_size", reason)


def limit_kernel_caches() -> None:
    """Limit oneDNN's kernel caches in this process. Call it before any computation.

    oneDNN builds new bf16 kernels for each number of tokens, and by default keeps 1,024 of them:
    with MiniLM the memory grows by 20 MB a step. A step needs fewer than 32 kernels.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "32")  # torch's cache of the same


def set_kernels(deterministic: bool) -> None:
    """Choose the GPU kernels that torch uses in this process.

    Attention does not use cuDNN, since some of its kernels round the dropout rate (pytorch#174245).
    ``deterministic`` turns off the benchmark of convolution kernels, whose choice varies.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        # cuBLAS reads it when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)


def single_process_device() -> torch.device:
    """Return the GPU; the CPU if there is none or the variable ACCELERATE_USE_CPU is set."""
    gpu = torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")
    return torch.device("cuda" if gpu else "cpu")


def resolve_precision(name: str) -> str:
    """Resolve ``auto`` and ``auto_fp16`` as the help of ``mixed_precision`` describes."""
    if name not in ("auto", AUTO_FP16):
        return name
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower()
    if launched not in ("", "no"):  # "no" is the launcher's default, so it counts as not set
        return launched
    if single_process_device().type == "cuda":
        fast = name == "auto" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if fast else "fp16"
    for tile in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        if getattr(torch.cpu, tile, bool)():  # private functions of torch; without them fp32
            return "bf16"
    return "no"


def describe_failure(error: Exception, accelerator: Accelerator) -> str | None:
    """Describe a failure of a file, a device or another process; return None for a bug."""
    text = reason_of(error)
    if is_out_of_memory(error):
        return (
            f"the device is out of memory (peak {peak_memory(accelerator.device) / 1e9:.1f} GB): "
            "lower `train_batch_size` or, without batch normalisation, set `grad_cache_chunk`"
        )
    if text.startswith("CUDA error"):
        return f"the device failed ({text[:200]})"
    closed = re.search("onnection (closed|reset) by peer", text)
    if accelerator.num_processes > 1 and (closed or isinstance(error, dist.DistError)):
        return "another process of this run ended; see its last output"
    if isinstance(error, RuntimeError):
        return None
    return f"a file cannot be read or written ({text})"


def on_main_process(accelerator: Accelerator, work: Callable[[], T]) -> T:
    """Run ``work`` on the main process; return its result, or raise its error, on all processes."""
    result: T | None = None
    caught: Exception | None = None
    if accelerator.is_main_process:
        try:
            result = work()
        except Exception as error:  # raised below, after it was broadcast
            caught = error
    if accelerator.num_processes > 1:
        failure = None if caught is None else f"the main process failed: {caught}"
        message, result = broadcast_object_list([failure, result])
        if message is not None and caught is None:
            raise TrainingError(message)
    if caught is not None:
        raise caught
    return cast(T, result)


@contextmanager
def before_first_step(accelerator: Accelerator) -> Iterator[None]:
    """Turn a failure of a device or process into one line; at the end, wait for all processes."""
    try:
        yield
        accelerator.wait_for_everyone()  # until all have read the folder
    except (RuntimeError, MemoryError) as error:
        reason = describe_failure(error, accelerator)
        if reason is None:
            raise
        raise TrainingError(f"before the first step: {reason}") from error


def make_gather(accelerator: Accelerator) -> Gather:
    """Return what gathers the embeddings of a batch from all processes, for a loss."""
    if accelerator.num_processes == 1:
        return LocalGather()
    return ProcessGather(accelerator.process_index, accelerator.num_processes)


def describe(accelerator: Accelerator) -> str:
    """Return devices and precision as one line."""
    devices = f"{accelerator.num_processes} x {accelerator.device.type}"
    return f"{devices}, precision {accelerator.mixed_precision}"


class StopSignals:
    """A context that notes SIGTERM and Ctrl-C, so that training stops between two steps.

    A second Ctrl-C exits at once with code 130. Enter it on all processes. Outside the main thread
    signals act as before.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._show = accelerator.is_main_process
        self._number = 0
        self._since = 0.0
        # a separate group: NCCL would wait for the work queued on the device
        self._group = dist.new_group(backend="gloo") if accelerator.num_processes > 1 else None

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._number:
            self._number = number
            self._since = now
            if self._show and number == signal.SIGINT:
                os.write(2, b"\nsaving a checkpoint; press Ctrl-C again to stop at once\n")
        elif number == signal.SIGINT and now - self._since > _ECHO_SECONDS:
            os._exit(128 + number)

    def agreed(self) -> int:
        """Return the signal that any process has received; 0 for none.

        Call it after every step on all processes.
        """
        if self._group is None:
            return self._number
        number = torch.tensor(self._number)
        dist.all_reduce(number, dist.ReduceOp.MAX, self._group)
        return int(number)


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: allocated on a CUDA device, else resident in this process.

    Where the system does not record the peak, return the resident memory of now.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    memory = psutil.Process().memory_info()
    try:
        import resource
    except ImportError:  # Windows, whose peak psutil has
        return int(getattr(memory, "peak_wset", memory.rss))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
