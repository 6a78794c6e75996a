"""What the options of a training step cost, each beside unsupervised SimCSE without it.

    OMP_NUM_THREADS=1 python tests/benchmarks/option_costs.py --corpus wiki.txt [--steps 10] [--repeats 7]

All steps encode 96 sequences of the same text with the embedded encoder, in bf16: 48 sentences twice, or 32 rows of
three sentences (``supervised``); ``do_mlm`` encodes its 48 masked sentences on top. Contestants take turns; the time is
the processor's, of one thread, or by the clock on an accelerator, and the ratio that of one turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from devices import here, moved, wait

from dystress_text.encoders.encoder import load_encoder
from dystress_text.encoders.masked_lm import TokenMasking, load_lm_head
from dystress_text.files.places import embedded
from dystress_text.simcse.corpus import TextFile, TokenizedCorpus, load_corpus
from dystress_text.simcse.objective import TEXT
from dystress_text.simcse.task import SimcseTask
from dystress_text.training.build_loss import build_objective, learned_group
from dystress_text.training.optimizer import parameter_groups
from dystress_text.training.settings import LossSettings
from dystress_text.training.similarity_log import SimilarityLog

SEQUENCES = 96
MODEL = str(embedded("bert-mini-wiki"))


def contestant(corpus_file: str, option: str) -> Callable[[int, int], float]:
    """A task with an option, as a function that trains some steps from a batch on and returns their seconds."""
    encoder, tokenizer = load_encoder(MODEL, "avg", True)
    corpus = load_corpus(TextFile(Path(corpus_file)), tokenizer, 32, 20_000, progress=False)
    if option == "supervised":
        corpus = TokenizedCorpus(corpus.tokens, corpus.offsets, corpus.report, columns=3)
    loss = LossSettings(learn_temperature=option == "learn_temperature")
    device = here()
    objective = build_objective(loss, TEXT, bidirectional=option == "bidirectional").to(device)
    masking = None
    if option == "do_mlm":
        encoder.lm_head = load_lm_head(MODEL, encoder.transformer)
        masking = TokenMasking(tokenizer)
    task = SimcseTask(encoder.to(device).train(), tokenizer, corpus, objective, masking=masking)
    watch = SimilarityLog(objective, 0.4) if option == "log_similarity" else None
    beside = learned_group(objective, loss)
    groups = parameter_groups(encoder, 0.0) + ([] if beside is None else [beside])
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    rows = SEQUENCES // max(2, corpus.columns)
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def train(first: int, steps: int) -> float:
        wait(device)
        start = clock()
        for step in range(first, first + steps):
            batch = moved(task.load(np.arange(step * rows, (step + 1) * rows), step), device)
            with torch.autocast(device.type, torch.bfloat16):
                embeddings = task.embed(encoder, batch)
            if watch is not None:
                watch.add(embeddings.views)
            task.loss(embeddings).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if watch is not None:
                watch.end_step()
        wait(device)
        return clock() - start

    return train


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    names = (
        "unsupervised", "supervised", "bidirectional", "learn_temperature", "log_similarity", "do_mlm",
    )  # fmt: skip
    contestants = {name: contestant(options.corpus, name) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(options.repeats + 1):
        for name, train in contestants.items():
            taken = train(repeat * options.steps, options.steps)
            if repeat > 0:  # the first turn warms up
                seconds[name].append(taken)
    print(f"{'':20} {'ms a step':>9}  of unsupervised (range)")
    for name in names:
        ratios = [a / b for a, b in zip(seconds[name], seconds["unsupervised"], strict=True)]
        milliseconds = 1000 * statistics.median(seconds[name]) / options.steps
        print(
            f"{name:20} {milliseconds:9.1f}  {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
