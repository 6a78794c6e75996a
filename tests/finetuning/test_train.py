"""The training program: what it writes, prints, uploads and resumes."""

import json
import os
import re
import signal

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from hub_server import hub_server, with_hub
from model_cases import build_model
from scipy import stats
from sentence_transformers import SentenceTransformer
from sklearn.metrics.pairwise import cosine_similarity

from dystress_text.evaluation.evaluator_list import EvaluatorList
from dystress_text.evaluation.text_sets import read_sts_benchmark
from dystress_text.finetuning.measures import Measurements
from dystress_text.finetuning.task import TextTask
from dystress_text.losses.diagnosis import BINS
from dystress_text.models.static import table_of
from dystress_text.programs.train import main


def read_record(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.mark.usefixtures("with_pictures")
def test_a_run_writes_model_log_and_record(flags, tmp_path, data_dir, capsys):
    # the mean, as first tokens all but agree in this encoder: their cosines differ by less than
    # fp32 rounds
    assert main([*flags, "--pooler_type=avg"]) == 0
    out = tmp_path / "out"
    record = read_record(out)
    assert record["steps"] == 6
    assert record["corpus"]["sentences"] == 200
    printed = capsys.readouterr().out
    assert f"{record['trained']['sts_b_dev_spearman']:.2f}" in printed
    assert "Collapsed" not in printed
    log = (out / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [3, 3, 6, 6]
    assert "Similarities and temperature" in (out / "report.html").read_text()
    assert str(tmp_path) not in (out / "README.md").read_text()
    # others may read the model
    assert len({path.stat().st_mode for path in out.iterdir() if path.is_file()}) == 1

    pairs = read_sts_benchmark(data_dir / "senteval" / "STS" / "STSBenchmark" / "sts-dev.csv")
    model = SentenceTransformer(str(out), device="cpu")
    first, second = (model.encode(list(side)) for side in (pairs.first, pairs.second))
    cosines = (first.astype(np.float64) * second).sum(1)
    spearman = 100 * stats.spearmanr(cosines, pairs.scores).statistic
    assert spearman == pytest.approx(record["trained"]["sts_b_dev_spearman"], abs=0.1)
    alike = cosines[np.array(pairs.scores) > 4]
    counts = np.histogram(alike, BINS, (-1, 1))[0]
    found = record["similarities"]["after"]["alike"]
    assert np.abs(counts - found).sum() <= 2  # one may lie on an edge


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("xlm-roberta", ["--pooler_type=avg"]),
        ("deberta-v2", []),
        ("modernbert", ["--pooler_type=avg", "--views=crop", "--dropout=0"]),
        ("llama", ["--pooler_type=last"]),
    ],
)
def test_encoders_of_many_families_train(family, options, flags, tmp_path):
    folder = tmp_path / family
    before = build_transformer(family)
    before.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    more = ["--eval_set=none", f"--model_name_or_path={folder}"]
    assert main([*flags, *more, "--max_steps=2", *options]) == 0
    trained = SentenceTransformer(str(tmp_path / "out"), device="cpu")[0].model.state_dict()
    weights = {name: each for name, each in before.state_dict().items() if "pooler" not in name}
    changed = [name for name, each in weights.items() if not torch.equal(each, trained[name])]
    assert len(changed) >= 0.8 * len(weights)


@pytest.mark.parametrize("step", ["whoami", "create", "commit"])
def test_upload(step, flags, tmp_path, capsys):
    out = tmp_path / "out"
    push = [*flags, "--eval_set=none", "--max_steps=1", "--push_to_hub=me/mine"]
    with (
        hub_server() as (address, files, known),
        with_hub(address, tmp_path / "home", HF_TOKEN="hf_secret"),
    ):
        known[step] = 403
        assert main(push) == 2
        error = capsys.readouterr().err
        assert re.fullmatch(r"dystress train: error: --push_to_hub: .*403.*\n", error)
        assert out.exists() == (step != "whoami")
        assert ("made" in known) == (step == "commit")
        del known[step]
        assert main([*push, "--resume_from_checkpoint=auto"]) == 0
    uploaded = files["models/me/mine"]
    assert uploaded["model.safetensors"] == (out / "model.safetensors").read_bytes()
    assert b'SentenceTransformer("me/mine")' in uploaded["README.md"]
    assert not {"run.json", "metrics.jsonl", "report.html"} & uploaded.keys()


