"""Static models: training and encoding, compared with sentence-transformers and model2vec.

    python tests/benchmarks/static_speed.py FILE --repeats 3          # a text a line

Both train the same table (embedded word pieces, 512 numbers, batch 256, 100 steps, one thread) on
two crops of each text; the trainer gets its crops as text, made beforehand, with
MultipleNegativesRankingLoss. Turns are interleaved; seconds are of the process's CPU time.
model2vec is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 100
BATCH = 256
DIM = 512


def ours(file: Path, place: str) -> float:
    """Return the CPU seconds of own-text, from the reading of the text to the saved model."""
    import dystress_text

    begun = time.process_time()
    dystress_text.train(
        "own-text",
        train_file=file,
        max_steps=STEPS,
        dim=DIM,
        output_dir=place,
        overwrite_output_dir=True,
    )
    return time.process_time() - begun


def theirs(file: Path, place: str) -> float:
    """Return the CPU seconds of sentence-transformers' trainer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers import models as kinds  # type: ignore[attr-defined]
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from tokenizers import Tokenizer

    from dystress_text.finetuning.crops import Crops
    from dystress_text.io.paths import EMBEDDED

    texts = file.read_text(encoding="utf-8").splitlines()
    crops = Crops(0)
    pairs = [crops.views(texts[i % len(texts)], i // len(texts), i) for i in range(STEPS * BATCH)]
    data = Dataset.from_dict({"one": [a for a, _ in pairs], "two": [b for _, b in pairs]})
    begun = time.process_time()
    pieces = Tokenizer.from_file(str(EMBEDDED / "bert-mini-wiki" / "tokenizer.json"))
    model = SentenceTransformer(
        modules=[kinds.StaticEmbedding(pieces, embedding_dim=DIM)], device="cpu"
    )
    arguments = SentenceTransformerTrainingArguments(
        place,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=3e-3,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    SentenceTransformerTrainer(
        model, arguments, data, loss=MultipleNegativesRankingLoss(model)
    ).train()
    model.save(place)
    return time.process_time() - begun


def encoders(folder: str) -> dict[str, Callable[[list[str]], Any]]:
    """Return functions that encode texts with a saved model."""
    from sentence_transformers import SentenceTransformer

    from dystress_text.models.encoding import encode
    from dystress_text.models.loading import load_sentence_transformer

    model = load_sentence_transformer(folder)
    ways: dict[str, Callable[[list[str]], Any]] = {
        "dystress-text": lambda texts: encode(model, texts).numpy(),
        "sentence-transformers": SentenceTransformer(folder, device="cpu").encode,
    }
    try:
        from model2vec import StaticModel  # type: ignore[import-not-found]

        static = StaticModel.from_pretrained(folder)
        ways["model2vec"] = lambda texts: static.encode(
            texts, use_multiprocessing=False, max_length=None
        )
    except ImportError:
        print("model2vec is not installed")
    return ways


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    texts = list(dict.fromkeys(options.file.read_text(encoding="utf-8").splitlines()))[:20_000]
    with tempfile.TemporaryDirectory() as place:
        turns = [
            (ours(options.file, place), theirs(options.file, f"{place}/st"))
            for _ in range(options.repeats)
        ]
        ratios = [b / a for a, b in turns]
        rounded = np.array(turns).round(1).tolist()
        median = np.median(ratios)
        print(f"training: {rounded} CPU s, ratio {median:.2f} {np.round(ratios, 2)}")
        seconds: dict[str, list[float]] = {}
        for _ in range(options.repeats):
            for name, encode in encoders(place).items():
                begun = time.process_time()
                encode(texts)
                seconds.setdefault(name, []).append(time.process_time() - begun)
    print(f"encoding {len(texts):,} texts, CPU s:")
    for name, values in seconds.items():
        print(f"  {name}: {np.round(values, 2).tolist()}")


if __name__ == "__main__":
    main()
