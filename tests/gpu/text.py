"""Where the time of text goes: a profile of training steps, a real run split by what it does, and encoding.

    python tests/gpu/text.py profile --corpus sentences.txt --layers 12 --width 768 --vocabulary 30522
    python tests/gpu/text.py run --corpus sentences.txt [--steps 1000] [--eval_steps 125] [--save_steps 500]
    python tests/gpu/text.py encode --corpus sentences.txt [--sentences 8192] [--sizes 32 64 256 1024]

The encoder has random weights; ``--layers``, ``--width`` and ``--vocabulary`` are its shape.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from programs import call, device_name, here, lines_of, report, wait
from torch._C._autograd import DeviceType  # its public place, torch.autograd, does not declare it
from torch.profiler import ProfilerActivity, profile
from training_speed import LENGTH, RATE, random_bert

from dystress_text import train
from dystress_text.encoders.encoder import length_limit, load_encoder
from dystress_text.encoders.encoding import TokenizedOnce
from dystress_text.simcse.corpus import TextFile, load_corpus
from dystress_text.simcse.objective import TEXT
from dystress_text.simcse.task import SimcseTask
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.build_loss import build_objective
from dystress_text.training.run_folder import read_record
from dystress_text.training.settings import EngineSettings, LossSettings
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer

SAVING = ("_evaluate", "_checkpoint", "_finish_writing")  # of the trainer; the first one evaluates as well
LONGEST = 15  # kernels in the table
AGAIN = "by tokens, tokenised before"  # as evaluations while training do it
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def busy_seconds(spans: list[tuple[float, float]]) -> float:
    """The length of the union of spans, in microseconds, as seconds."""
    total, end = 0.0, -1.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e6


def profile_steps(options: argparse.Namespace, model: str, folder: Path) -> dict[str, Any]:
    """Some steps of the engine under torch.profiler, after others that load the kernels."""
    settings = EngineSettings(
        output_dir=str(folder), train_batch_size=options.batch, learning_rate=RATE, mixed_precision="bf16",
        max_steps=options.warm + options.steps,
    )  # fmt: skip
    encoder, tokenizer = load_encoder(model, "cls")
    corpus = load_corpus(TextFile(options.corpus), tokenizer, LENGTH, cache_dir=folder / "cache", progress=False)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if here().type == "cuda" else [])]
    profiler, starts = profile(activities=activities), list[float]()

    class Profiled(SimcseTask):
        """Starts the profiler once the first steps are done."""

        steps = 0

        def begin_step(self, epoch: float, run_fraction: float) -> None:
            super().begin_step(epoch, run_fraction)
            if self.steps == options.warm:
                wait(here())
                profiler.start()
                starts.append(time.perf_counter())
            self.steps += 1

        def evaluate(self) -> dict[str, float]:
            wait(here())
            starts.append(time.perf_counter())
            profiler.stop()
            return {}

        def save(self, folder: Path) -> None:
            pass  # saving is not a step

    task = Profiled(encoder, tokenizer, corpus, build_objective(LossSettings(), TEXT))
    Trainer(Run(task=task, samples=len(corpus)), settings, make_accelerator(settings)).fit()
    return summary(profiler, starts[1] - starts[0], options.steps)


def summary(profiler: profile, seconds: float, steps: int) -> dict[str, Any]:
    """Launches and waits a step, the busy share, and the longest kernels; of the CPU's operations without a GPU."""
    events = list(profiler.events() or [])  # type: ignore[no-untyped-call]
    kernels = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    names = collections.Counter(event.name for event in events if event.device_type == DeviceType.CPU)
    longest: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    for event in kernels or events:
        longest[event.name] += event.time_range.elapsed_us() if kernels else event.self_cpu_time_total
        calls[event.name] += 1
    rows = [
        {"name": name[:160], "ms_a_step": us / 1000 / steps, "calls_a_step": calls[name] / steps}
        for name, us in longest.most_common(LONGEST)
    ]
    result = {
        "device": device_name(here()), "steps": steps, "ms_a_step": 1000 * seconds / steps,
        "launches_a_step": sum(n for name, n in names.items() if name.startswith(LAUNCHES)) / steps,
        "waits_a_step": sum(n for name, n in names.items() if name.startswith(WAITS)) / steps,
        "busy_share": busy_seconds([(e.time_range.start, e.time_range.end) for e in kernels]) / seconds,
        "longest": rows,
    }  # fmt: skip
    for name, us in longest.most_common(LONGEST):
        print(f"{us / 1000 / steps:9.3f} ms {calls[name] / steps:7.1f} x  {name[:90]}")
    print(", ".join(f"{key} {value:.4g}" for key, value in result.items() if isinstance(value, float)))
    return result


