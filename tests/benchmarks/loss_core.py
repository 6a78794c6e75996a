"""Forward and backward of a loss: plain, blockwise and the paper's pseudocode; time and peak memory.

    python tests/benchmarks/loss_core.py [--sizes 64 1024 ...] [--repeats 5] [--dim 768] [--threads 1] [--tf32 both]
    python tests/benchmarks/loss_core.py --sizes 4096 --rules constant hcl adnce ...  # or --rules all

Runs on a CUDA device when there is one. Prints a Markdown table and, on the last line, a JSON record. Every measurement
is a process of its own, or all are one with ``--one_process``: one for the peak memory of each contestant (resident
memory, or the CUDA allocator's, at its peak less before the loss; a CPU needs the processes for it) and one for the
times, in which all contestants take turns. Times are medians of forward and
backward together. A contestant that memory cannot hold is "does not fit", by trying or by scaling its peak at the size
before. Where one turn of all contestants takes minutes, there are fewer turns than asked for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from devices import device_name, wait
from torch import Tensor

from dystress_text import (
    ADNCERule,
    ConstantTemperature,
    CosineTemperature,
    DebiasedRule,
    FocalRule,
    HardNegativeRule,
    HardnessRule,
    InfoNCELoss,
    NTXentLoss,
    RINCELoss,
    SigLIPLoss,
    TeMoTemperature,
    Temperature,
)
from dystress_text.files.whole import to_json

SIZES = [64, 256, 1024, 4096, 16384, 65536]
OBJECTIVES = {"InfoNCE": InfoNCELoss, "NT-Xent": NTXentLoss}
TAU_MIN, TAU_MAX = 0.1, 0.2
TEMPERATURES = {"constant": (TAU_MIN, TAU_MIN), "cosine": (TAU_MIN, TAU_MAX)}
FORMS = ["plain", "blockwise", "pseudocode"]
RULES: dict[str, Callable[[], Temperature]] = {
    "constant": lambda: ConstantTemperature(TAU_MIN),
    "cosine": lambda: CosineTemperature(TAU_MIN, TAU_MAX),
    "TeMo": lambda: TeMoTemperature(0.1, 0.1),
    "debiased": lambda: DebiasedRule(0.5, 0.1),
    "HCL": lambda: HardNegativeRule(0.5, 1.0, 0.1),
    "Focal": lambda: FocalRule(TAU_MIN, 0.3),
    "ADNCE": lambda: ADNCERule(TAU_MIN, 0.4, 1.0),
    "hardness": lambda: HardnessRule(TAU_MIN, 9.0),
    "RINCE": lambda: ConstantTemperature(TAU_MIN),
    "SigLIP": lambda: ConstantTemperature(TAU_MIN),
}
TURN_SECONDS = 0.05  # a turn repeats a loss until it takes as long
ALL_TURNS_SECONDS = 600  # about as long the turns of one table row may take together
TOLERANCE = {False: 1e-4, True: 5e-3}  # of the losses' values, relative, by TF32
COLUMNS = (
    "objective", "pairs", "temperature", "form", "ms", "of plain", "of constant", "peak extra MB", "of plain", "turns",
)  # fmt: skip

Loss = Callable[[Tensor, Tensor], Tensor]


def pseudocode(objective: str, low: float, high: float) -> Loss:
    """The paper's Alg. vanilladystress, or its block s12 alone for InfoNCE; a constant temperature has no cosine."""

    def loss(z_1: Tensor, z_2: Tensor) -> Tensor:
        n, device = len(z_1), z_1.device
        z_1, z_2 = F.normalize(z_1, dim=-1), F.normalize(z_2, dim=-1)
        if objective == "InfoNCE":
            s = z_1 @ z_2.T
            labels = torch.arange(n, device=device)
        else:
            s11, s22, s12, s21 = z_1 @ z_1.T, z_2 @ z_2.T, z_1 @ z_2.T, z_2 @ z_1.T
            ndg = ~torch.eye(n, dtype=torch.bool, device=device)
            s11, s22 = s11[ndg].view(n, -1), s22[ndg].view(n, -1)
            s1211 = torch.cat([s12, s11], dim=1)
            s2122 = torch.cat([s21, s22], dim=1)
            s = torch.cat([s1211, s2122], dim=0)
            labels = torch.arange(n, device=device).repeat(2)
        temp = low if low == high else low + 0.5 * (high - low) * (1 + torch.cos(math.pi * (1 + s.detach())))
        return F.cross_entropy(s / temp, labels)

    return loss


