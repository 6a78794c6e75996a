"""Hybrid models: both parts in one saved model, which loads without this package, and one graph."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, make_sentences
from model_cases import build_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch.nn.functional import normalize
from transformers import AutoTokenizer

from dystress_text.errors import ParameterError
from dystress_text.models.hybrid import embed_padded, load_dense, onnx_files
from dystress_text.models.hybrid_module import FILES, FILES_OF_0_2
from dystress_text.models.loading import load_sentence_transformer, save_model
from dystress_text.programs.export import main as export
from dystress_text.programs.train import main

TEXTS = [
    *make_sentences(9),
    "",
    "[SEP] a cat [CLS] ran",
    " ".join(["cat dog"] * 60),
]  # the last one is longer than the 40 positions
PLAIN = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dystress_text":
            raise ImportError(name)
sys.meta_path.insert(0, Without())
import numpy, json
from sentence_transformers import SentenceTransformer
folder, texts, file, again = sys.argv[1:]
model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
numpy.save(file, model.encode(json.loads(texts)))
model.save(again)
numpy.testing.assert_array_equal(
    SentenceTransformer(again, trust_remote_code=True, device="cpu").encode(json.loads(texts)), numpy.load(file)
)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of dense models, by kind."""
    place = tmp_path_factory.mktemp("models")
    save_model(build_model("bert", "avg", normalize=True), place / "bert")
    prompts = {"query": "the cat saw ", "other": "red house "}
    bert = SentenceTransformer(
        str(place / "bert"), device="cpu", prompts=prompts, default_prompt_name="other"
    )
    bert.save(str(place / "prompts"), create_model_card=False)
    static = StaticEmbedding(build_tokenizer().backend_tokenizer, embedding_dim=8)
    SentenceTransformer(modules=[static], device="cpu").save(
        str(place / "static"), create_model_card=False
    )
    (place / "damaged").mkdir()
    (place / "damaged" / "modules.json").write_text("[{")
    return place


@pytest.fixture(scope="module")
def train(models, text_file, tmp_path_factory):
    """Train a hybrid with a kind of dense model; return the folder and the exit code."""
    made = {}

    def run(kind, *more):
        if (kind, *more) not in made:
            out = tmp_path_factory.mktemp("hybrid") / "out"
            options = [
                "--model_name_or_path=static", "--dim=16", "--views=crop", f"--train_file={text_file}", "--max_steps=6",
                "--train_batch_size=8", "--mixed_precision=no", "--learning_rate=1e-2", "--eval_set=none",
                "--pooler_type=avg", f"--output_dir={out}", *([f"--hybrid={models / kind}"] if kind else []), *more,
            ]  # fmt: skip
            made[kind, *more] = out, main(options)
        return made[kind, *more]

    return run


