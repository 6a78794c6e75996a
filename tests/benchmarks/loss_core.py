"""Forward and backward of a loss: plain, blockwise and the paper's pseudocode; time and peak
memory.

    python tests/benchmarks/loss_core.py [--sizes 64 1024 ...] [--repeats 5] [--dim 768] [--threads 1]

Runs on a CUDA device when there is one. Prints a line of JSON about the machine and one for each
contestant of a size when the size is measured; one that fails has its error there, and the others
go on. Times are medians of forward and backward together, for which all contestants take turns.
Peak memory is what a step takes beyond what was there before: by CUDA's allocator, or of resident
memory in a process of its own. Forms that hold the matrix of similarities are skipped where it does
not fit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from devices import device_name, wait
from torch import Tensor

from dystress_text import losses

OBJECTIVES = {"InfoNCE": losses.InfoNCELoss, "NT-Xent": losses.NTXentLoss}
TEMPERATURES: dict[str, losses.Temperature] = {
    "constant": losses.ConstantTemperature(0.1),
    "cosine": losses.CosineTemperature(0.1, 0.2),
}
FORMS = ("plain", "blockwise", "pseudocode")
# what a form without blocks holds at its peak, in matrices of all similarities in fp32: up to 6.2
# on a CPU with the cosine, 4 to 5 by a count for a GPU
MATRICES = 6
Loss = Callable[[Tensor, Tensor], Tensor]
Row = dict[str, Any]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pseudocode(objective: str, low: float, high: float) -> Loss:
    """The paper's Alg. vanilladystress, or its block s12 alone for InfoNCE; a constant temperature
    has no cosine.
    """

    def loss(z_1: Tensor, z_2: Tensor) -> Tensor:
        n, device = len(z_1), z_1.device
        z_1, z_2 = F.normalize(z_1, dim=-1), F.normalize(z_2, dim=-1)
        s, labels = z_1 @ z_2.T, torch.arange(n, device=device)
        if objective == "NT-Xent":
            ndg = ~torch.eye(n, dtype=torch.bool, device=device)
            s11, s22 = ((z @ z.T)[ndg].view(n, -1) for z in (z_1, z_2))
            s = torch.cat([torch.cat([s, s11], dim=1), torch.cat([z_2 @ z_1.T, s22], dim=1)], dim=0)
            labels = labels.repeat(2)
        temp = (
            low
            if low == high
            else low + 0.5 * (high - low) * (1 + torch.cos(math.pi * (1 + s.detach())))
        )
        return F.cross_entropy(s / temp, labels)

    return loss


def make_loss(objective: str, name: str, form: str) -> Loss:
    """A contestant."""
    if form == "pseudocode":
        return pseudocode(objective, 0.1, 0.1 if name == "constant" else 0.2)
    loss: Loss = OBJECTIVES[objective](TEMPERATURES[name], blockwise=form == "blockwise")
    return loss


def make_views(size: int, dim: int) -> list[Tensor]:
    """Two views of a batch, alike."""
    generator = torch.Generator().manual_seed(size)
    z = torch.randn(size, dim, generator=generator)
    views = [z, z + torch.randn(size, dim, generator=generator)]
    return [view.to(DEVICE).requires_grad_() for view in views]


def step(loss: Loss, views: list[Tensor]) -> float:
    """Forward and backward; returns the seconds."""
    wait(DEVICE)
    start = time.perf_counter()
    torch.autograd.backward(loss(views[0], views[1]))
    wait(DEVICE)
    return time.perf_counter() - start


def status_bytes(name: str) -> int:
    """An entry of this process's status, such as VmRSS."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def peak(loss: Loss, size: int, dim: int) -> int:
    """Peak bytes of forward and backward beyond what was there before."""
    step(loss, make_views(64, dim))  # libraries' own buffers
    views = make_views(size, dim)
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(loss, views)
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text(
        "5", encoding="utf-8"
    )  # the peak starts again from here
    before = status_bytes("VmRSS")
    step(loss, views)
    return status_bytes("VmHWM") - before


def peak_alone(objective: str, temperature: str, form: str, size: int, dim: int) -> int:
    """As :func:`peak`; on a CPU in a process of its own, which has freed nothing before."""
    if DEVICE.type == "cuda":
        return peak(make_loss(objective, temperature, form), size, dim)
    command = [sys.executable, __file__, "--sizes", str(size), "--dim", str(dim)]
    command += ["--threads", str(torch.get_num_threads())]
    command += ["--peak", objective, temperature, form]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def memory() -> int:
    """Bytes of the device's memory, all in all."""
    if DEVICE.type == "cuda":
        return torch.cuda.mem_get_info()[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def measure(
    objective: str, temperatures: list[str], size: int, dim: int, repeats: int
) -> list[Row]:
    """The rows of all contestants of an objective and a size."""
    entries = (2 * size) ** 2 if objective == "NT-Xent" else size**2
    rows: dict[tuple[str, str], Row] = {}
    losses: dict[tuple[str, str], Loss] = {}
    for temperature, form in itertools.product(temperatures, FORMS):
        row = {"objective": objective, "size": size, "temperature": temperature, "form": form}
        rows[temperature, form] = row
        needed = MATRICES * 4 * entries
        if form != "blockwise" and needed > memory():
            row["skipped"] = f"needs {needed / 1e9:.0f} GB of {memory() / 1e9:.0f}"
        else:
            losses[temperature, form] = make_loss(objective, temperature, form)
    views = make_views(size, dim)
    seconds: dict[tuple[str, str], list[float]] = {who: [] for who in losses}
    for _ in range(repeats + 1):  # the first turn warms up
        for who in [who for who in losses if "error" not in rows[who]]:
            with failure_in(rows[who]):
                seconds[who].append(step(losses[who], views))
    for who in losses:
        if "error" not in rows[who]:
            rows[who]["ms"] = 1000 * statistics.median(seconds[who][1:])
            with failure_in(rows[who]):
                rows[who]["peak"] = peak_alone(objective, *who, size, dim)
    return list(rows.values())


@contextmanager
def failure_in(row: Row) -> Iterator[None]:
    """Note an error in a row, and free what it held."""
    try:
        yield
    except (RuntimeError, MemoryError, subprocess.CalledProcessError) as error:
        row["error"] = f"{type(error).__name__}: {error}".partition("\n")[0]
    if "error" in row and DEVICE.type == "cuda":
        torch.cuda.empty_cache()


def main() -> None:
    """Measure, and print a line for each row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[64, 256, 1024, 4096, 8192], help="pairs of a batch"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="turns of each contestant (default 5)"
    )
    parser.add_argument("--dim", type=int, default=768, help="dimensions (default 768)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument(
        "--temperatures", nargs="+", choices=TEMPERATURES, default=list(TEMPERATURES)
    )
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak is not None:
        print(peak(make_loss(*options.peak), options.sizes[0], options.dim))
        return
    about = {
        "device": device_name(DEVICE),
        "threads": options.threads,
        "dim": options.dim,
        "torch": torch.__version__,
    }
    print(json.dumps(about), flush=True)
    for size in options.sizes:
        for objective in options.objectives:
            for row in measure(objective, options.temperatures, size, options.dim, options.repeats):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
