"""From a file to a verdict, with a tiny model; what is refused; what is written."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from conftest import make_sentences, reset_accelerator
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from dystress_text.adapt import adapt, main
from dystress_text.adaptation import run
from dystress_text.adaptation.settings import AdaptSettings, Recipe
from dystress_text.adaptation.verdict import Outcome, decide
from dystress_text.errors import UserError
from dystress_text.training.run_folder import TEXT_PROGRAM, write_record

QUICK = Recipe(alphas=(0.5, 1.0), evaluations=2)


@pytest.fixture(autouse=True)
def few_general_pairs(monkeypatch):
    words = make_sentences(60, seed=8)
    pairs = tuple(zip(words[:30], words[30:], strict=True))
    monkeypatch.setattr("dystress_text.adaptation.probes.general_pairs", lambda: pairs)


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    file = tmp_path_factory.mktemp("mine") / "mine.txt"
    file.write_text("\n".join(make_sentences(520, seed=5)))
    return file


def settings(mine, tiny_bert, output, **more):
    quick = {"max_steps": 4, "train_batch_size": 16, "max_seq_length": 16, "learning_rate": 1e-2}
    return AdaptSettings(file=str(mine), base=str(tiny_bert), output_dir=str(output), **quick | more)


def test_without_a_win_the_base_is_written(mine, tiny_bert, tmp_path, capsys):
    """Its weights bit for bit, its vectors as transformers computes them; a second run says the same."""
    output = tmp_path / "out"
    found = adapt(settings(mine, tiny_bert, output), QUICK)
    said = capsys.readouterr().out
    assert found["verdict"] in ("TIE", "WORSE")  # random words have no neighbours and no halves
    assert f"{found['verdict']}: " in said
    assert "is the base, unchanged" in said
    assert json.loads((output / "verdict.json").read_text()) == json.loads(json.dumps(found))
    kept, base = load_file(output / "model.safetensors"), load_file(tiny_bert / "model.safetensors")
    assert all(torch.equal(tensor, base[name]) for name, tensor in kept.items())
    tokenizer, encoder = AutoTokenizer.from_pretrained(tiny_bert), AutoModel.from_pretrained(tiny_bert).eval()
    with torch.no_grad():
        states = encoder(**tokenizer("a cat sat on the mat", return_tensors="pt")).last_hidden_state
    vector = SentenceTransformer(str(output), device="cpu").encode("a cat sat on the mat", convert_to_tensor=True)
    torch.testing.assert_close(vector, states[0].mean(dim=0), rtol=0, atol=1e-6)
    split = found["split"]
    assert split["trained_on"] + split["chosen_on"] + split["judged_on"] + split["left_out"] == 520
    assert found["chosen"]["alpha"] in (0.5, 1.0)
    assert found["chosen"]["step"] in (2, 4)
    assert {"verdict.json", "run.json", "metrics.jsonl", "README.md", "random_pairs.json", "report.html"} <= {
        path.name for path in output.iterdir()
    }
    assert not (output / ".training").exists()
    assert f"## Verdict: {found['verdict']}" in (output / "README.md").read_text()
    assert "trained and chose nothing" in (output / "report.html").read_text()
    assert "differs from the row" not in (output / "report.html").read_text()
    reset_accelerator()
    again = adapt(settings(mine, tiny_bert, tmp_path / "again", keep_anyway=True), QUICK)
    changed = {"shipped": "base", "about": found["about"]}
    assert json.loads(json.dumps(again)) | changed == json.loads(json.dumps(found))
    assert "though it did not win (--keep_anyway)" in again["about"]
    reset_accelerator()
    with pytest.raises(UserError, match=r"^--output_dir: .* is not empty"):
        adapt(settings(mine, tiny_bert, output), QUICK)


def test_after_a_win_the_adapted_model_is_written(mine, tiny_bert, tmp_path, monkeypatch):
    """With the weights between the base's and those of the chosen step. A run that was stopped goes on."""
    monkeypatch.setattr(run, "decide", lambda compared, bars: replace(decide(compared, bars), outcome=Outcome.WIN))
    trained = {}

    def stop(*_):
        raise KeyboardInterrupt

    def keep(base, tuned, alphas, chooser):
        trained.update({name: tensor.clone() for name, tensor in tuned.model.transformer.state_dict().items()})
        points = choose(base, tuned, (0.5,), chooser)
        return points

    choose = run.choose_share
    monkeypatch.setattr(run, "choose_share", stop)
    with pytest.raises(KeyboardInterrupt):
        adapt(settings(mine, tiny_bert, tmp_path / "out"), QUICK)
    assert not (tmp_path / "out" / "modules.json").exists()  # no model that is not judged
    reset_accelerator()
    monkeypatch.setattr(run, "choose_share", keep)
    found = adapt(settings(mine, tiny_bert, tmp_path / "out", resume_from_checkpoint="yes"), QUICK)
    assert not (tmp_path / "out" / ".training").exists()
    assert (found["verdict"], found["shipped"]) == ("WIN", "adapted")
    written, base = load_file(tmp_path / "out" / "model.safetensors"), load_file(tiny_bert / "model.safetensors")
    assert any(not torch.equal(written[name], base[name]) for name in base)
    for name, tensor in written.items():
        torch.testing.assert_close(tensor, (base[name] + trained[name]) / 2, rtol=0, atol=1e-6)