@pytest.mark.parametrize("kind", ["bert", "prompts", "static"])
def test_saved_model_joins_both_parts_and_loads_without_this_package(kind, train, models, tmp_path):
    folder, code = train(kind)
    assert code == 0
    weights = "model.safetensors"
    assert (folder / "model" / weights).read_bytes() == (models / kind / weights).read_bytes()
    command = [
        sys.executable,
        "-I",
        "-c",
        PLAIN,
        folder,
        json.dumps(TEXTS),
        tmp_path / "v.npy",
        tmp_path / "again",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    vectors = torch.from_numpy(np.load(tmp_path / "v.npy"))
    model = SentenceTransformer(str(models / kind), device="cpu")
    own = normalize(model.encode(TEXTS, convert_to_tensor=True), dim=1)
    module = load_sentence_transformer(str(folder), "cpu")[0]
    ids = [
        encoding.ids for encoding in module.lexical_tokenizer.encode_batch(TEXTS)
    ]  # of the whole texts
    lexical = normalize(
        torch.stack([module.table.weight[of_text].sum(0) for of_text in ids]), dim=1
    )
    both = normalize(torch.cat([own, 0.7 * lexical], 1), dim=1).detach()
    torch.testing.assert_close(vectors, both, rtol=0, atol=1e-6)


def test_lexical_part_trains_as_a_static_model(train):
    own = "--vocabulary=embedded"
    alone = SentenceTransformer(str(train(None, own)[0]), device="cpu")
    hybrid = load_sentence_transformer(str(train("bert", own)[0]), "cpu")
    found, expected = hybrid[0].table.weight, alone[0].embedding.weight
    unknown = alone.tokenizer.token_to_id("[UNK]")
    assert not found[unknown].any()  # unknown text: only the dense part
    expected[unknown].data.zero_()
    assert torch.equal(found, expected)


COLUMNS = [  # some have one token a text, so there are as many tokens as texts
    ["cat", "dog", "the bird sat", "fish"],
    ["tree", "the big man sat on a house", "\N{DUCK}", "river"],
    ["one", "two", "three", "red"],
]


@pytest.mark.parametrize("kind", ["bert", "static"])
def test_losses_of_three_columns_equal_a_loop(kind, train):
    model = load_sentence_transformer(str(train(kind)[0]), "cpu").eval()
    anchors, *candidates = (
        torch.from_numpy(model.encode(texts)).double().numpy() for texts in COLUMNS
    )
    candidates = np.concatenate(candidates)
    scores = 20 * anchors @ candidates.T
    by_hand = np.mean([np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(scores)])
    gradients = []
    for loss in (
        MultipleNegativesRankingLoss(model),
        CachedMultipleNegativesRankingLoss(model, mini_batch_size=3),
    ):
        features = [model.tokenize(texts) for texts in COLUMNS]
        for of_column in features:
            assert {len(x) for x in of_column.values() if isinstance(x, torch.Tensor)} == {4}
        model.zero_grad()
        value = loss(features, None)
        value.backward()
        assert value.item() == pytest.approx(by_hand, abs=1e-5)
        gradients.append(model[0].table.weight.grad.clone())
    torch.testing.assert_close(*gradients)


def test_unknown_text_has_finite_gradients_and_no_nan(train):
    model = load_sentence_transformer(str(train("bert")[0]), "cpu").eval()
    texts = ["\N{DUCK}", "the cat"]
    vectors = model(model.tokenize(texts))["sentence_embedding"]
    own = model[0].model.encode(texts[:1])
    np.testing.assert_allclose(vectors[0, :16].detach(), own[0] / np.linalg.norm(own), atol=1e-6)
    vectors[0].sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(x.isfinite().all() for x in gradients)
    assert torch.stack([x.norm() for x in gradients]).norm() < 1e3
    half = model.half().encode(texts)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, vectors.detach(), atol=4e-3)


def test_padded_embedding_equals_encode(train):
    folder, _ = train("bert")
    model = load_sentence_transformer(str(folder), "cpu").eval()
    tokenizer, _ = onnx_files(model[0])
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    found = embed_padded(model[0], batch["input_ids"], batch["attention_mask"])
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(found.detach(), expected, rtol=0, atol=2e-6)


def test_prompt_is_for_the_dense_part_only(train):
    model = load_sentence_transformer(str(train("bert")[0]), "cpu")
    plain, prompted = (model.encode("a dog ran", prompt=prompt) for prompt in ("", "red house "))
    np.testing.assert_allclose(prompted[-16:], plain[-16:], atol=1e-6)
    assert np.abs(prompted - plain).max() > 1e-3


@pytest.mark.slow
def test_onnx_graph_equals_encode(train, tmp_path):
    import onnxruntime

    folder, _ = train("bert")
    assert export([str(folder), "--to=onnx", f"--output={tmp_path / 'graph'}"]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "graph")
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="np")
    assert batch["input_ids"].shape[1] > 100  # the model reads 40, the table all
    session = onnxruntime.InferenceSession(tmp_path / "graph" / "onnx" / "model.onnx")
    inputs = {name: batch[name].astype("int64") for name in ("input_ids", "attention_mask")}
    (vectors,) = session.run(["sentence_embedding"], inputs)
    expected = load_sentence_transformer(str(folder), "cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=2e-6)


def test_models_of_0_2_load(train, tmp_path):
    folder, _ = train("bert")
    old = shutil.copytree(folder, tmp_path / "old")
    for name, old_name in zip(FILES, FILES_OF_0_2, strict=True):
        (old / name).rename(old / old_name)
    expected = load_sentence_transformer(str(folder)).encode(TEXTS)
    np.testing.assert_array_equal(load_sentence_transformer(str(old)).encode(TEXTS), expected)


@pytest.mark.parametrize(("kind", "to"), [("bert", "hf"), ("prompts", "onnx"), ("static", "onnx")])
def test_layouts_that_cannot_hold_a_hybrid_are_rejected(kind, to, train, tmp_path, capsys):
    assert export([str(train(kind)[0]), f"--to={to}", f"--output={tmp_path / 'copy'}"]) == 2
    assert "--to: " in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "copy").exists()


def test_models_that_cannot_be_the_dense_part_are_rejected(models):
    for kind in ("damaged", "nothing"):
        with pytest.raises(ParameterError, match=r"hybrid: [^\n]+\Z"):
            load_dense(str(models / kind))
