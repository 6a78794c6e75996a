"""The accelerator of a run: devices, precision, and what its processes say to each other."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeVar, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import (
    InitProcessGroupKwargs,
    broadcast_object_list,
    parse_flag_from_env,
)

from dystress_text.errors import ParameterError, TrainingError, UserError, reason_of
from dystress_text.losses.gather import Gather, LocalGather, ProcessGather
from dystress_text.training.run_folder import TRACKER_FOLDER
from dystress_text.training.settings import AUTO_FP16, TrainingSettings

T = TypeVar("T")
# seconds; launchers pass a Ctrl-C on that the terminal has already sent to this process
_ECHO = 1.0
_ASK = 1.0  # seconds between two times that the processes ask each other for signals
# how long processes wait for each other: the main one may evaluate for longer than NCCL's default,
# ten minutes
_PATIENCE = timedelta(hours=12)


def make_accelerator(settings: TrainingSettings) -> Accelerator:
    """The accelerator for these settings; what is not available here is refused."""
    try:
        accelerator = Accelerator(
            mixed_precision=resolve_precision(settings.mixed_precision),
            gradient_accumulation_steps=settings.gradient_accumulation_steps,
            log_with=None if settings.report_to == "none" else settings.report_to,
            project_dir=str(Path(settings.output_dir) / TRACKER_FOLDER),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"accelerate cannot start here: {reason_of(error)}") from error
    if settings.report_to != "none" and not accelerator.log_with:  # accelerate only logs it
        reason = f"accelerate finds no {settings.report_to}; install its package"
        raise ParameterError("report_to", reason)
    _check_launch(accelerator, settings)
    set_kernels(settings.deterministic)
    return accelerator


def _check_launch(accelerator: Accelerator, settings: TrainingSettings) -> None:
    """Refuse what the launcher asks for and the trainer does not do, and say what the launcher has
    not done.
    """
    count = accelerator.num_processes
    if count == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "the launcher started several processes, but accelerate found no devices to join them "
            "on; for CPUs set the environment variable ACCELERATE_USE_CPU=true"
        )
    # accelerate's launcher sets an address for several processes, and without --multi_gpu still
    # starts one
    said = {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR", "WORLD_SIZE"} & os.environ.keys()
    if count == 1 and said == {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR"}:
        warnings.warn(
            "the launcher was asked for several processes and has started one, which trains alone; "
            "for several on CPUs set ACCELERATE_USE_CPU=true and give accelerate launch "
            "--multi_gpu in place of --cpu",
            stacklevel=2,
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # processes that share a GPU would wait for each other
    if accelerator.device.type == "cuda" and here > torch.cuda.device_count():
        raise UserError(
            f"accelerate launch --num_processes: {here} processes on this machine, which shows "
            f"them {torch.cuda.device_count()} GPU; each needs one of its own"
        )
    kind = accelerator.distributed_type.value
    if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise UserError(f"{kind} is not supported: every process holds the whole model")
    batch = settings.train_batch_size
    if batch % count:
        reason = f"{batch} does not divide among {count} processes; use a multiple of {count}"
        raise ParameterError("train_batch_size", reason)
    of_launcher = accelerator.gradient_accumulation_steps
    of_program = settings.gradient_accumulation_steps
    if of_launcher != of_program:  # accelerate uses the launcher's number, the loop its own
        raise ParameterError(
            "gradient_accumulation_steps",
            f"the launcher (ACCELERATE_GRADIENT_ACCUMULATION_STEPS) says {of_launcher}, the "
            f"program {of_program}; give both the same",
        )


def limit_kernel_caches() -> None:
    """Bound oneDNN's caches of kernels, for this process; call it before anything is computed.

    Each batch without padding has a number of tokens of its own, for which oneDNN builds new bf16
    kernels. By default it keeps 1,024 of them: with MiniLM a process grows by 20 MB a step. A step
    has fewer than 32 different products.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "32")  # of torch's layer above it


def set_kernels(deterministic: bool) -> None:
    """Choose what torch may compute with on a GPU, for this process.

    Some of cuDNN's kernels for attention round the dropout rate (pytorch#174245), so attention
    leaves cuDNN alone. The fastest kernel of a convolution, found by timing, is not always the same
    one.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        # cuBLAS reads it when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)


def disable_tf32() -> None:
    """Compute fp32 in fp32: by default, GPUs since Ampere round the factors of a convolution to
    TF32, 10 bits.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def single_process_device() -> torch.device:
    """The device of a program of one process: a GPU if there is one, unless ACCELERATE_USE_CPU says
    otherwise.
    """
    gpu = torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")
    return torch.device("cuda" if gpu else "cpu")


