"""A head that is kept: the same vectors in evaluation, in every layout and after reading back."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.saved_model import load_saved, read_saved
from dystress_text.evaluation.embedder import load_model
from dystress_text.evaluation.readers import read_sts_benchmark
from dystress_text.evaluation.sts import evaluate_sts
from dystress_text.export.__main__ import main as export
from dystress_text.train import main

SENTENCES = [*make_sentences(7), " ".join(["cat"] * 100)]  # the last one is longer than the 40 positions
CASES = [
    ("bert", "cls", False), ("bert", "avg_top2", True), ("roberta", "avg", False), ("distilbert", "cls", True),
    ("mpnet", "avg_first_last", False), ("modernbert", "cls", False),
]  # fmt: skip


def with_head(family="bert", pooler="cls", normalize=False):
    encoder = SentenceEncoder(build_transformer(family), pooler, True, keep_head=True, normalize=normalize)
    torch.nn.init.normal_(encoder.head.weight)  # far from the identity and from 0
    torch.nn.init.normal_(encoder.head.bias)
    return encoder


def truth(encoder, tokenizer):
    """By hand, in fp64, from the vectors without a head."""
    bare = encoder.encode_by_pooler(SENTENCES, tokenizer, [encoder.pooler_type])[encoder.pooler_type].double().numpy()
    weight, bias = (parameter.detach().double().numpy() for parameter in encoder.head.parameters())
    vectors = np.tanh(bare @ weight.T + bias)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if encoder.normalize else vectors


def close(vectors, expected, atol=1e-5):
    np.testing.assert_allclose(np.asarray(vectors), expected, rtol=0, atol=atol)


@pytest.mark.parametrize(("family", "pooler", "normalize"), CASES)
def test_a_kept_head_is_part_of_the_model_everywhere(family, pooler, normalize, tmp_path, tokenizer):
    encoder = with_head(family, pooler, normalize)
    expected = truth(encoder, tokenizer)
    close(encoder.encode(SENTENCES, tokenizer, batch_size=3), expected)
    batch = tokenizer(SENTENCES[:7], padding=True, return_tensors="pt")
    with torch.no_grad():
        close(encoder.eval()(batch["input_ids"][batch["attention_mask"].bool()], batch["attention_mask"]), expected[:7])
    encoder.save(tmp_path / "out", tokenizer)
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    close(saved.encode(SENTENCES), expected)
    assert saved.max_seq_length == 40
    again, its_tokenizer = load_saved(tmp_path / "out")
    close(again.encode(SENTENCES, its_tokenizer), expected)
    close(load_model(str(tmp_path / "out"), None)[0](SENTENCES), expected)
    assert export([str(tmp_path / "out"), "--to", "legacy"]) == 0
    close(SentenceTransformer(str(tmp_path / "out-legacy"), device="cpu").encode(SENTENCES), expected)
    assert read_saved(tmp_path / "out-legacy") == read_saved(tmp_path / "out")
    assert export([str(tmp_path / "out-legacy"), "--to", "native", "--output", str(tmp_path / "again")]) == 0
    close(SentenceTransformer(str(tmp_path / "again"), device="cpu").encode(SENTENCES), expected)


def test_a_head_is_dropped_unless_it_is_kept(tmp_path, tokenizer):
    encoder = SentenceEncoder(build_transformer("bert"), "cls")
    encoder.save(tmp_path, tokenizer)
    assert read_saved(tmp_path).dense is None
    assert len(SentenceTransformer(str(tmp_path), device="cpu")) == 2
    assert not SentenceEncoder(build_transformer("bert"), "avg", keep_head=True).keep_head  # there is none


def test_the_checksum_knows_the_head(tmp_path, tokenizer):
    encoder = with_head()
    encoder.save(tmp_path / "one", tokenizer)
    with torch.no_grad():
        encoder.head.bias[3] += 1e-3
    encoder.save(tmp_path / "other", tokenizer)
    assert load_model(str(tmp_path / "one"), None)[1].sha256 != load_model(str(tmp_path / "other"), None)[1].sha256


@pytest.mark.parametrize(("family", "normalize"), [("bert", False), ("roberta", True), ("mpnet", False)])
def test_the_copy_for_transformers_has_the_head_in_its_pooler(family, normalize, tmp_path, tokenizer):
    encoder = with_head(family, "cls", normalize)
    expected = truth(encoder, tokenizer)
    encoder.save(tmp_path / "out", tokenizer)
    assert export([str(tmp_path / "out"), "--to", "hf"]) == 0
    copy = tmp_path / "out-hf"
    its_tokenizer = AutoTokenizer.from_pretrained(copy)
    batch = its_tokenizer(SENTENCES, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        vectors = AutoModel.from_pretrained(copy).eval()(**batch).pooler_output
    close(torch.nn.functional.normalize(vectors) if normalize else vectors, expected)
    card = (copy / "README.md").read_text()
    assert "embeddings = output.pooler_output" in card
    assert "then a dense layer with tanh" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    found = {"given": SENTENCES}
    code = code.replace('"path/to/this/folder"', repr(str(copy)))
    exec(re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE), found)
    close(found["embeddings"], expected)
    said = json.loads((copy / "config.json").read_text())["sentence_embedding"]
    assert (said["head"], said["normalize"]) == ("pooler_output", normalize)
    if not normalize:  # SimCSE's layout
        close(load_model(str(copy), "pooler")[0](SENTENCES), expected)


@pytest.mark.parametrize(
    ("family", "pooler", "said"), [("bert", "avg", "mean over"), ("distilbert", "cls", "no pooler")]
)
def test_a_head_that_no_pooler_can_hold(family, pooler, said, tmp_path, tokenizer, capsys):
    with_head(family, pooler).save(tmp_path / "out", tokenizer)
    assert export([str(tmp_path / "out"), "--to", "hf"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "native and onnx can hold it" in error
    assert not (tmp_path / "out-hf").exists()


@pytest.mark.slow  # torch's exporter
def test_the_onnx_graph_has_the_head(tmp_path, tokenizer):
    import onnxruntime

    encoder = with_head("bert", "avg", normalize=True)
    expected = truth(encoder, tokenizer)
    encoder.save(tmp_path / "out", tokenizer)
    assert export([str(tmp_path / "out"), "--to", "onnx"]) == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "out-onnx" / "model.onnx"))
    its_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out-onnx")
    batch = its_tokenizer(SENTENCES, padding=True, truncation=True, return_tensors="np")
    inputs = {name: batch[name].astype("int64") for name in ("input_ids", "attention_mask")}
    close(session.run(None, inputs)[0], expected)


def rows(folder):
    file = folder / "rows.csv"
    sentences = make_sentences(60)
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([("sent0", "sent1"), *zip(sentences[:30], sentences[30:], strict=True)])
    return str(file)


@pytest.mark.parametrize(
    ("supervised", "options", "kept"),
    [(False, (), False), (False, ("--mlp_only_train", "no"), True), (False, ("--mlp_only_train",), False),
     (True, (), True), (True, ("--mlp_only_train",), False), (True, ("--pooler_type=avg",), False)],
)  # fmt: skip
def test_training_keeps_the_head_as_simcse_does(supervised, options, kept, flags, data_dir, tmp_path, capsys):
    given = flags
    if supervised:
        given = [
            *(f for f in flags if not f.startswith("--train_file")),
            "--supervised",
            f"--train_file={rows(tmp_path)}",
        ]
    assert main([*given, *options]) == 0
    out = tmp_path / "out"
    assert (read_saved(out).dense is not None) == kept
    assert ("the head is new and is kept" in capsys.readouterr().out) == kept
    record = json.loads((out / "run.json").read_text())
    head = None if "--pooler_type=avg" in options else {"starts": "new", "kept": kept}
    assert record["head"] == head
    pairs = read_sts_benchmark(data_dir / "senteval" / "STS" / "STSBenchmark" / "sts-dev.csv")
    encoder, tokenizer = load_saved(out)
    result = evaluate_sts(pairs, lambda s: encoder.encode(s, tokenizer))
    assert result.spearman == pytest.approx(record["trained"]["sts_b_dev_spearman"], abs=1e-9)
    close(SentenceTransformer(str(out), device="cpu").encode(SENTENCES), encoder.encode(SENTENCES, tokenizer))
    assert ("then a dense layer with tanh" in (out / "README.md").read_text()) == kept


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--mlp_only_train=no", "--pooler_type=avg"], "--mlp_only_train no: there is no head to keep"),
     (["--mlp_only_train=no", "--mlp_head=no"], "--mlp_only_train no: there is no head to keep"),
     (["--mlp_init=pooler", "--mlp_head=no"], "--mlp_init: there is no head"),
     (["--mlp_init=mine"], "--mlp_init")],
)  # fmt: skip
def test_options_of_a_head_that_is_not_there(options, said, flags, tmp_path, capsys):
    assert main([*flags, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


def test_a_damaged_head_is_one_line(tmp_path, capsys):
    with_head().save(tmp_path / "out", build_tokenizer())
    weights = tmp_path / "out" / "2_Dense" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:40])
    assert export([str(tmp_path / "out"), "--to", "hf"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is damaged: the head in 2_Dense" in line
