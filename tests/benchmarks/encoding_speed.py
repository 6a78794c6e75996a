"""Encoding, compared with sentence-transformers' own ``encode`` and, if static, with model2vec.

    python tests/benchmarks/encoding_speed.py --corpus sentences.txt --model FOLDER [FOLDER ...]

The contestants take turns on the same sentences with one thread; seconds are CPU time of the
process. ``bert-mini-wiki`` is the embedded encoder with ``cls`` pooling. model2vec is left out
where it is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from devices import cpu_seconds, first_sentences, in_turn, make_parser, print_rates
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from dystress_text.evaluation.text_encoder import with_pooler
from dystress_text.io.paths import model_path
from dystress_text.models.encoding import encode
from dystress_text.models.loading import load_encoder


def load(name: str) -> SentenceTransformer:
    if name == "bert-mini-wiki":
        return with_pooler(load_encoder(model_path(name)), "cls")
    return SentenceTransformer(name, device="cpu")


def encoders(name: str) -> dict[str, Callable[[list[str]], Any]]:
    """Return the functions that encode texts with a model."""
    model = load(name)
    found: dict[str, Callable[[list[str]], Any]] = {
        "dystress-text": partial(encode, model),
        "sentence-transformers": partial(model.encode, show_progress_bar=False),
    }
    if isinstance(model[0], StaticEmbedding):
        with suppress(ImportError):
            from model2vec import StaticModel  # type: ignore[import-not-found]

            static = StaticModel.from_pretrained(name)
            found["model2vec"] = partial(static.encode, use_multiprocessing=False, max_length=None)
    return found


def measure(name: str, texts: list[str], repeats: int) -> None:
    """Print the rates of a model and the largest difference of normalised vectors."""
    contestants = encoders(name)
    vectors = [F.normalize(torch.as_tensor(way(texts))) for way in contestants.values()]
    difference = (vectors[0] - vectors[1]).abs().max()
    timed = {way: partial(cpu_seconds, partial(contestants[way], texts)) for way in contestants}
    title = f"{Path(name).name}, largest difference {difference:.1e}, CPU time"
    print_rates(title, len(texts), in_turn(timed, repeats))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--model", nargs="+", default=["bert-mini-wiki"])
    parser.add_argument("--sentences", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    texts = list(dict.fromkeys(first_sentences(options.corpus, options.sentences)))
    for name in options.model:
        measure(name, texts, options.repeats)


if __name__ == "__main__":
    main()
