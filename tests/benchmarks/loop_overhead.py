"""What the training loop adds to forward, backward and optimiser step.

    python tests/benchmarks/loop_overhead.py [--steps 30] [--repeats 5]

Trains the embedded encoder on the quickstart's corpus, alternately through the engine and through a bare loop over the
same batches in the same precision, and prints the medians and their ratio. Losses and batches are the same in both.
Runs on an accelerator where there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time

import torch
import transformers
from devices import here, moved, wait

from dystress_text.encoders.encoder import load_encoder
from dystress_text.files.places import embedded
from dystress_text.simcse.corpus import TextFile, TokenizedCorpus, load_corpus
from dystress_text.simcse.objective import TEXT
from dystress_text.simcse.quickstart import write_documentation_corpus
from dystress_text.simcse.task import SimcseTask
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.batches import BatchOrder
from dystress_text.training.build_loss import build_objective
from dystress_text.training.optimizer import parameter_groups
from dystress_text.training.settings import EngineSettings, LossSettings
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer

BATCH = 64
RATE = 1e-4


def make_task(corpus: TokenizedCorpus | None = None) -> SimcseTask:
    """A fresh encoder on the given corpus."""
    encoder, tokenizer = load_encoder(str(embedded("bert-mini-wiki")), "avg", True)
    corpus = corpus or load_corpus(TextFile(write_documentation_corpus()), tokenizer, 32)
    return SimcseTask(encoder, tokenizer, corpus, build_objective(LossSettings(), TEXT))


def through_the_engine(task: SimcseTask, steps: int) -> float:
    """Milliseconds a step of the engine, logging every ten steps."""
    task.snapshot = lambda: lambda folder: None  # type: ignore[method-assign]  # saving is not the loop
    with tempfile.TemporaryDirectory() as folder:
        settings = EngineSettings(output_dir=folder, max_steps=steps, learning_rate=RATE, mixed_precision="bf16")
        trainer = Trainer(Run(task=task, samples=len(task.corpus)), settings, make_accelerator(settings))
        with contextlib.redirect_stderr(io.StringIO()):
            return 1000 * trainer.fit().seconds / steps


def bare(task: SimcseTask, steps: int) -> float:
    """Milliseconds a step of a bare loop."""
    device = here()
    model = task.model.to(device).train()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.0), lr=RATE, fused=True)
    batches = [task.load(rows, 0) for rows in BatchOrder(len(task.corpus), BATCH, 42).epoch(0)[:steps]]
    wait(device)
    start = time.perf_counter()
    for loaded in batches:
        batch = moved(loaded, device)
        with torch.autocast(device.type, torch.bfloat16):
            embeddings = task.embed(model, batch)
        task.loss(embeddings).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    wait(device)
    return 1000 * (time.perf_counter() - start) / steps


def main() -> None:
    """Print the table and its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    corpus = make_task().corpus
    times: dict[str, list[float]] = {"engine": [], "bare": []}
    for _ in range(options.repeats):
        times["engine"].append(through_the_engine(make_task(corpus), options.steps))
        times["bare"].append(bare(make_task(corpus), options.steps))
    median = {name: statistics.median(values) for name, values in times.items()}
    ratios = [a / b for a, b in zip(times["engine"], times["bare"], strict=True)]
    print(f"{'':8} {'ms/step':>8}")
    for name, value in median.items():
        print(f"{name:8} {value:8.1f}")
    print(f"engine / bare: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    print(json.dumps({"ms_per_step": times, "ratio": statistics.median(ratios), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
