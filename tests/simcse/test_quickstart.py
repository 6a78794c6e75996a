"""The embedded corpus, and the quickstart as its users run it."""

import errno
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import SHARED
from sentence_transformers import SentenceTransformer

from dystress_text.encoders.encoder import load_encoder
from dystress_text.errors import UserError
from dystress_text.evaluation.readers import read_sts_benchmark
from dystress_text.evaluation.sts import evaluate_sts
from dystress_text.files.places import EMBEDDED
from dystress_text.simcse import quickstart
from dystress_text.simcse.quickstart import split_sentences, write_documentation_corpus

ROOT = Path(__file__).resolve().parents[2]


def test_paragraphs_become_sentences():
    paragraph = "Return the *first* item.  It may be\n    empty if nothing is there (see foo()).\nRaises `Error` if so!"
    expected = [
        "Return the first item.",
        "It may be empty if nothing is there (see foo()).",
        "Raises Error if so!",
    ]
    assert split_sentences(paragraph) == expected
    assert split_sentences("lower case start is no sentence. Too short. x = [1, 2, 3] + y ** 2 == z.") == []


def test_the_interpreters_documentation_is_a_corpus_of_thousands(tmp_path, monkeypatch):
    monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path))
    sentences = write_documentation_corpus().read_text().splitlines()
    assert 10_000 < len(sentences) < 30_000
    assert len(set(sentences)) == len(sentences)
    assert all(4 <= len(s.split()) <= 60 for s in sentences)


def test_the_corpus_is_cached_by_its_format(tmp_path, monkeypatch):
    monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path))
    monkeypatch.setattr(quickstart, "documentation_sentences", lambda: ["One.", "Two."])
    file = write_documentation_corpus()
    monkeypatch.setattr(quickstart, "documentation_sentences", lambda: ["Three."])
    assert write_documentation_corpus() == file
    assert file.read_text() == "One.\nTwo.\n"
    monkeypatch.setattr(quickstart, "FORMAT", quickstart.FORMAT + 1)
    assert write_documentation_corpus().read_text() == "Three.\n"


def test_a_cache_that_cannot_be_made_or_written_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(quickstart, "documentation_sentences", lambda: ["One."])
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder" / "quickstart").mkdir(parents=True)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(Path, "open", Mock(side_effect=full))
    for cache in (tmp_path / "file", tmp_path / "folder"):
        monkeypatch.setenv("DYSTRESS_CACHE", str(cache))
        with pytest.raises(UserError, match=rf"^.*{re.escape(str(cache))}.* DYSTRESS_CACHE .*$"):
            write_documentation_corpus()


def test_the_embedded_encoder_is_the_shared_one(shared):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        ours, theirs = EMBEDDED / "bert-mini-wiki" / name, shared / "models" / "bert-mini-wiki" / name
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.slow
def test_the_quickstart_raises_the_score(tmp_path):
    start = time.monotonic()
    script = str(ROOT / "dystress_text" / "train.py")
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, script, "--preset", "quickstart", "--output_dir", str(out)],
        capture_output=True, text=True, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((out / "run.json").read_text())
    before = max(pooler["mini_sts_spearman"] for pooler in record["untrained"].values())
    assert record["trained"]["mini_sts_spearman"] > before
    assert len(record["corpus"]["sha256"]) == 64
    assert SentenceTransformer(str(out)).encode("It works.").shape == (256,)
    print(f"quickstart: {time.monotonic() - start:.0f} s")
    if not (SHARED / "data").is_dir():
        pytest.skip("no real data beside the checkout: STS-B dev was not looked at")
    dev = read_sts_benchmark(SHARED / "data" / "senteval" / "STS" / "STSBenchmark" / "sts-dev.csv")
    encoder, tokenizer = load_encoder(str(EMBEDDED / "bert-mini-wiki"), "avg")
    model = SentenceTransformer(str(out))
    untrained = evaluate_sts(dev, lambda s: encoder.encode(s, tokenizer)).spearman
    trained = evaluate_sts(dev, lambda s: model.encode(list(s), convert_to_tensor=True)).spearman
    assert trained > untrained + 1
