"""What a finished quickstart must have left, whoever ran it."""

import json
from pathlib import Path

from conftest import SHARED
from sentence_transformers import SentenceTransformer

from dystress_text.encoders.loading import load_encoder
from dystress_text.evaluation.readers import read_sts_benchmark
from dystress_text.evaluation.sts import evaluate_sts
from dystress_text.files.places import EMBEDDED
from dystress_text.simcse.quickstart import write_documentation_corpus


def check_quickstart(folder: Path, seconds: float) -> None:
    """Check a run of ``--preset quickstart``: its score rose, its text is Python's documentation, its model loads.

    Args:
        folder: of the run.
        seconds: that it took; two minutes on two free cores, a busy machine is allowed more.
    """
    print(f"quickstart: {seconds:.0f} s")
    assert seconds < 600
    record = json.loads((folder / "run.json").read_text())
    before = max(pooler["mini_sts_spearman"] for pooler in record["untrained"].values())
    assert record["trained"]["mini_sts_spearman"] > before
    assert 10_000 < record["corpus"]["sentences"] < 30_000
    assert len(record["corpus"]["sha256"]) == 64
    sentences = write_documentation_corpus().read_text().splitlines()
    assert len(set(sentences)) == len(sentences)
    assert all(4 <= len(sentence.split()) <= 60 for sentence in sentences)
    model = SentenceTransformer(str(folder), device="cpu")
    assert model.encode("It works.").shape == (256,)
    if (SHARED / "data").is_dir():  # a set that no preset sees
        dev = read_sts_benchmark(SHARED / "data" / "senteval" / "STS" / "STSBenchmark" / "sts-dev.csv")
        encoder, tokenizer = load_encoder(str(EMBEDDED / "bert-mini-wiki"), "avg")
        untrained = evaluate_sts(dev, lambda s: encoder.encode(s, tokenizer)).spearman
        trained = evaluate_sts(dev, lambda s: model.encode(list(s), convert_to_tensor=True)).spearman
        assert trained > untrained + 1
