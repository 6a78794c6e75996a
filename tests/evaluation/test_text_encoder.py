"""Models under evaluation: loading, and embeddings before normalisation."""

import json
import shutil

import numpy as np
import pytest
import sentence_transformers
import torch
from conftest import build_tokenizer, make_sentences
from model_cases import build_model, build_static, model_of
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Router
from transformers import T5Config, T5ForConditionalGeneration

from dystress_text.errors import UserError
from dystress_text.evaluation.results import read_results
from dystress_text.evaluation.text_encoder import TextEncoder, load_model
from dystress_text.io.paths import EMBEDDED
from dystress_text.models.encoding import encode
from dystress_text.models.hybrid import new_hybrid
from dystress_text.models.loading import save_model
from dystress_text.programs.evaluate import evaluate
from dystress_text.programs.report import main as report
from dystress_text.training.accelerator import single_process_device
from dystress_text.training.run_record import BASE


@pytest.fixture
def saved(tmp_path):
    """A sentence-transformers folder."""
    save_model(build_model("bert", "avg"), tmp_path / "saved")
    return tmp_path / "saved"


def test_embeddings_that_are_not_finite_are_refused():
    embed = TextEncoder(model_of(lambda texts: torch.full((len(texts), 3), torch.nan)))
    with pytest.raises(UserError, match=r"^model: "):
        embed(["a", "b"])


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_classifiers_get_embeddings_before_normalisation(family):
    settings = {"prompts": {"own": "red house "}, "default_prompt_name": "own", "truncate_dim": 9}
    model = build_model(family, "avg", head=True, normalize=True, **settings).train()
    modules = list(model)
    texts = make_sentences(9)
    found = TextEncoder(model)(texts)
    assert list(model) == modules
    bare = SentenceTransformer(modules=list(model)[:-1], device="cpu", **settings)
    np.testing.assert_allclose(found, bare.encode(texts), rtol=0, atol=1e-5)


def test_both_kinds_of_model_give_the_same_vectors(saved, tiny_bert):
    sentences = make_sentences(30)
    one, metadata = load_model(str(saved), None)
    other, other_metadata = load_model(str(tiny_bert), "avg")
    torch.testing.assert_close(one(sentences), other(sentences), rtol=0, atol=1e-6)
    assert metadata["max_seq_length"] == 40
    assert metadata["pooler_type"] is None
    assert other_metadata["pooler_type"] == "avg"


@pytest.mark.parametrize("kind", ["CrossEncoder", "SparseEncoder", "MultiVectorEncoder"])
def test_other_models_of_sentence_transformers_are_refused(kind, tiny_bert, tmp_path):
    model = getattr(sentence_transformers, kind)(str(tiny_bert), device="cpu")
    model.save_pretrained(str(tmp_path), create_model_card=False)
    for pooler in (None, "avg"):
        with pytest.raises(UserError, match=kind):
            load_model(str(tmp_path), pooler)


def test_cross_encoders_of_earlier_releases_are_refused(tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "old")
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.Identity", "version": "4.1.0"}
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="CrossEncoder"):
        load_model(str(tmp_path / "old"), "avg")


def t5(folder):
    """An encoder of T5, as sentence-t5 and gtr have it."""
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(vocab_size=60, **sizes)).save_pretrained(folder / "t5")
    build_tokenizer().save_pretrained(folder / "t5")
    return SentenceTransformer(str(folder / "t5"), device="cpu")


def router(folder):
    routes = [list(build_model("bert", "avg")), list(build_model("distilbert", "cls"))]
    module = Router.for_query_document(*routes, default_route="document", allow_empty_key=False)
    return SentenceTransformer(modules=[module, Normalize()], device="cpu")


@pytest.mark.parametrize("build", [t5, router])
def test_encoders_of_other_kinds_are_read(build, tmp_path):
    model = build(tmp_path)
    model.save(str(tmp_path / "saved"), create_model_card=False)
    texts = make_sentences(5)
    encoder, _ = load_model(str(tmp_path / "saved"), None)
    for role in ("query", "document"):
        expected = getattr(model, f"encode_{role}")(texts)
        found = encode(encoder.model, texts, role)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "folder", "name"),
    [
        (lambda _: build_model("bert"), "", "encoder.layer.1.output.dense.weight"),
        (router, "document_0_Transformer", "transformer.layer.1.ffn.lin1.weight"),
    ],
)
def test_missing_weights_are_refused(build, folder, name, tmp_path, capfd):
    build(tmp_path).save(str(tmp_path), create_model_card=False)
    file = tmp_path / folder / "model.safetensors"
    weights = load_file(file)
    del weights[name]
    save_file(weights, file, {"format": "pt"})
    capfd.readouterr()
    with pytest.raises(UserError, match=name):
        load_model(str(tmp_path), None)
    assert capfd.readouterr() == ("", "")


def test_code_of_a_router_is_refused(tmp_path):
    router(tmp_path).save(str(tmp_path), create_model_card=False)
    config = tmp_path / "router_config.json"
    config.write_text(config.read_text().replace("sentence_transformers.base.modules", "evil"))
    with pytest.raises(UserError, match="evil"):
        load_model(str(tmp_path), None)


def test_accelerate_may_ask_for_the_cpu(saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert single_process_device().type == "cuda"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert load_model(str(saved), None)[0].model.device.type == "cpu"


def test_checksums_tell_weights_apart(tiny_bert):
    """The embedded model's file has no pooler, whose weights are drawn."""
    wiki = str(EMBEDDED / "bert-mini-wiki")
    checksums = [load_model(name, "avg")[1]["weights"] for name in (wiki, wiki, str(tiny_bert))]
    assert checksums[0] == checksums[1] != checksums[2]


def test_a_hybrid_has_its_dense_model_beside_it(tmp_path, capsys):
    """Each text is encoded once."""
    dense = build_model("bert", normalize=True, prompts={"query": "the cat saw "})
    hybrid = new_hybrid(build_static(16, small=True), dense)
    encoded = []
    hybrid[0].register_forward_hook(
        lambda *parts: encoded.append(len(parts[2]["sentence_embedding"]))
    )
    texts = make_sentences(90)
    rows = [(*pair, score) for score, pair in enumerate(zip(texts, texts[::-1], strict=True))]
    queries = [f"{text} {i}" for i, text in enumerate(texts[:9])]
    search = (queries, texts, {str(i): [str(i), str(9 * i)] for i in range(9)})
    file = tmp_path / "results.jsonl"
    figures = evaluate(hybrid, pairs=rows, retrieval=search, output=file)
    assert sum(encoded) == 90 + 90 + 9 + 90
    alone = figures[f"model: {BASE}"]
    assert alone == pytest.approx(evaluate(dense, rows, search)["model"], abs=0.02)
    assert figures["model"] != alone
    assert read_results(file)[1].dense["nDCG@10"] == alone["retrieval nDCG@10"]
    capsys.readouterr()
    assert report([str(file)]) == 0
    lines = [line for line in capsys.readouterr().out.split("\n") if BASE in line]
    shown = [line.split()[-1] for line in lines if "(" not in line]  # without intervals
    expected = [alone["pairs"], alone["retrieval nDCG@10 with BM25"]]
    assert shown == [f"{figure:.2f}" for figure in expected]