def make_loss(objective: str, temperature: str, form: str) -> Loss:
    """A contestant."""
    if form == "pseudocode":
        return pseudocode(objective, *TEMPERATURES[temperature])
    blockwise = form == "blockwise"
    if temperature == "SigLIP":
        return SigLIPLoss(blockwise=blockwise)
    if temperature == "RINCE":
        return RINCELoss(TAU_MIN, blockwise=blockwise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Focal's logit falls
        rule = RULES[temperature]()
    return OBJECTIVES[objective](rule, blockwise=blockwise)


def make_views(size: int, dim: int, device: torch.device) -> list[Tensor]:
    """Two views of a batch, alike."""
    generator = torch.Generator().manual_seed(size)
    z = torch.randn(size, dim, generator=generator)
    views = [z, z + torch.randn(size, dim, generator=generator)]
    return [view.to(device).requires_grad_() for view in views]


def step(loss: Loss, views: list[Tensor]) -> float:
    """Forward and backward, the gradients in ``grad`` as in training; returns the loss."""
    for view in views:
        view.grad = None
    value = loss(views[0], views[1])
    value.backward()  # type: ignore[no-untyped-call]
    return float(value.detach())  # waits for the device


# ---- a measurement, in a process of its own ------------------------------------------------------------------------


def status_bytes(name: str) -> int:
    """An entry of this process's status, such as VmRSS."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def available_bytes(device: torch.device) -> int:
    """Memory that a contestant can get."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def measure_peak(loss: Loss, size: int, dim: int, device: torch.device) -> dict[str, float]:
    """Peak bytes of forward and backward beyond what was there before, the loss, and the time of this one step."""
    step(loss, make_views(64, dim, device))  # libraries' own buffers
    views = make_views(size, dim, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts again from here
        before = status_bytes("VmRSS")
    start = time.perf_counter()
    value = step(loss, views)
    wait(device)
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else status_bytes("VmHWM")
    return {"peak": max(0, peak - before), "loss": value, "seconds": seconds}


def measure_times(losses: dict[str, Loss], size: int, dim: int, device: torch.device, turns: int) -> dict[str, float]:
    """Median seconds of forward and backward of each contestant; they take turns. One that fails is left out."""
    views = make_views(size, dim, device)
    losses, runs = dict(losses), {}
    for name, loss in losses.items():
        step(loss, make_views(64, dim, device))
        start = time.perf_counter()
        if size <= 1024 or device.type == "cuda":
            step(loss, views)
        runs[name] = max(1, int(TURN_SECONDS / (time.perf_counter() - start))) if size <= 1024 else 1
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(turns):
        for name, loss in list(losses.items()):
            wait(device)
            start = time.perf_counter()
            try:
                for _ in range(runs[name]):
                    step(loss, views)
            except RuntimeError as error:
                if "memory" not in str(error):
                    raise
                del losses[name]
                continue
            wait(device)
            seconds[name].append((time.perf_counter() - start) / runs[name])
    return {name: statistics.median(seconds[name]) for name in losses}


def measure(job: dict[str, Any]) -> dict[str, float]:
    """What a child process does."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(job["threads"])
    torch.backends.cuda.matmul.allow_tf32 = job["tf32"]
    if device.type == "cpu":
        room = status_bytes("VmSize") + available_bytes(device)
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        room = room if hard == resource.RLIM_INFINITY else min(room, hard)
        resource.setrlimit(resource.RLIMIT_AS, (room, hard))  # an allocation fails before the machine runs out
    losses = {name: make_loss(job["objective"], *name.split()) for name in job["contestants"]}
    if job["turns"] == 0:
        return measure_peak(next(iter(losses.values())), job["size"], job["dim"], device)
    return measure_times(losses, job["size"], job["dim"], device, job["turns"])


def result_of(job: dict[str, Any]) -> dict[str, float] | None:
    """The result of a job, in a process of its own or in this one; None where memory could not hold it."""
    if job["one_process"]:
        try:
            return measure(job)
        except (RuntimeError, MemoryError) as error:
            if "memory" not in str(error):
                raise
            report_failure(job, str(error).splitlines()[0])
            return None
        finally:
            torch.cuda.empty_cache()
    child = subprocess.run([sys.executable, __file__, "--job", json.dumps(job)], capture_output=True, text=True)
    if child.returncode == 0:
        result: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
        return result
    if child.returncode < 0 or "memory" in child.stderr or "MemoryError" in child.stderr:
        reason = (child.stderr.splitlines() or [f"killed by signal {-child.returncode}"])[-1]
        report_failure(job, reason)
        return None
    raise SystemExit(f"{job}\n{child.stderr}")


def report_failure(job: dict[str, Any], reason: str) -> None:
    """Say what did not fit."""
    print(f"{job['objective']}, {job['size']}, {', '.join(job['contestants'])}: {reason}", file=sys.stderr)


# ---- the table -----------------------------------------------------------------------------------------------------


def measure_size(
    common: dict[str, Any], turns: int, room: int, before: dict[str, tuple[int, float]], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """All contestants of one objective at one size; those that do not fit are left out.

    ``before`` holds the size and the peak of each at the size before, infinite where it did not fit, and is updated.
    """
    size = common["size"]
    results: dict[str, dict[str, float]] = {}
    for name in names:
        form = name.split()[1]
        smaller, peak = before.get(name, (size, 0.0))
        predicted = peak * (size / smaller) ** (1 if form == "blockwise" else 2)
        result = None if predicted > room else result_of(common | {"contestants": [name], "turns": 0})
        before[name] = size, math.inf if result is None else result["peak"]
        if result is not None:
            results[name] = result
    for temperature in dict.fromkeys(name.split()[0] for name in names):
        values = [result["loss"] for name, result in results.items() if name.startswith(temperature)]
        if values and max(values) - min(values) > TOLERANCE[common["tf32"]] * abs(values[0]):
            raise SystemExit(f"{common}: the losses differ: {values}")
    turns = max(1, min(turns, int(ALL_TURNS_SECONDS / sum(result["seconds"] for result in results.values()))))
    times = result_of(common | {"contestants": list(results), "turns": turns}) or {}
    for name, result in results.items():
        result["seconds"] = times.get(name, math.nan)
        result["turns"] = turns
    return results


def number(value: float, form: str) -> str:
    """A cell; empty for a time that was not taken."""
    return "" if math.isnan(value) else format(value, form)


def print_rows(objective: str, size: int, results: dict[str, dict[str, float]], names: Sequence[str]) -> None:
    """A row of the table for each temperature and contestant."""
    for temperature, form in (name.split() for name in names):
        result = results.get(f"{temperature} {form}")
        start = f"| {objective} | {size:,} | {temperature} | {form} |"
        if result is None:
            print(f"{start} does not fit | | | | | |")
            continue
        plain = results.get(f"{temperature} plain")
        constant = results.get(f"constant {form}")
        milliseconds = number(1000 * result["seconds"], ".1f") or "does not fit"
        time_ratio = number(result["seconds"] / plain["seconds"], ".2f") if plain else ""
        memory_ratio = f"1/{plain['peak'] / result['peak']:.1f}" if plain and result["peak"] else ""
        constant = constant if temperature != "constant" else None
        of_constant = number(result["seconds"] / constant["seconds"], ".2f") if constant else ""
        print(
            f"{start} {milliseconds} | {time_ratio} | {of_constant} | {result['peak'] / 1e6:.1f} | "
            f"{memory_ratio} | {result['turns']} |",
            flush=True,
        )


def main() -> None:
    """Measure and print the table and the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="pairs of a batch")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each contestant (default 5)")
    parser.add_argument("--dim", type=int, default=768, help="dimensions (default 768)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--tf32", choices=["no", "yes", "both"], default="no", help="TF32 matrix products, on CUDA")
    parser.add_argument("--one_process", action="store_true", help="measure all in this process")
    parser.add_argument("--rules", nargs="+", choices=["all", *RULES], help="without the pseudocode (default: with it)")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        print(json.dumps(measure(json.loads(options.job))))
        return
    names = [f"{temperature} {form}" for temperature, form in itertools.product(TEMPERATURES, FORMS)]
    if options.rules:
        rules = list(RULES) if "all" in options.rules else ["constant", *(r for r in options.rules if r != "constant")]
        names = [f"{rule} {form}" for rule, form in itertools.product(rules, FORMS[:2])]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    about = {"device": device_name(device), "threads": options.threads, "dim": options.dim, "torch": torch.__version__}
    print(", ".join(f"{key} {value}" for key, value in about.items()), end="; fp32, forward + backward\n\n")
    room = available_bytes(device)
    record = []
    for tf32 in {"no": [False], "yes": [True], "both": [False, True]}[options.tf32]:
        print(f"TF32 {'on' if tf32 else 'off'}\n")
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        common = {"threads": options.threads, "dim": options.dim, "tf32": tf32, "one_process": options.one_process}
        for objective in OBJECTIVES:
            if objective != "InfoNCE":  # these have rows of their own
                names = [name for name in names if not name.startswith(("RINCE", "SigLIP"))]
            before: dict[str, tuple[int, float]] = {}
            for size in sorted(options.sizes):
                job = common | {"objective": objective, "size": size}
                results = measure_size(job, options.repeats, room, before, names)
                print_rows(objective, size, results, names)
                record.append({"objective": objective, "size": size, "tf32": tf32, "results": results})
        print()
    print(to_json(about | {"rows": record}))


if __name__ == "__main__":
    main()
