"""What a run on plain text trains on, and the samples that its page shows."""

import json
from html import escape

import pytest
from conftest import make_sentences
from model_cases import build_model
from sentence_transformers import SentenceTransformer
from sklearn.metrics.pairwise import cosine_similarity

from dystress_text.programs.train import main

TEXTS = [f"<{i}> {sentence} & {i % 7} birds" for i, sentence in enumerate(make_sentences(80))]


@pytest.fixture
def command(tmp_path):
    (tmp_path / "mine.txt").write_text("\n".join(TEXTS) + "\n")
    options = ["--preset=own-text", f"--train_file={tmp_path / 'mine.txt'}", "--dim=16"]
    return [*options, "--train_batch_size=8", f"--output_dir={tmp_path / 'out'}"]


def test_all_texts_are_trained_on(command, tmp_path, capsys):
    assert main([*command, "--num_train_epochs=1", "--max_steps=-1"]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["steps"] == 10
    assert "held_out" not in record
    assert "held out" not in capsys.readouterr().out


def test_the_page_shows_the_nearest_texts_of_each_model(command, tmp_path):
    build_model("bert", "avg").save(str(tmp_path / "dense"))
    assert main([*command, f"--hybrid={tmp_path / 'dense'}", "--max_steps=9"]) == 0
    out = tmp_path / "out"
    samples = json.loads((out / "run.json").read_text())["samples"]
    assert list(samples) == ["base model alone", "untrained", "trained"]
    folders = {"base model alone": tmp_path / "dense", "trained": out}
    chosen = {}
    for name, folder in folders.items():
        model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
        cosines = cosine_similarity(model.encode(TEXTS))
        for text, *nearest in samples[name]:
            own = TEXTS.index(text)
            found = [cosines[own, TEXTS.index(each)] for each in nearest]
            others = [cosine for i, cosine in enumerate(cosines[own]) if i != own]
            assert found == pytest.approx(sorted(others, reverse=True)[:3], abs=1e-5)
        chosen[name] = [text for text, *_ in samples[name]]
    assert len({*chosen["trained"]}) == 12
    assert chosen["trained"] == chosen["base model alone"]
    page = (out / "report.html").read_text()
    for of_model in samples.values():
        assert all(escape(text) in page for row in of_model for text in row)


@pytest.mark.parametrize("more", ["--no_samples", "--supervised"])
def test_a_page_without_samples(command, tmp_path, more):
    rows = [f"{text}\t{text}" for text in TEXTS]
    (tmp_path / "mine.tsv").write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    if more == "--supervised":
        command.append(f"--train_file={tmp_path / 'mine.tsv'}")
    assert main([*command, "--max_steps=2", more]) == 0
    for file in ("run.json", "report.html", "README.md"):
        content = (tmp_path / "out" / file).read_text()
        assert not any(text in content or escape(text) in content for text in TEXTS)
