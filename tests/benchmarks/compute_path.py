"""What each part of the packed forward pass is worth: a step without it, beside the whole and transformers' own.

    python tests/benchmarks/compute_path.py --corpus sentences.txt [--model FOLDER] [--repeats 20] [--compile]

Steps of unsupervised SimCSE (both views in one pass, backward, clipping, optimiser) on the same batches in turn. With
``--compile`` the packed pass under torch.compile is a contestant too; its first call is timed apart. Runs on an
accelerator where there is one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from devices import here, moved, wait
from torch import Tensor
from training_speed import LENGTH, random_bert

from dystress_text.encoders import packed
from dystress_text.encoders.encoder import SentenceEncoder, load_encoder
from dystress_text.simcse.corpus import TextFile, load_corpus
from dystress_text.simcse.objective import TEXT
from dystress_text.training.batches import Batch, BatchOrder
from dystress_text.training.build_loss import build_objective
from dystress_text.training.optimizer import parameter_groups
from dystress_text.training.settings import LossSettings

Forward = Callable[[Tensor, Tensor, bool], Tensor]


@contextmanager
def without(part: str) -> Iterator[None]:
    """The packed pass without one of its parts."""
    if part == "cheap dropout masks":
        with mock.patch.object(packed, "dropout", F.dropout):
            yield
    elif part == "first token alone in the last layer":
        whole: Any = packed.packed_states

        def all_tokens(
            transformer: Any, ids: Tensor, packing: packed.Packing, first_only: bool = False
        ) -> list[Tensor]:
            states: list[Tensor] = whole(transformer, ids, packing)
            return [*states[:-1], packing.first(states[-1])] if first_only else states

        with mock.patch("dystress_text.encoders.encoder.packed_states", all_tokens):
            yield
    elif part == "one conversion for the products":
        with mock.patch.object(packed, "_for_products", lambda x: x):
            yield
    else:
        yield


def main() -> None:
    """Print the table and its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--pooler_type", default="cls")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        encoder, tokenizer = load_encoder(options.model or random_bert(Path(folder)), options.pooler_type, True)
        corpus = load_corpus(TextFile(options.corpus), tokenizer, LENGTH, 20_000, cache_dir=folder, progress=False)
        order = BatchOrder(len(corpus), 64, 42).epoch(0)[: options.repeats + 2]
        device = here()
        batches = [moved(corpus.batch(rows), device) for rows in order]
    encoder.to(device).train()
    optimizer = torch.optim.AdamW(parameter_groups(encoder, 0.0), lr=1e-5, fused=True)
    objective = build_objective(LossSettings(), TEXT)

    def step(forward: Forward, batch: Batch, pack: bool) -> float:
        wait(device)
        start = time.perf_counter()
        ids, mask = batch["token_ids"].repeat(2), batch["attention_mask"].repeat(2, 1)
        with torch.autocast(device.type, torch.bfloat16):
            vectors = forward(ids, mask, pack)
        objective(*vectors.chunk(2)).backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wait(device)
        return time.perf_counter() - start

    parts = ["cheap dropout masks", "first token alone in the last layer", "one conversion for the products"]
    seconds = measure(encoder, step, batches, ["", "transformers", *parts], options.compile)
    whole = seconds["all parts"]
    print(f"{'':52} {'ms/step':>8} {'ratio':>6}   spread")
    for name, values in seconds.items():
        ratios = [a / b for a, b in zip(values, whole, strict=True)]
        print(
            f"{name:52} {1000 * statistics.median(values):8.1f} {statistics.median(ratios):6.2f}   "
            f"{min(ratios):.2f} to {max(ratios):.2f}"
        )
    about = {"device": device.type, "threads": torch.get_num_threads(), "torch": torch.__version__}
    print(json.dumps({"seconds": seconds, **about}))


def measure(
    encoder: SentenceEncoder,
    step: Callable[[Forward, Batch, bool], float],
    batches: list[Batch],
    contestants: list[str],
    compiled: bool,
) -> dict[str, list[float]]:
    """Seconds of each contestant for each batch but the first two."""
    seconds: dict[str, list[float]] = {}
    compiled_encoder: Any = torch.compile(encoder, dynamic=True)
    if compiled:
        start = time.perf_counter()
        step(compiled_encoder, batches[0], True)
        print(f"torch.compile, first call: {time.perf_counter() - start:.0f} s")
    for i, batch in enumerate(batches):
        for part in contestants:
            with without(part):
                took = step(encoder, batch, part != "transformers")
            label = {"": "all parts", "transformers": "transformers' own forward pass"}.get(part, f"without: {part}")
            if i > 1:
                seconds.setdefault(label, []).append(took)
        if compiled:
            took = step(compiled_encoder, batch, True)
            if i > 1:
                seconds.setdefault("all parts under torch.compile", []).append(took)
    return seconds


if __name__ == "__main__":
    main()