def test_a_signal_waits_for_the_page(flags, tmp_path, monkeypatch):
    def signalled(*arguments):
        assert callable(signal.getsignal(signal.SIGTERM)), "it would end the tests"
        os.kill(os.getpid(), signal.SIGTERM)
        after_training(*arguments)

    after_training = Measurements.after_training
    monkeypatch.setattr(Measurements, "after_training", signalled)
    assert main([*flags, "--eval_set=none", "--max_steps=1"]) == 0
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize("collapses_at", [1, 2])
def test_a_collapse_is_said_and_does_not_replace_a_saved_model(
    collapses_at, flags, tmp_path, monkeypatch, capsys
):
    """All parameters of the last layer that tell texts apart become 0 at an evaluation."""
    evaluations = []
    evaluate = TextTask.evaluate

    def collapsing(task):
        evaluations.append(1)
        if len(evaluations) >= collapses_at:
            norm = task.model.model[0].model.encoder.layer[-1].output.LayerNorm
            torch.nn.init.constant_(norm.weight, 1e-6)
            torch.nn.init.ones_(norm.bias)
        return {"score": float(len(evaluations))} | evaluate(task)

    monkeypatch.setattr(TextTask, "evaluate", collapsing)
    monkeypatch.setattr(EvaluatorList, "best_metric", lambda *_: "score")
    assert main([*flags, "--pooler_type=avg"]) == 0
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if "Collapsed" in line]
    out = tmp_path / "out"
    assert line in (out / "report.html").read_text()
    cosines = cosine_similarity(SentenceTransformer(str(out)).encode(make_sentences(20)))
    record = json.loads((out / "run.json").read_text())
    assert record["best_step"] == 3
    assert record["collapsed_step"] == 3 * collapses_at
    assert (cosines.mean() > 0.9999) == (collapses_at == 1)


def test_the_collapse_of_a_hybrids_trained_part_is_said(text_file, tmp_path, monkeypatch, capsys):
    build_model("bert", "avg").save(str(tmp_path / "dense"))

    def collapsing(task):
        table_of(task.text_model.embedder.model).data.fill_(1.0)
        return {}

    monkeypatch.setattr(TextTask, "evaluate", collapsing)
    options = [f"--train_file={text_file}", "--preset=own-text", "--max_steps=1", "--dim=8"]
    options += [f"--hybrid={tmp_path / 'dense'}", "--train_batch_size=8"]
    assert main([*options, f"--output_dir={tmp_path / 'out'}"]) == 0
    assert "Collapsed" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["dense", "lexical"])
def test_a_run_names_the_parts_of_a_hybrid(kind, text_file, tmp_path, capsys):
    build_model("bert", normalize=True).save(str(tmp_path / "dense"))
    named = {"dense": tmp_path / "dense", "lexical": "lexical"}[kind]
    dims = {"dense": 16, "lexical": 16, "table": 8}
    if kind == "lexical":
        del dims["dense"]
    out = tmp_path / "out"
    options = ["--preset=own-text", f"--train_file={text_file}", "--dim=8", "--max_steps=2"]
    more = [f"--hybrid={named}", "--train_batch_size=8", "--language=english"]
    assert main([*options, *more, f"--output_dir={out}"]) == 0
    numbers = " + ".join(f"{dim} {name}" for name, dim in dims.items())
    printed = capsys.readouterr().out
    assert f"{numbers} = {sum(dims.values())} numbers" in printed
    assert "English stems" in printed
    assert read_record(out)["hybrid"]["pivot"] == 0.25
    card = (out / "README.md").read_text(encoding="utf-8")
    assert numbers in card
    assert "p = 0.25" in card
    model = SentenceTransformer(str(out), trust_remote_code=True, device="cpu")
    assert model[0].dims == dims
    assert model[0].weights == dict.fromkeys(dims, 1) | {"table": 0.5}
    sentence = text_file.read_text().splitlines()[0]
    document = model.encode_document(sentence)
    assert document.shape == (sum(dims.values()),)
    assert np.abs(document - model.encode(sentence)).max() > 1e-2
