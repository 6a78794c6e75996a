"""Training over 1, 2 and 4 processes on the cores of one machine.

    python tests/benchmarks/scaling.py [--processes 1 2 4] [--batch 64] [--steps 30] [--repeats 5]

Trains the embedded encoder on the quickstart's corpus through the engine, with the same global batches for any number
of processes (gloo; the cores are divided among them, at least one thread each). The numbers of processes take turns;
medians count. A single process has all cores too, so the efficiency is the rate over that of the first row: 1 would
mean that dividing the work costs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from torch.multiprocessing.spawn import start_processes

from dystress_text.core.gather import ProcessGather
from dystress_text.encoders.encoder import load_encoder
from dystress_text.files.places import embedded
from dystress_text.simcse.corpus import TextFile, load_corpus
from dystress_text.simcse.objective import TEXT
from dystress_text.simcse.quickstart import write_documentation_corpus
from dystress_text.simcse.task import SimcseTask
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.build_loss import build_objective
from dystress_text.training.settings import EngineSettings, LossSettings
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer

WARM_UP = 3  # steps before those that count


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run(folder: str, batch: int, steps: int, precision: str) -> float:
    """Sentences a second over ``steps`` steps."""
    settings = EngineSettings(
        output_dir=folder, max_steps=steps, train_batch_size=batch, learning_rate=1e-4, mixed_precision=precision
    )
    accelerator = make_accelerator(settings)
    rank, processes = accelerator.process_index, accelerator.num_processes
    encoder, tokenizer = load_encoder(str(embedded("bert-mini-wiki")), "avg", True)
    corpus = load_corpus(TextFile(write_documentation_corpus()), tokenizer, 32, progress=False)
    gather = ProcessGather(rank, processes) if processes > 1 else None
    task = SimcseTask(encoder, tokenizer, corpus, build_objective(LossSettings(), TEXT, gather))
    task.save = lambda folder: None  # type: ignore[method-assign]  # saving is not training
    trainer = Trainer(Run(task=task, samples=len(corpus)), settings, accelerator)
    with contextlib.redirect_stderr(io.StringIO()):
        rate = trainer.fit().samples_per_second
    trainer.model = task.model  # let go of the prepared one, but keep the process group
    accelerator.free_memory()
    return rate


def process(rank: int, processes: int, port: int, folder: str, batch: int, steps: int, precision: str) -> None:
    """One of the processes; the first leaves the rate in ``folder``."""
    threads = max(1, cores() // processes)
    os.environ.update(ACCELERATE_USE_CPU="true", OMP_NUM_THREADS=str(threads))
    if processes > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes))
        os.environ.update(LOCAL_WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    run(folder, batch, WARM_UP, precision)
    rate = run(folder, batch, steps, precision)
    if rank == 0:
        (Path(folder) / "rate").write_text(repr(rate))
    if processes > 1:
        gc.collect()  # distributed training's objects must go before the group
        dist.barrier()
        dist.destroy_process_group()


def measure(processes: int, batch: int, steps: int, precision: str) -> float:
    """Sentences a second of a fresh group of processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        arguments = (processes, port, folder, batch, steps, precision)
        start_processes(process, arguments, nprocs=processes, start_method="forkserver")  # type: ignore[no-untyped-call]
        return float((Path(folder) / "rate").read_text())


def main() -> None:
    """Print the table and its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mixed_precision", default="auto")
    options = parser.parse_args()
    multiprocessing.set_forkserver_preload(
        ["dystress_text.simcse.task", "transformers.models.bert"]
    )  # one import for all
    rates: dict[int, list[float]] = {processes: [] for processes in options.processes}
    for _ in range(options.repeats):
        for processes, found in rates.items():
            found.append(measure(processes, options.batch, options.steps, options.mixed_precision))
    first = statistics.median(rates[options.processes[0]])
    print(f"{cores()} cores, global batch {options.batch}, median of {options.repeats} x {options.steps} steps")
    print(f"{'processes':>9} {'threads':>8} {'sentences/s':>12} {'efficiency':>11}")
    for processes, found in rates.items():
        rate, threads = statistics.median(found), max(1, cores() // processes)
        note = "  more processes than cores" if processes > cores() else ""
        print(f"{processes:9} {threads:8} {rate:12.1f} {rate / first:11.2f}{note}")
    setting = {name: getattr(options, name) for name in ("batch", "steps", "mixed_precision")}
    print(json.dumps({"sentences_per_second": rates, "cores": cores(), **setting, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
