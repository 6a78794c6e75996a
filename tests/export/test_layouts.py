"""The files of copies: names that older readers know, no paths of the machine, int8."""

import json
import os
import sys

import numpy as np
import pytest
from conftest import make_sentences
from datasets import Dataset
from model_cases import build_model, build_static
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss

import dystress_text as dt
from dystress_text.evaluation.embedder import load_model
from dystress_text.export.compatible import write_compatible, write_tokenizer
from dystress_text.export.graph import (
    FILE,
    INT8_FILE,
    graph_vectors,
    int8_loss,
    quantize,
    write_graph,
)
from dystress_text.models.loading import save_model
from dystress_text.programs.export import main

SENTENCES = list(dict.fromkeys(make_sentences(60)))


@pytest.mark.slow
def test_copies_hold_no_path_of_the_machine(tiny_bert, tmp_path):
    pytest.importorskip("onnxscript")
    text = tmp_path / "mine.txt"
    text.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    dt.train(
        preset="small",
        output_dir=tmp_path / "out",
        model_name_or_path=str(tiny_bert),
        train_file=str(text),
        eval_set=["none"],
        max_steps=2,
    )
    paths = [str(tmp_path), str(tiny_bert), sys.prefix, os.path.expanduser("~")]
    for to in ("native", "hf", "onnx"):
        assert main([str(tmp_path / "out"), "--to", to]) == 0
        for file in (tmp_path / f"out-{to}").rglob("*.*"):
            content = file.read_bytes()
            assert [path for path in paths if path.encode() in content] == []


@pytest.mark.slow
def test_int8_loss_equals_a_loop(tmp_path):
    pytest.importorskip("onnxscript")
    model = build_model("bert", "avg", normalize=True).eval()
    write_tokenizer(model.tokenizer, tmp_path)
    model[0].model.config.save_pretrained(tmp_path)
    write_graph(model, tmp_path)
    quantize(tmp_path)
    exact, rough = (graph_vectors(tmp_path, SENTENCES, file).numpy() for file in (FILE, INT8_FILE))
    cosines = (exact * rough).sum(1)
    assert 0.99 < cosines.min() < 1 - 1e-6
    kept, first = [], []
    for i in range(len(SENTENCES)):
        near = [np.argsort(-np.delete(x @ x[i], i))[:10] for x in (exact, rough)]
        kept.append(len(set(near[0]) & set(near[1])) / 10)
        first.append(near[0][0] == near[1][0])
    said = int8_loss(tmp_path, SENTENCES)
    assert f"cosine {cosines.mean():.4f}, at least {cosines.min():.4f}" in said
    assert (
        f"nearest {100 * np.mean(kept):.1f} % are kept, of the nearest {100 * np.mean(first):.1f} %"
        in said
    )


@pytest.mark.parametrize("kind", ["transformer", "table"])
def test_model_continued_by_sentence_transformers_is_copied(kind, tmp_path, capsys):
    """In fp32, from a saved model to a saved model by sentence-transformers alone."""
    if kind == "table":
        save_model(build_static(normalize=True), tmp_path / "out")
    else:
        save_model(build_model("bert", "avg", normalize=True), tmp_path / "out")
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    data = Dataset.from_dict({"anchor": SENTENCES[:8], "positive": SENTENCES[8:16]})
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "log"), max_steps=2, per_device_train_batch_size=4, learning_rate=1e-2,
        report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    before = model.encode(SENTENCES)
    SentenceTransformerTrainer(
        model, arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model)
    ).train()
    model.save(str(tmp_path / "continued"))
    assert np.abs(model.encode(SENTENCES) - before).max() > 1e-3
    assert main([str(tmp_path / "continued"), "--to", "native"]) == 0, capsys.readouterr().err
    again = SentenceTransformer(str(tmp_path / "continued-native"), device="cpu")
    np.testing.assert_allclose(again.encode(SENTENCES), model.encode(SENTENCES), rtol=0, atol=1e-6)


def test_native_copy_has_the_names_of_5_1(tmp_path, recwarn):
    model = build_model("bert", "avg_top2", head=True, normalize=True)
    write_compatible(model, tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    kinds = ["Transformer", "WeightedLayerPooling", "Pooling", "Dense", "Normalize"]
    assert [module["type"] for module in modules] == [
        f"sentence_transformers.models.{kind}" for kind in kinds
    ]
    settings = [
        json.loads((tmp_path / module["path"] / "config.json").read_text())
        for module in modules[2:4]
    ]
    assert settings[0].keys() >= {"word_embedding_dimension", "pooling_mode_mean_tokens"}
    assert settings[1].keys() == {"in_features", "out_features", "bias", "activation_function"}
    assert "TokenizersBackend" not in (tmp_path / "tokenizer_config.json").read_text()
    assert not list(tmp_path.rglob("*.bin"))
    copy = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(copy.encode(SENTENCES), model.encode(SENTENCES), rtol=0, atol=1e-6)
    assert [str(w.message) for w in recwarn if "sentence_transformers" in str(w.filename)] == []


def test_default_prompt_of_copies(tmp_path):
    prompts = {"prompts": {"own": "red house "}, "default_prompt_name": "own"}
    model = build_model("bert", "avg", **prompts)
    save_model(model, tmp_path / "out")
    for to in ("native", "hf"):
        assert main([str(tmp_path / "out"), "--to", to]) == 0
    copy = SentenceTransformer(str(tmp_path / "out-native"), device="cpu")
    np.testing.assert_allclose(copy.encode(SENTENCES), model.encode(SENTENCES), rtol=0, atol=1e-6)
    bare = load_model(str(tmp_path / "out-hf"), "avg")[0]
    texts = [f"red house {text}" for text in SENTENCES]
    np.testing.assert_allclose(bare(texts), model.encode(SENTENCES), rtol=0, atol=1e-5)
