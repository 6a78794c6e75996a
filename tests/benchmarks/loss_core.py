"""Forward and backward of a loss: plain, blockwise and the paper's pseudocode; time and memory.

    python tests/benchmarks/loss_core.py [--sizes 64 1024 ...] [--repeats 5] [--dim 768]

Runs on a CUDA device when there is one. Prints a line of JSON for each contestant of a size; one
that fails has its error there. Times are medians of forward and backward together, for which the
contestants take turns. The peak, on CUDA alone, is what a step takes beyond what was there before.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from devices import device_name, here, make_parser, wait
from torch import Tensor

from dystress_text import losses

Loss = Callable[[Tensor, Tensor], Tensor]
LOW = 0.1
HIGH = 0.2
DEVICE = here()


def infonce_pseudocode(z_1: Tensor, z_2: Tensor) -> Tensor:
    """Return the loss of the block s12 of the paper's Alg. vanilladystress."""
    s = F.normalize(z_1, dim=-1) @ F.normalize(z_2, dim=-1).T
    return _cross_entropy(s, torch.arange(len(z_1), device=z_1.device))


def ntxent_pseudocode(z_1: Tensor, z_2: Tensor) -> Tensor:
    """Return the loss of the paper's Alg. vanilladystress."""
    n = len(z_1)
    z_1 = F.normalize(z_1, dim=-1)
    z_2 = F.normalize(z_2, dim=-1)
    ndg = ~torch.eye(n, dtype=torch.bool, device=z_1.device)
    s11 = (z_1 @ z_1.T)[ndg].view(n, -1)
    s22 = (z_2 @ z_2.T)[ndg].view(n, -1)
    first = torch.cat([z_1 @ z_2.T, s11], dim=1)
    second = torch.cat([z_2 @ z_1.T, s22], dim=1)
    return _cross_entropy(torch.cat([first, second]), torch.arange(n, device=z_1.device).repeat(2))


def _cross_entropy(s: Tensor, labels: Tensor) -> Tensor:
    temperature = LOW + 0.5 * (HIGH - LOW) * (1 + torch.cos(math.pi * (1 + s.detach())))
    return F.cross_entropy(s / temperature, labels)


TEMPERATURE = losses.CosineTemperature(LOW, HIGH)
CONTESTANTS: dict[str, Loss] = {
    "InfoNCE, plain": losses.InfoNCELoss(TEMPERATURE, blockwise=False),
    "InfoNCE, blockwise": losses.InfoNCELoss(TEMPERATURE, blockwise=True),
    "InfoNCE, pseudocode": infonce_pseudocode,
    "NT-Xent, plain": losses.NTXentLoss(TEMPERATURE, blockwise=False),
    "NT-Xent, blockwise": losses.NTXentLoss(TEMPERATURE, blockwise=True),
    "NT-Xent, pseudocode": ntxent_pseudocode,
}


def make_views(size: int, dim: int) -> list[Tensor]:
    """Return two similar views of a batch, (size, dim) each."""
    generator = torch.Generator().manual_seed(size)
    z = torch.randn(size, dim, generator=generator)
    views = [z, z + torch.randn(size, dim, generator=generator)]
    return [view.to(DEVICE).requires_grad_() for view in views]


def step(loss: Loss, views: list[Tensor]) -> float:
    """Run forward and backward; return the seconds."""
    wait(DEVICE)
    start = time.perf_counter()
    torch.autograd.backward(loss(views[0], views[1]))
    wait(DEVICE)
    return time.perf_counter() - start


def status_bytes(name: str) -> int:
    """Return an entry of this process's status, such as VmRSS, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def peak(loss: Loss, size: int, dim: int) -> int:
    """Return the peak bytes of forward and backward beyond what was in use before.

    On a CPU this is resident memory; the process must not have freed memory before.
    """
    step(loss, make_views(64, dim))  # libraries' own buffers
    views = make_views(size, dim)
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(loss, views)
        return torch.cuda.max_memory_allocated() - before
    # the peak starts again from here
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = status_bytes("VmRSS")
    step(loss, views)
    return status_bytes("VmHWM") - before


def measure(size: int, dim: int, repeats: int) -> None:
    """Print a line for each contestant."""
    views = make_views(size, dim)
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    errors: dict[str, str] = {}
    for _ in range(repeats + 1):  # the first turn warms up
        for name in CONTESTANTS.keys() - errors.keys():
            try:
                seconds[name].append(step(CONTESTANTS[name], views))
            except RuntimeError as error:  # too little memory
                errors[name] = str(error).partition("\n")[0]
    for name, loss in CONTESTANTS.items():
        row: dict[str, object] = {"size": size, "name": name, "error": errors.get(name)}
        if name not in errors:
            row["ms"] = 1000 * statistics.median(seconds[name][1:])
            if DEVICE.type == "cuda":
                row["peak"] = peak(loss, size, dim)
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps({"device": device_name(DEVICE), "torch": torch.__version__}), flush=True)
    for size in options.sizes:
        measure(size, options.dim, options.repeats)


if __name__ == "__main__":
    main()
