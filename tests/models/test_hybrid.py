"""Words beside a model: one saved model of both, which loads without this package, and one graph of
both.
"""

import hashlib
import json
import re
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from model_cases import build_model
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Router, StaticEmbedding
from torch.nn.functional import normalize
from transformers import AutoTokenizer

from dystress_text.evaluation.embedder import load_model
from dystress_text.models.hybrid import embed_padded, onnx_files
from dystress_text.models.hybrid_module import HybridEmbedding
from dystress_text.models.loading import load_sentence_transformer, save_model
from dystress_text.programs.export import main as export
from dystress_text.programs.train import main
from dystress_text.training.run_record import BASE

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


def router():
    parts = [
        StaticEmbedding(build_tokenizer().backend_tokenizer, embedding_dim=8) for _ in range(2)
    ]
    return SentenceTransformer(
        modules=[Router.for_query_document(*([part] for part in parts))], device="cpu"
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of models to stand beside, by kind."""
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
    router().save(str(place / "router"), create_model_card=False)
    build_transformer("bert").save_pretrained(place / "alone")
    (place / "damaged").mkdir()
    (place / "damaged" / "modules.json").write_text("[{")
    return place


@pytest.fixture(scope="module")
def train(models, text_file, tmp_path_factory):
    """Train beside a kind of model; returns the folder and the exit code."""
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


def weights_of(folder):
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.glob("*.safetensors")
    }


def test_the_dense_model_alone_is_measured_beside_the_untrained_hybrid(train, models, tmp_path):
    texts = make_sentences(12, seed=3)
    pairs = tmp_path / "pairs.csv"
    rows = [f"{a},{b},{i % 6}" for i, (a, b) in enumerate(pairwise(texts))]
    pairs.write_text("\n".join(["sentence1,sentence2,score", *rows]) + "\n")
    folder, code = train("bert", f"--eval_file={pairs}")
    assert code == 0
    record = json.loads((folder / "run.json").read_text())
    dense = SentenceTransformer(str(models / "bert"), device="cpu")
    vectors = normalize(dense.encode(texts, convert_to_tensor=True), dim=1)
    cosines = (vectors[:-1] * vectors[1:]).sum(1).tolist()
    expected = 100 * spearmanr(cosines, [i % 6 for i in range(11)]).statistic
    assert list(record["untrained"]) == [BASE, "avg"]
    assert record["untrained"][BASE]["pairs_spearman"] == pytest.approx(expected, abs=0.1)
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name")  # no base_model that the hub does not have
    assert "# bert with word vectors" in card
    assert "| dense model | bert, not trained |" in card
    assert f"| {BASE} | untrained, avg |" in card
    assert "AutoModel" not in card  # the folder's transformer is one part of it
    assert not re.search(r"layers|Pooling: |base model \||\| dropout", card)


@pytest.mark.parametrize("kind", ["bert", "prompts", "static"])
def test_the_saved_model_has_both_vectors_and_loads_without_this_package(
    kind, train, models, tmp_path
):
    folder, code = train(kind)
    assert code == 0
    assert weights_of(folder / "model") == weights_of(models / kind) != {}
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
    ids = [encoding.ids for encoding in module.words.encode_batch(TEXTS)]  # of the whole texts
    words = normalize(torch.stack([module.table.weight[of_text].sum(0) for of_text in ids]), dim=1)
    both = normalize(torch.cat([own, 0.7 * words], 1), dim=1).detach()
    torch.testing.assert_close(vectors, both, rtol=0, atol=1e-6)
    embed, _ = load_model(str(folder), None)
    torch.testing.assert_close(embed(TEXTS), both, rtol=0, atol=1e-6)
    card = (folder / "README.md").read_text()
    assert f"first {own.shape[1]} of {kind}" in card
    assert "trust_remote_code=True" in card


def test_the_table_trains_as_without_the_model(train):
    own = "--vocabulary=embedded"
    alone = SentenceTransformer(str(train(None, own)[0]), device="cpu")
    beside = load_sentence_transformer(str(train("bert", own)[0]), "cpu")
    found, expected = beside[0].table.weight, alone[0].embedding.weight
    unknown = alone.tokenizer.token_to_id("[UNK]")
    assert not found[unknown].any()  # a text of unknown words alone has the model's vector alone
    expected[unknown].data.zero_()
    assert torch.equal(found, expected)


def test_words_are_without_the_models_prompts(train):
    model = load_sentence_transformer(str(train("prompts")[0]), "cpu")
    assert model.prompts["query"] == "the cat saw "
    words = [
        model.encode("a dog ran", prompt=prompt)[-16:] for prompt in ("", "the cat saw ", None)
    ]
    for other in words[1:]:
        np.testing.assert_allclose(other, words[0], atol=1e-6)


COLUMNS = [  # some have one token a text, so there are as many tokens as texts
    ["cat", "dog", "the bird sat", "fish"],
    ["tree", "the big man sat on a house", "\N{DUCK}", "river"],
    ["one", "two", "three", "red"],
]


@pytest.mark.parametrize("kind", ["bert", "static"])
def test_losses_of_three_columns_read_each_text(kind, train):
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


def test_a_part_without_a_known_token_has_no_gradient_and_no_nan(train):
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


def test_the_graph_counts_tokens_of_the_text_that_equal_special_ones(train):
    folder, _ = train("bert")
    model = load_sentence_transformer(str(folder), "cpu").eval()
    tokenizer, _ = onnx_files(model[0])
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    found = embed_padded(model[0], batch["input_ids"], batch["attention_mask"])
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(found.detach(), expected, rtol=0, atol=2e-6)


def test_options_of_the_load_reach_the_model_inside_or_are_refused(train):
    folder = str(train("bert")[0])
    options = {
        "model_kwargs": {"dtype": torch.float16},
        "processor_kwargs": {"model_max_length": 5},
    }
    module = HybridEmbedding.load(folder, **options)
    assert next(module.model.parameters()).dtype == torch.float16
    assert module.tokenize(["a cat ran to the house"])["input_ids"].shape == (1, 5)
    with pytest.raises(Exception, match=r"(?i)optimum|onnx"):  # whose model has no graph
        HybridEmbedding.load(folder, backend="onnx", local_files_only=True)
    with pytest.raises(ValueError, match="backend 'onnx'"):
        HybridEmbedding.load(str(train("static")[0]), backend="onnx")


def test_the_card_names_the_release_that_loads_it(train, monkeypatch):
    folder, _ = train("bert")
    card = (folder / "README.md").read_text()
    assert "from version 5.4 on" in card
    assert "--to onnx" in card
    assert "--to onnx" not in (train("static")[0] / "README.md").read_text()
    modules = json.loads((folder / "model" / "modules.json").read_text())
    assert {entry["type"].rpartition(".")[0] for entry in modules} == {
        "sentence_transformers.models"
    }
    # older releases put a prompt of the user's own before the text, where it counts as words
    monkeypatch.setattr("sentence_transformers.__version__", "5.3.1")
    with pytest.raises(ImportError, match=r"needs sentence-transformers 5\.4 or newer"):
        HybridEmbedding.load(str(folder))


def test_a_prompt_of_the_users_own_is_no_text(train):
    model = load_sentence_transformer(str(train("bert")[0]), "cpu")
    plain, prompted = (model.encode("a dog ran", prompt=prompt) for prompt in ("", "red house "))
    np.testing.assert_allclose(prompted[-16:], plain[-16:], atol=1e-6)
    assert np.abs(prompted - plain).max() > 1e-3


@pytest.mark.slow
def test_one_graph_gives_both_vectors(train, tmp_path):
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


def test_what_a_layout_cannot_hold_is_refused(train, tmp_path, capsys):
    for kind, to, reason in (
        ("bert", "hf", "--to: "),
        ("prompts", "onnx", "--to: "),
        ("static", "onnx", "--to: "),
    ):
        folder, _ = train(kind)
        capsys.readouterr()
        assert export([str(folder), f"--to={to}", f"--output={tmp_path / 'copy'}"]) == 2
        error = capsys.readouterr().err.strip()
        assert reason in error
        assert "\n" not in error
        assert not (tmp_path / "copy").exists()
    assert export([str(train("bert")[0]), "--to=native", f"--output={tmp_path / 'copy'}"]) == 0


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("router", "one encoder of all texts"), ("alone", "is no folder or name of a sentence-transformers model"),
     ("damaged", "cannot load"), ("nothing", "is no folder"), ("", "--dim: is of --model_name_or_path static")],
)  # fmt: skip
def test_a_model_that_cannot_be_used_is_refused_before_the_first_step(
    kind, reason, train, models, tiny_bert, capsys
):
    more = [] if kind else [f"--hybrid={models / 'bert'}", f"--model_name_or_path={tiny_bert}"]
    folder, code = train(kind, *more)
    error = capsys.readouterr().err.strip()
    assert code == 2
    if kind:
        assert "--hybrid: " in error
    assert reason in error
    assert "\n" not in error
    assert not (folder / "metrics.jsonl").exists()