def test_what_judges_chose_and_trained_nothing(mine, tiny_bert, tmp_path):
    asked = run.Questions.read(settings(mine, tiny_bert, tmp_path))
    trained = {asked.sentences[i] for i in asked.split.train}
    parts = [set(asked.choosing.sentences), set(asked.judging.sentences), trained]
    assert len(set().union(*parts)) == sum(len(part) for part in parts) >= 500
    assert 50 < len(parts[1]) < 150


SAME = "\n".join(["the cat sat on the mat", "The cat sat on the mat!"] * 300)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n".join(make_sentences(300)), "FILE: at least 500 sentences are needed, got 300"),
        (SAME, "FILE: of 600 sentences only 1 are distinct"),
        ("\n".join(f"слово номер {i} и ещё одно" for i in range(600)), "--base: its tokenizer does not know the lang"),
        (
            "\n".join(f"word{i} is {i * 7919 % 10007}" for i in range(600)),
            "FILE: the sentences are too short to measure on",
        ),
        (None, "FILE: no file"),
    ],
)
def test_text_that_is_refused(text, message, tiny_bert, tmp_path, capsys):
    file = tmp_path / "mine.txt"
    if text is not None:
        file.write_text(text)
    words = [str(file), "--base", str(tiny_bert), "--output_dir", str(tmp_path / "out"), "--max_seq_length", "16"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dystress adapt: error: {message}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [(), ("--overwrite_output_dir",), ("--resume_from_checkpoint", "auto")])
@pytest.mark.parametrize("inside", [".", "model"])
def test_a_base_in_the_output_folder_stays(inside, words, mine, tiny_bert, tmp_path, capsys):
    output = tmp_path / "out"
    shutil.copytree(tiny_bert, output / inside)
    write_record(output, {"program": TEXT_PROGRAM})
    before = {file: file.read_bytes() for file in output.rglob("*") if file.is_file()}
    line = [str(mine), "--base", str(output / inside), "--output_dir", str(output), "--max_seq_length", "16", *words]
    assert main(line) == 2
    assert capsys.readouterr().err.startswith(f"dystress adapt: error: --output_dir: {str(output)!r} holds the base")
    assert {file: file.read_bytes() for file in output.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("base", "words", "message"),
    [
        ("no/such", (), "--base: "),
        ("with code", (), "--base: "),
        ("", ("--pooler_type", "max"), "--pooler_type: unknown pooler 'max'"),
        ("", ("--learning_rate", "0"), "--learning_rate: must be positive"),
        ("", ("--max_steps", "0"), "--max_steps: must be at least 1"),
        ("", ("--max_seq_length", "64"), "--max_seq_length: this encoder reads at most 40 tokens"),
    ],
)
def test_bases_and_options_that_are_refused(base, words, message, mine, tiny_bert, tmp_path, capsys):
    if base == "with code":
        base = str(tmp_path)
        own = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.Own"}}
        (tmp_path / "config.json").write_text(json.dumps(own))
        (tmp_path / "own.py").write_text("raise SystemExit('this must not run')\n")
    output = tmp_path / "out"
    line = [str(mine), "--base", base or str(tiny_bert), "--output_dir", str(output), "--max_seq_length", "16", *words]
    assert main(line) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dystress adapt: error: {message}")
    assert "--model_name_or_path" not in said
    assert "--train_file" not in said
    assert not output.exists()
    reset_accelerator()
