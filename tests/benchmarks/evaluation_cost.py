"""What an evaluation while training costs beside the encoder's products: tokenising again, and keeping the best model.

``python tests/benchmarks/evaluation_cost.py --model bert-mini-wiki --repeats 5`` and ``--model base``, a BERT-base with
random weights. Contestants in turn; seconds by the clock, median and range.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel

from dystress_text.encoders.encoder import SentenceEncoder, length_limit, load_encoder
from dystress_text.encoders.encoding import TokenizedOnce
from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.files.places import EMBEDDED
from dystress_text.training.trainer import check_finite


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(EMBEDDED / "bert-mini-wiki"))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    base = options.model == "base"
    encoder, tokenizer = load_encoder(str(EMBEDDED / "bert-mini-wiki") if base else options.model, "avg")
    if base:
        encoder = SentenceEncoder(BertModel(BertConfig()), "avg")
    encoder.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    pairs = eval_pairs("mini_sts", None)
    assert pairs is not None
    tokenized = TokenizedOnce(tokenizer, length_limit(tokenizer, encoder.transformer))

    def through_files() -> None:
        """Written, read by sentence-transformers, written again: the way until version 0.3."""
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            encoder.transformer.save_pretrained(one)
            tokenizer.save_pretrained(one)
            modules = [Transformer(one), Pooling(encoder.transformer.config.hidden_size, "mean")]
            SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine").save(other)

    def written() -> None:
        with tempfile.TemporaryDirectory() as folder:
            encoder.save(Path(folder), tokenizer)

    contestants: dict[str, Callable[[], object]] = {
        "encode, tokenised anew": lambda: encoder.encode(pairs.sentences, tokenizer),
        "encode, tokenised once": lambda: encoder.encode_again(pairs.sentences, tokenized).sum().item(),
        "save through files": through_files,
        "save, in the thread": written,
        "finite weights": lambda: check_finite(encoder, 1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(options.repeats + 1):  # the first one warms up
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    for name, found in seconds.items():
        print(f"{name:24} {statistics.median(found):8.3f} s ({min(found):.3f} to {max(found):.3f})", flush=True)


if __name__ == "__main__":
    main()
