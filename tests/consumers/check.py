"""Whether a saved model gives the same vectors in every tool that shall read it, older releases included.

    python tests/consumers/check.py save FOLDER        # here: models of all poolers and of six families, and vectors
    python tests/consumers/check.py compare FOLDER     # with any release of sentence-transformers, without this package

``compare`` prints what the release and the code of the card of ``--to hf`` give of each model: the largest difference,
or the error in words. It ends with 1 if one is above 1e-5.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np


def save(folder):
    """Models and copies for transformers, the sentences, and the vectors that all must give."""
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from conftest import build_tokenizer, build_transformer

    from dystress_text.encoders.encoder import SentenceEncoder
    from dystress_text.encoders.loading import load_encoder
    from dystress_text.encoders.pooling import POOLERS
    from dystress_text.export.copies import PROBES, export
    from dystress_text.files.places import EMBEDDED

    torch.manual_seed(0)
    encoders = {f"bert-{name}": load_encoder(str(EMBEDDED / "bert-mini-wiki"), name, False) for name in POOLERS}
    for family in ("roberta", "distilbert", "mpnet", "modernbert", "llama"):
        for name in ("last" if family == "llama" else "cls", "avg_first_last"):
            encoders[f"{family}-{name}"] = SentenceEncoder(build_transformer(family), name, False), build_tokenizer()
    head = SentenceEncoder(build_transformer("bert"), "cls", True, keep_head=True, normalize=True)
    encoders["bert-head"] = head, build_tokenizer()
    vectors = {name: encoder.encode(PROBES, tokenizer).tolist() for name, (encoder, tokenizer) in encoders.items()}
    for name, (encoder, tokenizer) in encoders.items():
        encoder.save(folder / "native" / name, tokenizer)
        export(folder / "native" / name, "hf", folder / "hf" / name)
    (folder / "expected.json").write_text(json.dumps({"sentences": PROBES, "vectors": vectors}))


def by_sentence_transformers(model, sentences):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(model), device="cpu").encode(sentences, batch_size=4, show_progress_bar=False)


def by_card(model, sentences):
    """By the last block of code of the folder's card."""
    code = re.findall(r"```python\n(.*?)```", (model / "README.md").read_text(encoding="utf-8"), re.DOTALL)[-1]
    code = code.replace('"path/to/this/folder"', repr(str(model)))
    names = {"given": sentences, "print": lambda *_: None}
    exec(re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE), names)
    return names["embeddings"]


def compare(folder):
    """Print a line for each model; whether all are near enough."""
    expected, good = json.loads((folder / "expected.json").read_text()), True
    for layout, embed in (("native", by_sentence_transformers), ("hf", by_card)):
        for name, vectors in expected["vectors"].items():
            try:
                difference = float(
                    np.abs(np.array(embed(folder / layout / name, expected["sentences"])) - vectors).max()
                )
                said, near = f"{difference:.1e}", difference <= 1e-5
            except Exception as error:
                said, near = f"{type(error).__name__}: {error}", False
            print(f"{layout:8} {name:28} {said}", flush=True)
            good &= near
    return good


if __name__ == "__main__":
    place = Path(sys.argv[2])
    sys.exit(0 if {"save": save, "compare": compare}[sys.argv[1]](place) in (None, True) else 1)
