"""What is in the files of models and of their copies, for readers of every age: lists, lengths,
places, int8.
"""

import json
import os
import sys
from pathlib import Path

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
from dystress_text.models.static import embedded_tokenizer, learn_tokenizer, pretrained_tokenizer
from dystress_text.programs.export import main

SENTENCES = list(dict.fromkeys(make_sentences(60)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transformer", "table"])
def test_no_file_of_a_copy_has_a_path_of_the_machine(
    kind, tiny_bert, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("".join(f"{text}\n" for text in SENTENCES))
    settings = {"train_file": str(Path("mine.txt").resolve()), "eval_set": ["none"], "max_steps": 2}
    if kind == "table":
        dt.train(preset="own-text", output_dir="out", dim=8, **settings)
    else:
        dt.train(preset="small", output_dir="out", model_name_or_path=str(tiny_bert), **settings)
    layouts = ["native", "onnx", *["hf"] * (kind == "transformer")]
    for to in layouts:
        quantized = ["--quantize=int8"] * (to == "onnx")
        assert main([str(Path("out").resolve()), "--to", to, *quantized]) == 0, (
            capsys.readouterr().err
        )
    places = {
        str(tmp_path),
        str(tiny_bert),
        sys.prefix,
        os.path.expanduser("~"),
        str(Path(dt.__file__).parents[1]),
    }
    files = [file for to in layouts for file in Path(f"out-{to}").rglob("*") if file.is_file()]
    assert len(files) > 10, files
    assert [
        (str(f), place) for f in files for place in places if place.encode() in f.read_bytes()
    ] == []


@pytest.mark.parametrize("kind", ["word pieces", "merges"])
def test_a_tokenizer_has_the_files_that_older_readers_take(kind, tmp_path):
    pieces = embedded_tokenizer() if kind == "word pieces" else learn_tokenizer(SENTENCES)
    tokenizer = pretrained_tokenizer(pieces)
    tokenizer.init_kwargs["max_length"] = 128  # what a call left, as in all-MiniLM-L6-v2
    tokenizer(SENTENCES[0], truncation=True, max_length=5)
    write_tokenizer(tokenizer, tmp_path)
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    assert whole["truncation"] is None
    assert "max_length" not in json.loads((tmp_path / "tokenizer_config.json").read_text())
    special = json.loads((tmp_path / "special_tokens_map.json").read_text())
    assert special["pad_token"] == tokenizer.pad_token
    if kind == "word pieces":
        lines = (tmp_path / "vocab.txt").read_text().splitlines()
        assert tokenizer.convert_tokens_to_ids(lines) == list(range(len(tokenizer)))
    else:
        assert all(isinstance(pair, str) for pair in whole["model"]["merges"])
        assert not (tmp_path / "vocab.txt").exists()
        assert len(whole["model"]["merges"]) > 10


@pytest.mark.slow
def test_what_int8_loses_is_counted_as_by_hand(tmp_path):
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


@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--to", "hf", "--quantize", "int8", "--text", "mine.txt"], "--quantize: is of --to onnx"),
     (["--to", "onnx", "--quantize", "int4"], "--quantize: no 'int4' (did you mean int8?); known are int8"),
     (["--to", "onnx", "--quantize", "int8"], "--text: a copy in int8 is compared on a text: name a file"),
     (["--to", "onnx", "--quantize", "int8", "--text", "nope.txt"], "--text: "),
     (["--to", "onnx", "--quantize", "int8", "--text", "one.txt"], "--text: 'one.txt' has 1 text to compare")],
)  # fmt: skip
def test_an_int8_copy_that_cannot_be_made_is_refused(flags, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_model(build_static(), tmp_path / "out")
    Path("mine.txt").write_text("one\ntwo\n")
    Path("one.txt").write_text("one\n")
    assert main(["out", *flags]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"dystress export: error: {said}")
    assert not Path("out-onnx").exists()


@pytest.mark.parametrize("kind", ["transformer", "table"])
def test_what_the_other_trainer_continued_is_copied(kind, tmp_path, capsys):
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


@pytest.mark.parametrize("normalize", [None, False])
def test_a_new_model_ends_with_unit_length_unless_it_is_told_not_to(
    normalize, tiny_bert, text_file, tmp_path
):
    more = {} if normalize is None else {"normalize": normalize}
    run = dt.train(
        preset="small", model_name_or_path=str(tiny_bert), train_file=str(text_file), eval_set=["none"], max_steps=1,
        output_dir=str(tmp_path / "out"), **more,
    )  # fmt: skip
    modules = json.loads((run.folder / "modules.json").read_text())
    assert ("Normalize" in modules[-1]["type"]) == (normalize is None)
    lengths = np.linalg.norm(
        SentenceTransformer(str(run.folder), device="cpu").encode(SENTENCES), axis=1
    )
    assert bool(np.allclose(lengths, 1, atol=1e-5)) == (normalize is None)


def test_transfer_is_measured_on_vectors_before_they_get_unit_length(tmp_path):
    model = build_model("bert", "avg", normalize=True)
    save_model(model, tmp_path / "out")
    vectors = load_model(str(tmp_path / "out"), None)[0](SENTENCES)
    bare = SentenceTransformer(modules=list(model)[:-1], device="cpu")
    np.testing.assert_allclose(vectors, bare.encode(SENTENCES), rtol=0, atol=1e-5)


def test_a_native_copy_has_the_names_of_5_1(tmp_path, recwarn):
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


def test_a_default_prompt_is_the_callers_part_in_a_copy(tmp_path):
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