def resolve_precision(name: str) -> str:
    """Resolve ``auto`` and ``auto_fp16`` as the help of ``mixed_precision`` says."""
    if name not in ("auto", AUTO_FP16):
        return name
    of_launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower()
    if of_launcher not in ("", "no"):  # "no" is the launcher's default, so it counts as not set
        return of_launcher
    if single_process_device().type == "cuda":
        fast = name == "auto" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if fast else "fp16"
    for tile in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        if getattr(torch.cpu, tile, bool)():  # private functions of torch; without them fp32
            return "bf16"
    return "no"


def describe_failure(error: Exception, accelerator: Accelerator) -> str | None:
    """What happened to a file, the device or another process; None for an error of the program."""
    text = reason_of(error)
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"the device is out of memory, with {peak_memory(accelerator.device) / 1e9:.1f} GB in "
            "use at most: lower --train_batch_size or, without batch normalisation, give "
            "--grad_cache_chunk, which takes the memory of a part of the batch"
        )
    # before torch 2.8 a RuntimeError
    if isinstance(error, getattr(torch, "AcceleratorError", ())) or text.startswith("CUDA error"):
        return f"the device has failed ({text[:200]})"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error.strerror})"
    closed = re.search("onnection (closed|reset) by peer", text)
    if accelerator.num_processes > 1 and (closed or isinstance(error, dist.DistError)):
        return "another process of this run is gone; its last output says why"
    if isinstance(error, RuntimeError):
        return None
    return f"a file cannot be read or written ({text})"


def on_main_process(accelerator: Accelerator, work: Callable[[], T]) -> T:
    """Run ``work`` on the main process; all processes return what it gives, or raise its error."""
    result: T | None = None
    caught: Exception | None = None
    if accelerator.is_main_process:
        try:
            result = work()
        except Exception as error:  # raised below, once the others know
            caught = error
    if accelerator.num_processes > 1:
        told = None if caught is None else f"the main process failed: {caught}"
        message, result = broadcast_object_list([told, result])
        if message is not None and caught is None:
            raise TrainingError(message)
    if caught is not None:
        raise caught
    return cast(T, result)


def make_gather(accelerator: Accelerator) -> Gather:
    """How a loss gets the embeddings of all processes."""
    if accelerator.num_processes == 1:
        return LocalGather()
    return ProcessGather(accelerator.process_index, accelerator.num_processes)


def describe(accelerator: Accelerator) -> str:
    """Devices and precision as a text for the user."""
    devices = f"{accelerator.num_processes} x {accelerator.device.type}"
    return f"{devices}, precision {accelerator.mixed_precision}"


class StopSignals:
    """SIGTERM and Ctrl-C ask to stop between two steps; a second Ctrl-C ends the process at once,
    with exit code 130.

    A context, on all processes of a run; without effect outside the main thread.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._show = accelerator.is_main_process
        self._number = 0
        self._since = 0.0
        self._gap = 1  # steps from one asking to the next
        self._left = 1  # those of them that are left
        self._asked = time.monotonic()
        # a group of its own: the devices' backend would wait for the work queued on them
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
                os.write(2, b"\nstopping when all is saved; Ctrl-C once more stops at once\n")
        elif number == signal.SIGINT and now - self._since > _ECHO:
            os._exit(128 + number)

    def agreed(self) -> int:
        """The signal that has asked any of the processes to stop, 0 for none; call it after every
        step on all of them.

        They ask each other about once a second, after the same steps.
        """
        if self._group is None:
            return self._number
        self._left -= 1
        if self._left > 0:
            return 0
        now = time.monotonic()
        largest = torch.tensor([self._number, (now - self._asked) / self._gap], dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, self._group)
        number, seconds = largest.tolist()  # of a step, the slowest process's
        self._gap = max(1, int(_ASK / max(seconds, 1e-3)))
        self._left = self._gap
        self._asked = now
        return int(number)


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: allocated on a CUDA device, else resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
