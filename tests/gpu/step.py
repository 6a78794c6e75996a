"""Measure a training step on this device: its time, its kernels, how long they keep the GPU busy,
and where the host waits for the GPU.

    python tests/gpu/step.py --corpus sentences.txt [--batch 64 512] [--precision bf16 fp16]

The trainer's own step on a BERT of ``--layers`` and ``--width`` with random weights, with the loss
and the loading of batches as in training. A row is printed as JSON as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from devices import wait
from training_speed import RATE, engine, random_bert

from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.finetuning.settings import TextSettings
from dystress_text.training.settings import TrainingSettings

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
TURNS = 3  # of which the median counts
PROFILED = 5  # steps
LONGEST = 12  # kernels that are named
Steps = Callable[[int], float]


def measure(
    model: str, corpus: Path, batch: int, precision: str, steps: int, warm: int
) -> dict[str, Any]:
    """Measure one batch size in one precision; return its row."""
    # accelerate keeps its precision for the life of a process
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingSettings(
            output_dir=folder,
            train_batch_size=batch,
            learning_rate=RATE,
            mixed_precision=precision,
            max_steps=10**6,
            num_train_epochs=10**6,
        )
        initial = load_initial_model(TextSettings(model, pooler_type="cls"))
        trainer, _ = engine(initial, corpus, settings)
        trainer.model.train()
        batches: Any = trainer._batches(0)  # a generator

        def take(count: int) -> float:
            """Take some steps and read their losses, as training does; return the seconds a step."""
            wait(DEVICE)
            start = time.perf_counter()
            for micro_batches in islice(batches, count):
                trainer._step(micro_batches)
                trainer.state.step += 1
                if trainer.state.step % settings.logging_steps == 0:
                    trainer._read_losses()
            wait(DEVICE)
            return (time.perf_counter() - start) / count

        take(warm)
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        turns = sorted(1000 * take(steps) for _ in range(TURNS))
        ms = turns[TURNS // 2]
        row = {
            "batch": batch,
            "precision": precision,
            "ms": ms,
            "ms_of_turns": turns,
            "sentences_per_second": 1000 * batch / ms,
        }
        if CUDA:
            row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
            row["reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
            row["waits"] = waits_in(take)
        row |= kernels_in(take, ms)
        batches.close()
        trainer.close()
    return row


def waits_in(take: Steps) -> dict[str, int]:
    """Count how often the host waits for the GPU in the profiled steps, by line of code."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        take(PROFILED)
    torch.cuda.set_sync_debug_mode("default")
    return Counter(f"{Path(each.filename).name}:{each.lineno}" for each in caught)


def kernels_in(take: Steps, ms: float) -> dict[str, Any]:
    """Return what the GPU computes in a step that takes ``ms`` milliseconds; empty without a GPU.

    The profiler slows the host but no kernel, so the busy share is that of a step without it.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if CUDA:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        take(PROFILED)
    return summary_of(profile.events() or (), ms)


def summary_of(events: Iterable[Any], ms: float) -> dict[str, Any]:
    """Return the kernels, the busy time and the longest kernels of a step, from a profile."""
    kernels = [
        event
        for event in events
        if event.device_type.name == "CUDA"
        and not getattr(event, "is_user_annotation", False)  # spans other kernels
    ]
    if not kernels:
        return {}
    ranges = sorted((event.time_range.start, event.time_range.end) for event in kernels)
    busy = 0.0  # microseconds
    until = ranges[0][0]
    for start, end in ranges:  # copies and kernels may overlap
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    by_name: dict[str, list[float]] = defaultdict(list)
    for event in kernels:
        by_name[event.name[:90]].append(event.time_range.end - event.time_range.start)
    longest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:LONGEST]
    gpu_ms = busy / 1000 / PROFILED
    return {
        "kernels": len(kernels) / PROFILED,
        "gpu_ms": gpu_ms,
        "busy_share": gpu_ms / ms,
        "longest": {
            name: {"calls": len(times) / PROFILED, "ms": sum(times) / 1000 / PROFILED}
            for name, times in longest
        },
    }


def main() -> None:
    """Measure, and print a line for each row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 512])
    # accelerate has no fp16 on a CPU
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp16"] if CUDA else ["bf16"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--steps", type=int, default=30, help="of each of three turns")
    parser.add_argument("--warm", type=int, default=10, help="steps before the first turn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = random_bert(Path(folder), options.layers, options.width, options.vocabulary)
        for precision in options.precision:
            for batch in options.batch:
                row = measure(model, options.corpus, batch, precision, options.steps, options.warm)
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
