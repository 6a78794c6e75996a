"""Hybrid models: both parts in one saved model, which loads without this package."""

import re
import shutil

import numpy as np
import pytest
import torch
from conftest import make_sentences
from hub_server import hub_server, with_hub
from model_cases import build_model, build_static
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Router
from torch.nn.functional import normalize

from dystress_text.errors import ParameterError, UserError
from dystress_text.models.hybrid import load_dense, new_hybrid, save_hybrid
from dystress_text.models.hybrid_module import FILES, FILES_OF_0_2, HybridEmbedding
from dystress_text.models.loading import load_sentence_transformer
from dystress_text.models.static import table_of, unknown_id
from dystress_text.programs.export import main as export

LONG = " ".join(["cat dog"] * 60)  # longer than the 40 positions of the dense model
TEXTS = [*make_sentences(9), "", "[SEP] a cat [CLS] ran", LONG]


@pytest.fixture
def dense():
    return build_model("bert", normalize=True, prompts={"query": "the cat saw "})


@pytest.fixture
def hybrid(dense):
    return new_hybrid(dense, build_static(16, small=True))


def test_on_the_hub_it_says_how_to_load_it(hybrid, tmp_path):
    save_hybrid(hybrid, tmp_path / "hybrid")
    modules = (tmp_path / "hybrid" / "modules.json").read_bytes()
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["models/someone/hybrid"] = {"modules.json": modules}
        with pytest.raises(UserError, match=r"\A[^\n]*hf download someone/hybrid [^\n]*\Z"):
            load_sentence_transformer("someone/hybrid")


def test_saved_model_joins_both_parts_without_this_package(dense, hybrid, tmp_path):
    folder = tmp_path / "hybrid"
    save_hybrid(hybrid, folder)
    plain = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert not isinstance(plain[0], HybridEmbedding)  # but the class of the folder's own file
    code = (folder / "hybrid_module.py").read_text()
    assert not re.search(r"^(from|import) dystress_text", code, re.MULTILINE)
    module = hybrid[0]
    sums = []
    for encoding in module.lexical_tokenizer.encode_batch(TEXTS):  # of the whole texts
        sums.append(module.table.weight[encoding.ids].sum(0))
    lexical = normalize(torch.stack(sums), dim=1)
    own = normalize(torch.as_tensor(dense.encode(TEXTS)), dim=1)
    expected = normalize(torch.cat([own, 0.7 * lexical], 1), dim=1).detach()
    np.testing.assert_allclose(plain.encode(TEXTS), expected, rtol=0, atol=1e-6)
    assert export([str(folder), "--to=native"]) == 0
    assert export([str(folder), "--to=onnx"]) == 2
    copy = load_sentence_transformer(f"{folder}-native")
    np.testing.assert_allclose(copy.encode(TEXTS), expected, rtol=0, atol=1e-6)


def test_loss_of_three_columns_equals_a_loop(hybrid):
    columns = [["cat", "dog", "the bird"], ["tree", "\N{DUCK}", "river"], ["one", "two", "red"]]
    hybrid.eval()
    anchors, *others = [hybrid.encode(texts).astype(np.float64) for texts in columns]
    scores = 20 * anchors @ np.concatenate(others).T
    terms = [np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(scores)]
    features = [hybrid.preprocess(texts) for texts in columns]
    found = MultipleNegativesRankingLoss(hybrid)(features, None)
    assert found.item() == pytest.approx(np.mean(terms), abs=1e-5)


def test_unknown_text_has_finite_gradients_and_no_nan(dense):
    static = build_static(16, small=True)
    with torch.no_grad():
        table_of(static)[unknown_id(static)] = 0
    hybrid = new_hybrid(dense, static).eval()
    assert hybrid[0].table.weight is table_of(static)  # trained in place
    texts = ["\N{DUCK}", "the cat"]
    vectors = hybrid(hybrid.preprocess(texts))["sentence_embedding"]
    np.testing.assert_allclose(vectors[0, :16].detach(), dense.encode(texts)[0], atol=1e-6)
    vectors[0].sum().backward()
    gradients = [p.grad for p in hybrid.parameters() if p.grad is not None]
    assert torch.stack([gradient.norm() for gradient in gradients]).norm() < 1e3
    half = hybrid.half().encode(texts)
    np.testing.assert_allclose(half, vectors.detach(), atol=4e-3)


def test_prompt_is_for_the_dense_part_only(hybrid):
    plain = hybrid.encode("a dog ran")
    prompted = hybrid.encode_query("a dog ran")
    np.testing.assert_allclose(prompted[-16:], plain[-16:], atol=1e-6)
    assert np.abs(prompted - plain).max() > 1e-3


def test_static_model_can_be_the_dense_part(tmp_path):
    dense = build_static(8, seed=1)
    save_hybrid(new_hybrid(dense, build_static(16, small=True)), tmp_path)
    own = normalize(torch.as_tensor(dense.encode(["the cat"])), dim=1)
    found = torch.as_tensor(load_sentence_transformer(str(tmp_path)).encode(["the cat"]))
    torch.testing.assert_close(normalize(found[:, :8], dim=1), own, rtol=0, atol=1e-6)


def test_model_of_0_2_loads(hybrid, tmp_path):
    save_hybrid(hybrid, tmp_path)
    for name, old_name in zip(FILES, FILES_OF_0_2, strict=True):
        shutil.move(tmp_path / name, tmp_path / old_name)
    loaded = load_sentence_transformer(str(tmp_path))
    assert torch.equal(loaded[0].table.weight, hybrid[0].table.weight)
    np.testing.assert_allclose(loaded.encode(TEXTS), hybrid.encode(TEXTS), rtol=0, atol=1e-6)


def test_invalid_dense_model_is_rejected(hybrid, tmp_path):
    save_hybrid(hybrid, tmp_path / "hybrid")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "modules.json").write_text("[{")
    routes = [[build_static(8)[0]], [build_static(8, seed=1)[0]]]
    router = Router.for_query_document(*routes)
    SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path / "router"))
    for kind in ("damaged", "nothing", "hybrid", "router"):
        with pytest.raises(ParameterError, match=r"hybrid: [^\n]+\Z"):
            load_dense(str(tmp_path / kind))
