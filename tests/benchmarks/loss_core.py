"""Forward and backward of a loss: plain, blockwise and the paper's pseudocode; time and peak
memory.

    python tests/benchmarks/loss_core.py [--sizes 64 1024 ...] [--repeats 5] [--dim 768] [--threads 1]

Runs on a CUDA device when there is one. Prints a Markdown table and, on the last line, a JSON
record. Each contestant's peak memory is that of a process of its own (resident memory, or the CUDA
allocator's, at its peak less before the loss); for the times, medians of forward and backward
together, all contestants take turns.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from devices import device_name, wait
from torch import Tensor

from dystress_text import core

OBJECTIVES = {"InfoNCE": core.InfoNCELoss, "NT-Xent": core.NTXentLoss}
TEMPERATURES: dict[str, core.Temperature] = {
    "constant": core.ConstantTemperature(0.1),
    "cosine": core.CosineTemperature(0.1, 0.2),
}
Loss = Callable[[Tensor, Tensor], Tensor]
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


def main() -> None:
    """Measure and print the table and the record."""
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
    print(
        f"{about}; fp32, forward + backward\n\n| objective | pairs | temperature | form | ms | of plain | peak MB |"
    )
    print(f"|{'---|' * 7}")
    record = []
    for objective in options.objectives:
        forms = ("plain", "blockwise", "pseudocode")
        contestants = {
            (n, form): make_loss(objective, n, form) for n in options.temperatures for form in forms
        }
        for size in options.sizes:
            views = make_views(size, options.dim)
            seconds: dict[tuple[str, str], list[float]] = {who: [] for who in contestants}
            for _ in range(options.repeats + 1):  # the first turn warms up
                for who, loss in contestants.items():
                    seconds[who].append(step(loss, views))
            for who in contestants:
                ms, plain = (
                    1000 * statistics.median(seconds[each][1:]) for each in (who, (who[0], "plain"))
                )
                arguments = [
                    "--sizes",
                    str(size),
                    "--dim",
                    str(options.dim),
                    "--threads",
                    str(options.threads),
                ]
                command = [sys.executable, __file__, *arguments, "--peak", objective, *who]
                bytes_ = int(
                    subprocess.run(command, capture_output=True, text=True, check=True).stdout
                )
                print(
                    f"| {objective} | {size:,} | {' | '.join(who)} | {ms:.1f} | {ms / plain:.2f} | {bytes_ / 1e6:.1f} |"
                )
                record.append(
                    {
                        "objective": objective,
                        "size": size,
                        "contestant": who,
                        "ms": ms,
                        "peak": bytes_,
                    }
                )
    print(json.dumps({**about, "rows": record}))


if __name__ == "__main__":
    main()
