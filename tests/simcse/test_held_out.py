"""Sentences held out of training, and the cosines of random pairs that a run leaves in its folder."""

import json

import numpy as np
import pytest
from conftest import make_sentences
from sentence_transformers import SentenceTransformer

from dystress_text.simcse.arguments import parse
from dystress_text.simcse.corpus import TextFile
from dystress_text.simcse.held_out import Measured
from dystress_text.simcse.presets import PRESETS
from dystress_text.simcse.run import build_text_run
from dystress_text.train import main
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.checkpoints import as_before


def test_a_tenth_at_most_is_held_out():
    measured = Measured.choose(1000, 60, 4000)
    assert measured.held_out
    assert len(measured.samples) == 60
    assert sorted([*measured.samples, *measured.trained(1000)]) == list(range(1000))
    assert (Measured.choose(1000, 60, 4000).samples == measured.samples).all()
    assert len(Measured.choose(1000, 300, 4000).samples) == 100
    for samples, held_out in ((1000, 0), (9, 5), (300, 200)):  # a tenth of 300 is too few to measure
        seen = Measured.choose(samples, held_out, 4000)
        assert (seen.held_out, len(seen.samples), seen.trained(samples)) == (False, samples, None)
    assert len(Measured.choose(50_000, 0, 4000).samples) == 4000


def test_presets_of_the_paper_hold_nothing_out():
    held_out = {name: parse([f"--preset={name}"]).text.held_out for name in PRESETS}
    assert {name: count for name, count in held_out.items() if count} == {"small": 10_000, "quickstart": 1500}
    assert as_before({"seed": 1}, ["seed", "held_out"])["held_out"] == 0


def test_what_is_held_out_is_measured_and_not_trained_on(tiny_run, tmp_path):
    sentences = make_sentences(900)
    (tmp_path / "text.txt").write_text("".join(f"{sentence}\n" for sentence in sentences))
    options = ["--eval_set=none", "--held_out=60", f"--train_file={tmp_path / 'text.txt'}", "--max_seq_length=20"]
    settings = parse([*tiny_run, *options, f"--output_dir={tmp_path / 'out'}"])
    run = build_text_run(settings, make_accelerator(settings.engine), lambda *_: None)
    held_out = run.measured.read(run.text)
    assert len(held_out) == 60
    batch = run.task.corpus.batch(np.arange(run.samples))
    ends = batch["attention_mask"].sum(1).cumsum(0).tolist()
    words = run.task.tokenizer.convert_ids_to_tokens(batch["token_ids"].tolist())
    trained = [" ".join(words[start + 1 : end - 1]) for start, end in zip([0, *ends], ends, strict=False)]
    assert sorted([*trained, *held_out]) == sorted(sentences)


def test_of_rows_the_anchors_are_measured(tmp_path):
    (tmp_path / "rows.txt").write_text("".join(f"{i // 3} {'abc'[i % 3]}\n" for i in range(3000)))
    measured = Measured.choose(1000, 50, 4000)
    rows = TextFile(tmp_path / "rows.txt")
    object.__setattr__(rows, "columns", 3)
    assert measured.read(rows) == [f"{sample} a" for sample in measured.samples]


@pytest.fixture(scope="module")
def text_of_run(text_file):
    return text_file.read_text(encoding="utf-8").splitlines()


def test_a_run_leaves_the_cosines_of_its_model(flags, tmp_path, text_of_run, capsys):
    assert main(flags) == 0
    out = tmp_path / "out"
    record = json.loads((out / "run.json").read_text())
    vectors = SentenceTransformer(str(out), device="cpu").encode(list(dict.fromkeys(text_of_run)))
    vectors = vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    cosines = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    assert record["random_pairs"]["pairs"] == len(cosines)
    tenth = record["random_pairs"]["cosines"]["0.1"]
    assert tenth == pytest.approx(np.quantile(cosines, 0.9), abs=1e-3)
    assert f"| 1 in 10 | {tenth:.3f} |" in (out / "README.md").read_text()
    assert f"{tenth:.3f} by 1 in 10" in capsys.readouterr().out
