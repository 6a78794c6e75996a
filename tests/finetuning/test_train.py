"""The training program: what it writes and prints, and its message for each kind of bad input."""

import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer
from hub_server import hub_server, with_hub
from scipy import stats
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from trainer_cases import interrupt

from dystress_text.evaluation.embedder import with_pooler
from dystress_text.evaluation.readers import read_sts_benchmark
from dystress_text.finetuning.measures import RunMeasures
from dystress_text.losses.diagnosis import BINS
from dystress_text.models.embedder import encode
from dystress_text.models.loading import load_encoder
from dystress_text.programs.train import main


@pytest.mark.usefixtures("with_pictures")
def test_a_run_writes_model_log_and_record(flags, tmp_path, data_dir, capsys):
    # the mean, as first tokens all but agree in this encoder: their cosines differ by less than
    # fp32 rounds
    assert main([*flags, "--pooler_type=avg"]) == 0
    out = tmp_path / "out"
    record = json.loads((out / "run.json").read_text())
    printed = capsys.readouterr().out
    assert (record["steps"], record["corpus"]["sentences"]) == (6, 200)
    assert f"{record['trained']['sts_b_dev_spearman']:.2f}" in printed
    log = (out / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [3, 3, 6, 6]
    assert "Similarities and temperature" in (out / "report.html").read_text()
    assert str(tmp_path) not in (out / "README.md").read_text()
    # others may read the model
    assert len({path.stat().st_mode for path in out.iterdir() if path.is_file()}) == 1

    pairs = read_sts_benchmark(data_dir / "senteval" / "STS" / "STSBenchmark" / "sts-dev.csv")
    model = SentenceTransformer(str(out), device="cpu")
    vectors = model.encode(pairs.sentences, convert_to_tensor=True)
    first, second = (model.encode(list(texts)) for texts in (pairs.first, pairs.second))
    cosines = (first.astype(np.float64) * second).sum(1)
    spearman = 100 * stats.spearmanr(cosines, pairs.scores).statistic
    assert spearman == pytest.approx(record["trained"]["sts_b_dev_spearman"], abs=0.1)
    row = dict(zip(pairs.sentences, vectors.double(), strict=True))
    scored = zip(pairs.first, pairs.second, pairs.scores, strict=True)
    alike = [
        torch.cosine_similarity(row[a], row[b], dim=0).item() for a, b, score in scored if score > 4
    ]
    counts = np.histogram(alike, BINS, (-1, 1))[0]
    assert (
        np.abs(counts - record["similarities"]["after"]["alike"]).sum() <= 2
    )  # one may lie on an edge


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("xlm-roberta", ["--pooler_type=avg"]),
        ("mpnet", []),
        ("deberta-v2", ["--pooler_type=avg"]),
        ("electra", []),
        ("modernbert", ["--views=crop", "--dropout=0"]),
        ("llama", ["--pooler_type=last"]),
    ],
)
def test_encoders_of_many_families_train_and_load(family, options, flags, tmp_path, data_dir):
    folder = tmp_path / family
    build_transformer(family).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    more = [
        "--max_steps=5",
        "--eval_steps=0",
        f"--model_name_or_path={folder}",
        "--learning_rate=1e-2",
    ]
    assert main([*flags, *more, *options]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    sentences = read_sts_benchmark(
        data_dir / "senteval" / "STS" / "STSBenchmark" / "sts-dev.csv"
    ).sentences
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    encoder = load_encoder(str(tmp_path / "out"))
    alone = with_pooler(encoder, record["settings"]["pooler_type"])
    alone.append(Normalize())  # new models end with it
    theirs = model.encode(sentences, convert_to_tensor=True)
    torch.testing.assert_close(encode(alone, sentences), theirs, rtol=0, atol=1e-5)
    assert (record["steps"], "cls" in record["untrained"]) == (
        5,
        family != "llama",
    )  # whose first token sees no other
    trained, before = model[0].model.state_dict(), build_transformer(family).state_dict()
    changed = [name for name, weights in before.items() if not torch.equal(weights, trained[name])]
    assert len(changed) >= 0.8 * sum("pooler" not in name for name in before)


@pytest.mark.parametrize(
    ("step", "status", "left"),
    [("", 0, ""), ("create", 401, "Nothing"), ("commit", 403, "The model")],
)
def test_upload(step, status, left, flags, tmp_path, capsys):
    out, push = tmp_path / "out", ["--eval_set=none", "--max_steps=1", "--push_to_hub=me/mine"]
    with (
        hub_server() as (address, files, known),
        with_hub(address, tmp_path / "home", HF_TOKEN="hf_secret"),
    ):
        known[step] = status
        assert main([*flags, *push]) == (2 if step else 0)
    assert out.exists() == (step != "create")
    reason = f".*{status}.* {left} .*"
    said = f"dystress train: error: --push_to_hub: {reason}\n"
    assert re.fullmatch(said if step else "", capsys.readouterr().err)
    if not step:
        uploaded = files["models/me/mine"]
        assert uploaded["model.safetensors"] == (out / "model.safetensors").read_bytes()
        assert b'SentenceTransformer("me/mine")' in uploaded["README.md"]
        assert not {"run.json", "metrics.jsonl", "report.html"} & uploaded.keys()


def test_a_signal_waits_for_the_page(flags, tmp_path, monkeypatch):
    def signalled(*arguments):
        assert callable(signal.getsignal(signal.SIGTERM)), "it would end the tests"
        os.kill(os.getpid(), signal.SIGTERM)
        after_training(*arguments)

    after_training = RunMeasures.after_training
    monkeypatch.setattr(RunMeasures, "after_training", signalled)
    assert main(flags) == 0
    assert (tmp_path / "out" / "report.html").is_file()


def test_resume_refuses_another_text_or_tokenizer(flags, tmp_path, tiny_bert, text_file, capsys):
    model = shutil.copytree(tiny_bert, tmp_path / "model")
    mine = [
        *(flag for flag in flags if "_file" not in flag),
        f"--model_name_or_path={model}",
        "--save_steps=4",
    ]
    resume = [*mine, "--resume_from_checkpoint"]
    other, copy, file = tmp_path / "other.txt", tmp_path / "copy.txt", model / "tokenizer.json"
    other.write_text(text_file.read_text() + "one more sentence\n")
    copy.write_text(text_file.read_text())
    assert main([*mine, f"--train_file={text_file}"]) == 0
    interrupt(tmp_path / "out")
    assert main([*resume, f"--train_file={other}"]) == 2
    assert "training data was" in capsys.readouterr().err
    assert main([*resume, f"--train_file={copy}"]) == 0
    interrupt(tmp_path / "out")
    file.write_text(file.read_text().replace('"lowercase": true', '"lowercase": false'))
    assert main([*resume, f"--train_file={copy}"]) == 2
    assert re.search(
        r"training data was (\w+), tokenizer \w+, is \1, tokenizer", capsys.readouterr().err
    )
