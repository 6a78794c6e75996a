"""Encoding with a transformer, compared with sentence-transformers' own ``encode``.

    python tests/benchmarks/encoding_speed.py --corpus sentences.txt --model FOLDER [FOLDER ...]

The contestants take turns on the same sentences with one thread; seconds are CPU time of the
process. ``bert-mini-wiki`` is the embedded encoder with ``cls`` pooling.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer

from dystress_text.evaluation.text_encoder import with_pooler
from dystress_text.io.paths import model_path
from dystress_text.io.text_lines import LineCounts, open_text, read_sentences
from dystress_text.models.embedder import encode
from dystress_text.models.loading import load_encoder


def load(name: str) -> SentenceTransformer:
    if name == "bert-mini-wiki":
        return with_pooler(load_encoder(model_path(name)), "cls")
    return SentenceTransformer(name, device="cpu")


def cpu_seconds(run: Callable[[], object]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--model", nargs="+", default=["bert-mini-wiki"])
    parser.add_argument("--sentences", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with open_text(options.corpus) as stream:
        texts = list(dict.fromkeys(islice(read_sentences(stream, LineCounts()), options.sentences)))
    for name in options.model:
        model = load(name)

        def theirs(model: SentenceTransformer = model) -> torch.Tensor:
            found = model.encode(texts, convert_to_tensor=True, show_progress_bar=False)
            assert isinstance(found, torch.Tensor)
            return found

        def ours(model: SentenceTransformer = model) -> torch.Tensor:
            return encode(model, texts)

        difference = (F.normalize(ours()) - F.normalize(theirs())).abs().max()
        turns = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(options.repeats)]
        ratios = [second / first for first, second in turns]
        print(
            f"{Path(name).name}, {len(texts):,} sentences: CPU s {np.round(turns, 2).tolist()}, "
            f"{np.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f}), "
            f"largest difference {difference:.1e}"
        )


if __name__ == "__main__":
    main()