@dataclass
class Stopwatch:
    """Adds up the seconds of methods, by who called whom: ``fit/_evaluate`` is the second inside the first."""

    seconds: dict[str, float] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)

    @contextmanager
    def on(self, owner: type, method: str) -> Iterator[None]:
        """Watch a method; what the device has still to do when it starts does not count."""
        original: Callable[..., Any] = getattr(owner, method)

        def run(*arguments: Any, **options: Any) -> Any:
            wait(here())
            self.running.append(method)
            name, start = "/".join(self.running), time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                wait(here())
                self.running.pop()
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

        with mock.patch.object(owner, method, run):
            yield


def real_run(options: argparse.Namespace, model: str, folder: Path) -> dict[str, Any]:
    """The training program as a user runs it, with its evaluation on the mini STS set and its checkpoints.

    Raises:
        SystemExit: it fails.
    """
    out, watch = folder / "out", Stopwatch()
    words = [
        "--model_name_or_path", model, "--train_file", str(options.corpus), "--output_dir", str(out),
        "--max_steps", str(options.steps), "--eval_set", "mini_sts", "--eval_steps", str(options.eval_steps),
        "--save_steps", str(options.save_steps), "--train_batch_size", str(options.batch),
    ]  # fmt: skip
    start = time.perf_counter()
    with (
        watch.on(Trainer, "fit"),
        watch.on(Trainer, "_evaluate"),
        watch.on(Trainer, "_checkpoint"),
        watch.on(Trainer, "_finish_writing"),
        watch.on(SimcseTask, "evaluate"),
    ):
        error = call(train.main, words)
    if error is not None:
        raise SystemExit(error)
    whole, seconds, record = time.perf_counter() - start, watch.seconds, read_record(out)
    evaluation = seconds["fit/_evaluate/evaluate"]
    split = {
        "whole": whole, "training": float(record["train_seconds"]), "evaluation": evaluation,
        "saving": sum(seconds.get(f"fit/{name}", 0.0) for name in SAVING) - evaluation,
        "before and after": whole - seconds["fit"],
    }  # fmt: skip
    print(", ".join(f"{name} {value:.2f} s" for name, value in split.items()))
    rate = options.steps * options.batch / split["training"]
    return {"device": record["device"], "steps": options.steps, "seconds": split, "sentences_per_second": rate}


def encode(options: argparse.Namespace, model: str, folder: Path) -> dict[str, Any]:
    """Sentences a second by batch size and precision."""
    encoder, tokenizer = load_encoder(model, "cls")
    encoder.to(here())
    sentences = lines_of(options.corpus, options.sentences)
    tokenized = TokenizedOnce(tokenizer, length_limit(tokenizer, encoder.transformer))
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for size in (*options.sizes, AGAIN):
            taken = []
            for turn in range(4):  # the first one loads kernels
                start = time.perf_counter()
                if size == AGAIN:
                    encoder.encode_again(sentences, tokenized, dtype)
                else:
                    encoder.encode(sentences, tokenizer, size, dtype=dtype)
                wait(here())
                if turn:
                    taken.append(time.perf_counter() - start)
            rate = len(sentences) / statistics.median(taken)
            rows.append({"dtype": str(dtype).removeprefix("torch."), "batch": size, "sentences_per_second": rate})
            print(rows[-1], flush=True)
    return {"device": device_name(here()), "sentences": len(sentences), "rows": rows}


def main() -> int:
    """Measure one of the three."""
    kinds = {"profile": profile_steps, "run": real_run, "encode": encode}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(kinds))
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, help="default 30 of a profile, 1000 of a run")
    parser.add_argument("--warm", type=int, default=10, help="profile: steps before it")
    parser.add_argument("--eval_steps", type=int, default=125, help="run: as train.py's")
    parser.add_argument("--save_steps", type=int, default=500, help="run: as train.py's")
    parser.add_argument("--sentences", type=int, default=8192, help="encode: so many")
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 256, 1024], help="encode: sentences a batch")
    options = parser.parse_args()
    options.steps = options.steps or {"profile": 30, "run": 1000, "encode": 0}[options.what]
    with tempfile.TemporaryDirectory() as folder:
        model = random_bert(Path(folder) / "model", options.layers, options.width, options.vocabulary)
        report(kinds[options.what](options, model, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
