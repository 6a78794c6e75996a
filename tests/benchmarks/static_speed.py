"""Static models: training and encoding, compared with sentence-transformers and model2vec.

    python tests/benchmarks/static_speed.py FILE --repeats 3          # a text a line

Both train the same table (embedded word pieces, 512 numbers, batch 256, 100 steps) on two crops of
each text; the trainer gets its crops as text, made beforehand, with MultipleNegativesRankingLoss.
The contestants take turns; seconds are CPU time of the process. ``encoding_speed.py`` measures the
encoding.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import encoding_speed
from datasets import Dataset
from devices import cpu_seconds, in_turn, make_parser, print_rates
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from training_speed import reference_trainer

import dystress_text
from dystress_text.finetuning.crops import Crops
from dystress_text.io.paths import EMBEDDED

STEPS = 100
BATCH = 256
DIM = 512


def ours(file: Path, folder: str) -> None:
    """Train as own-text does, from the reading of the text to the saved model."""
    dystress_text.train(
        "own-text",
        train_file=file,
        max_steps=STEPS,
        dim=DIM,
        output_dir=folder,
        overwrite_output_dir=True,
    )


def theirs(pairs: Dataset, folder: str) -> None:
    """Train by sentence-transformers' trainer, and save the model."""
    pieces = Tokenizer.from_file(str(EMBEDDED / "bert-mini-wiki" / "tokenizer.json"))
    table = StaticEmbedding(pieces, embedding_dim=DIM)
    model = SentenceTransformer(modules=[table], device="cpu")
    options = {"max_steps": STEPS, "use_cpu": True, "logging_strategy": "no", "disable_tqdm": True}
    reference_trainer(model, pairs, folder, BATCH, 3e-3, **options).train()
    model.save(folder)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    texts = options.file.read_text(encoding="utf-8").splitlines()
    crops = Crops(0)
    drawn = [crops.views(texts[i % len(texts)], i // len(texts), i) for i in range(STEPS * BATCH)]
    pairs = Dataset.from_dict({"one": [a for a, _ in drawn], "two": [b for _, b in drawn]})
    with tempfile.TemporaryDirectory() as folder:
        contestants = {
            "dystress-text": partial(ours, options.file, folder),
            "sentence-transformers": partial(theirs, pairs, f"{folder}/reference"),
        }
        timed = {name: partial(cpu_seconds, train) for name, train in contestants.items()}
        print_rates("training, CPU time", STEPS * BATCH, in_turn(timed, options.repeats))
        encoding_speed.measure(folder, list(dict.fromkeys(texts))[:20_000], options.repeats)


if __name__ == "__main__":
    main()
