"""Hybrid models: parts in one saved model, which loads without this package."""

import ast
import hashlib
import json
import math
import re
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import make_sentences
from datasets import Dataset
from hub_server import hub_server, with_hub
from model_cases import build_model, build_static
from safetensors.torch import save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Router
from snowballstemmer import stemmer
from torch.nn.functional import normalize

from dystress_text.errors import ParameterError, UserError
from dystress_text.io.words import WordReader
from dystress_text.models import hybrid as hybrid_models
from dystress_text.models.hybrid import (
    lexical_part,
    load_dense,
    new_hybrid,
)
from dystress_text.models.hybrid_module import (
    DOCUMENT,
    BagReader,
    DistilledPart,
    HybridEmbedding,
    unit,
)
from dystress_text.models.loading import load_sentence_transformer, save_model
from dystress_text.models.static import (
    embedded_tokenizer,
    new_static,
    set_document_row,
    set_unknown,
    table_of,
    tokenizer_of,
    unknown_id,
)
from dystress_text.programs.export import main as export

LONG = " ".join(["cats dogs"] * 60)  # longer than the 40 positions of the dense model
TEXTS = [*make_sentences(9), "[SEP] a cat [CLS] ran", LONG, "trees", "42 42 women", ""]
CORPUS = [*make_sentences(60), "42 birds", "", LONG, "Trees, rivers and 42 houses", "treeless"]
IDF = [1.5, 2.0, 2.5]
ROWS = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))


def lexical(texts=CORPUS, dim=32, language="english"):
    return lexical_part(lambda: iter(texts), WordReader(language), dim)


@pytest.fixture
def dense():
    prompts = {"query": "the cat saw ", "passage": "a dog ate "}
    return build_model("bert", normalize=True, prompts=prompts)


@pytest.fixture
def hybrid(dense):
    return new_hybrid(build_static(16, small=True), dense=dense, lexical=lexical())


@pytest.fixture
def without_dense():
    reader = BagReader(
        {"cat": [0], "tree": [1], "houses": [2]}, IDF, "[a-z0-9]+", "[\u4e00-\u9fff]+"
    )
    parts = {
        "distilled": DistilledPart(reader, ROWS.clone()),
        "lexical": lexical(),
    }
    return new_hybrid(table_with_document_row(), **parts)


def table_with_document_row():
    """Return a static model of random rows whose document row is set by two texts."""
    static = new_static(embedded_tokenizer(), 8, normalize=True)
    table = table_of(static)
    with torch.no_grad():
        table[:, 1:] = torch.randn(len(table), 7, generator=torch.Generator().manual_seed(2))
    ids = [tokenizer_of(static).encode(text).ids for text in CORPUS[:2]]
    lengths = torch.tensor([len(of_text) for of_text in ids])
    set_document_row(static, [{"token_ids": torch.tensor(ids[0] + ids[1]), "lengths": lengths}])
    return static


def as_unit(vector):
    length = np.linalg.norm(vector)
    return vector / length if length else vector


def stems(text):
    stem = stemmer("english").stemWord
    stop_words = WordReader("english").stop_words
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [stem(word) for word in words if word not in stop_words]


def lexical_vectors(texts, dim, document):
    """Return the lexical part by its formula in fp64; words without a known stem are left out."""
    bags = [Counter(stems(text)) for text in CORPUS]
    rare = 0.01 * len(CORPUS)
    weights = {}
    for stem in set().union(*bags):
        frequency = sum(stem in bag for bag in bags)
        weights[stem] = math.log((rare + len(CORPUS)) / (rare + frequency))

    def entries(bag):
        known = [stem for stem in bag if stem in weights]
        return {stem: (1 + math.log(bag[stem])) * weights[stem] for stem in known}

    squares = [sum(value**2 for value in entries(bag).values()) for bag in bags]
    vectors = []
    for text in texts:
        vector = np.zeros(dim)
        for stem, value in entries(Counter(stems(text))).items():
            digest = hashlib.blake2b(stem.encode(), digest_size=16).digest()
            for i in range(4):
                number = int.from_bytes(digest[4 * i : 4 * i + 4], sys.byteorder, signed=True)
                vector[(number >> 1) % (dim - 1)] += value / 2 * (1 if number % 2 else -1)
        if document:
            vector[-1] = math.sqrt(0.25 * np.mean(squares))
        vectors.append(as_unit(vector))
    return np.array(vectors)


def distilled_vectors(texts):
    """Return the distilled part by its formula; 'treeless' and the like count as tree or houses."""
    counted = {"cat": 0, "tree": 1, "houses": 2}
    vectors = []
    for text in texts:
        words = re.findall(r"[a-z0-9]+", text.lower())
        counts = Counter()
        for word in words:
            if word in counted:
                counts[counted[word]] += 1
            elif word[:5] == "house":
                counts[2] += 1
        vector = np.zeros(5)
        for i, tf in counts.items():
            vector += (1 + math.log(tf)) * IDF[i] * ROWS[i].double().numpy()
        vectors.append(as_unit(vector))
    return np.array(vectors)


def table_vectors(model, texts, document):
    """Return the table's part, row by row."""
    part = model[0].parts["table"]
    table = part[0].embedding.weight.detach().double().numpy()
    tokenizer = part[0].tokenizer
    vectors = []
    for text in texts:
        vector = np.zeros(table.shape[1])
        for token in tokenizer.encode(text, add_special_tokens=False).ids:
            vector += table[token]
        document_token = tokenizer.token_to_id(DOCUMENT.strip())
        if document and document_token is not None:
            vector += table[document_token]
        vectors.append(as_unit(vector))
    return np.array(vectors)


def joined(*parts):
    """Join parts, each with its weight."""
    rows = np.hstack([math.sqrt(weight) * vectors for weight, vectors in parts])
    return np.array([as_unit(row) for row in rows])


def close(found, expected, atol=1e-6):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=atol)


def test_on_the_hub_it_says_how_to_load_it(hybrid, tmp_path):
    save_model(hybrid, tmp_path / "hybrid")
    modules = (tmp_path / "hybrid" / "modules.json").read_bytes()
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["models/someone/hybrid"] = {"modules.json": modules}
        with pytest.raises(UserError, match=r"\A[^\n]*hf download someone/hybrid [^\n]*\Z"):
            load_sentence_transformer("someone/hybrid")


def test_saved_model_joins_its_parts_without_this_package(dense, hybrid, tmp_path):
    folder = tmp_path / "hybrid"
    save_model(hybrid, folder)
    plain = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert not isinstance(plain[0], HybridEmbedding)  # but the class of the folder's own file
    names = {
        "encode": dense.encode,
        "encode_query": dense.encode_query,
        "encode_document": dense.encode_document,
    }
    for name, encode in names.items():
        document = name == "encode_document"
        own = np.array([as_unit(vector) for vector in encode(TEXTS).astype(float)])
        counted = lexical_vectors(TEXTS, 32, document)
        table = table_vectors(hybrid, TEXTS, document)
        expected = joined((1, own), (1, counted), (0.5, table))
        close(getattr(plain, name)(TEXTS), expected)
        close(getattr(load_sentence_transformer(str(folder)), name)(TEXTS), expected)
    assert export([str(folder), "--to=native"]) == 0
    assert export([str(folder), "--to=onnx"]) == 2
    copy = load_sentence_transformer(f"{folder}-native")
    close(copy.encode_document(TEXTS), plain.encode_document(TEXTS))


def test_the_dense_model_gets_the_options_of_the_whole(hybrid, tmp_path):
    save_model(hybrid, tmp_path / "hybrid")
    loaded = SentenceTransformer(
        str(tmp_path / "hybrid"),
        trust_remote_code=True,
        model_kwargs={"dtype": torch.float64},
        processor_kwargs={"model_max_length": 7},
        config_kwargs={"attention_probs_dropout_prob": 0.3},
    )
    dense = loaded[0].parts["dense"]
    assert dense.dtype == torch.float64
    assert dense.tokenizer.model_max_length == 7
    assert dense[0].model.config.attention_probs_dropout_prob == 0.3


def test_model_without_a_dense_model_equals_its_formula(without_dense, tmp_path):
    save_model(without_dense, tmp_path / "hybrid")
    plain = SentenceTransformer(str(tmp_path / "hybrid"), trust_remote_code=True, device="cpu")
    texts = [text for text in TEXTS if text]
    for name in ("encode", "encode_query", "encode_document"):
        document = name == "encode_document"
        parts = [
            (1, distilled_vectors(texts)),
            (1, lexical_vectors(texts, 32, document)),
            (0.75, table_vectors(without_dense, texts, document)),
        ]
        close(getattr(plain, name)(texts), joined(*parts))
    queries = torch.as_tensor(plain.encode_query(texts))
    scores = queries @ torch.as_tensor(plain.encode_document(texts)).T
    assert scores.shape == (len(texts), len(texts))
    assert not any("transformer" in file.name for file in tmp_path.rglob("*.safetensors"))


def test_the_folders_code_imports_four_packages(hybrid, tmp_path):
    save_model(hybrid, tmp_path / "hybrid")
    code = ast.parse((tmp_path / "hybrid" / "hybrid_module.py").read_text(encoding="utf-8"))
    roots = set()
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom):
            roots.add(node.module.split(".")[0])
        if isinstance(node, ast.Import):
            roots |= {name.name.split(".")[0] for name in node.names}
    packages = {"torch", "safetensors", "sentence_transformers", "tokenizers"}
    assert roots <= packages | sys.stdlib_module_names


def test_hybrids_of_0_2_load(dense, tmp_path):
    static = build_static(16, small=True)
    dense.save(str(tmp_path / "model"))
    save_file({"table": table_of(static).detach()}, tmp_path / "words.safetensors")
    tokenizer_of(static).save(str(tmp_path / "words.json"))
    (tmp_path / "beside.json").write_text(json.dumps({"weight": 0.7}))
    module = {"idx": 0, "name": "0", "path": "", "type": "hybrid_module.HybridEmbedding"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    config = {"prompts": {"query": "the cat saw "}, "similarity_fn_name": "cosine"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(config))
    loaded = load_sentence_transformer(str(tmp_path))
    table = table_vectors(loaded, TEXTS, False)
    for encode, own in [
        (loaded.encode, dense.encode(TEXTS)),
        (loaded.encode_query, dense.encode_query(TEXTS)),
        (loaded.encode_document, dense.encode(TEXTS)),
    ]:
        close(encode(TEXTS), joined((1, own), (0.49, table)))
    save_model(loaded, tmp_path / "again")
    plain = SentenceTransformer(str(tmp_path / "again"), trust_remote_code=True, device="cpu")
    close(plain.encode_query(TEXTS), loaded.encode_query(TEXTS))


def test_only_the_prompt_marks_a_document(hybrid):
    last = 16 + 32 - 1  # of the lexical part
    assert hybrid.encode([f"{DOCUMENT}a cat", "[DOC] a cat"])[:, last].tolist() == [0, 0]
    assert hybrid.encode("a cat", prompt_name="document")[last] > 0.1
    features = hybrid.preprocess(["a cat"], task="document")
    assert hybrid.eval()(features)["sentence_embedding"][0, last] > 0.1


def test_words_without_spaces_digits_and_the_unknown():
    corpus = ["\u6f22\u5b57\u3092", "\u6f22\u5b57", "42 houses", "", "caf\u00e9s", "thereabouts"]
    corpus += ["houses", "houseboats", "\u5c71"]
    part = lexical(corpus, 64)
    tokens = part.settings["tokens"]
    for text, expected in [
        ("\u6f22\u5b57!", ["\u6f22\u5b57"]),
        ("\u5c71", ["\u5c71"]),
        ("the 42", ["42"]),
        ("housekeepers", ["hous"]),  # the most frequent with these five letters
        ("cafe\u0301s", [stemmer("english").stemWord("caf\u00e9s")]),  # another normal form
        ("zebra the there", []),  # stop words do not count as words that begin like them
    ]:
        assert [tokens[token] for token in part.reader.bag(text)] == expected


def test_no_language_counts_words_and_first_letters():
    part = lexical(["housing", "houses", "river"], 64, None)
    known = {part.settings["tokens"][token] for token in part.reader.bag("houses")}
    unknown = {part.settings["tokens"][token] for token in part.reader.bag("household")}
    assert known == {"houses", *unknown}


def test_the_most_frequent_tokens_are_kept(monkeypatch):
    monkeypatch.setattr(hybrid_models, "MOST_TOKENS", 2)
    part = lexical(["houses dogs", "houses dogs trees", "houses birdsong", "dogs housekeeping"])
    assert part.settings["tokens"] == ["hous", "dog"]
    assert part.reader.bag("birdsong trees") == {}
    assert part.reader.bag("housekeeping") == part.reader.bag("houses")


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
    set_unknown(static)  # as in a new table
    hybrid = new_hybrid(static, dense=dense, lexical=lexical()).eval()
    assert hybrid[0].parts["table"][0].embedding.weight is table_of(static)
    texts = ["\N{DUCK}", "the cat"]
    vectors = hybrid(hybrid.preprocess(texts))["sentence_embedding"]
    close(vectors[0, :16].detach(), dense.encode(texts)[0])
    vectors[0].sum().backward()
    gradients = [p.grad for p in hybrid.parameters() if p.grad is not None]
    assert torch.stack([gradient.norm() for gradient in gradients]).norm() < 1e3
    close(hybrid.half().encode(texts), vectors.detach(), 4e-3)


def test_texts_without_a_known_word_train_without_a_dense_model(without_dense):
    without_dense.eval()
    columns = [["\N{DUCK}", "cat", ""], ["", "tree", "\N{DUCK}"]]
    features = [without_dense.preprocess(texts) for texts in columns]
    MultipleNegativesRankingLoss(without_dense)(features, None).backward()
    for parameter in without_dense.parameters():
        assert parameter.grad.norm() < 1e3
    vectors = without_dense.encode(columns[0])
    half = without_dense.half().encode(columns[0], normalize_embeddings=True)
    close(half, vectors, 4e-3)
    close(np.linalg.norm(vectors, axis=1), 1)


def test_sentence_transformers_trains_it(without_dense, tmp_path):
    rows = without_dense[0].parts["distilled"].rows
    before = rows.detach().clone()
    data = Dataset.from_dict({"anchor": ["cat", "tree"] * 4, "positive": ["houses", "cats"] * 4})
    options = {"max_steps": 2, "report_to": [], "use_cpu": True, "save_strategy": "no"}
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), per_device_train_batch_size=4, prompts={"positive": DOCUMENT}, **options
    )
    loss = MultipleNegativesRankingLoss(without_dense)
    trainer = SentenceTransformerTrainer(without_dense, arguments, data, loss=loss)
    trainer.train()
    assert torch.isfinite(rows).all()
    assert not torch.equal(rows, before)


def test_unit_vectors_of_half_precision_are_computed_in_fp32():
    assert unit(torch.full((1, 400), 6e4).half())[0].tolist() == pytest.approx([0.05] * 400)


def test_prompt_is_for_the_dense_part_only(hybrid):
    plain = hybrid.encode("a dog ran")
    prompted = hybrid.encode_query("a dog ran")
    close(prompted[16:], plain[16:])
    assert np.abs(prompted - plain).max() > 1e-3


def test_static_model_can_be_the_dense_part(tmp_path):
    dense = build_static(8, seed=1)
    dense.prompts = {"own": "dogs "}
    dense.default_prompt_name = "own"
    hybrid = new_hybrid(build_static(16, small=True), dense=dense)
    save_model(hybrid, tmp_path)
    own = normalize(torch.as_tensor(dense.encode(["the cat"])), dim=1)
    for model in (hybrid, load_sentence_transformer(str(tmp_path))):
        found = torch.as_tensor(model.encode(["the cat"]))
        torch.testing.assert_close(normalize(found[:, :8], dim=1), own, rtol=0, atol=1e-6)


def test_invalid_dense_model_is_rejected(hybrid, tmp_path):
    save_model(hybrid, tmp_path / "hybrid")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "modules.json").write_text("[{")
    routes = [[build_static(8)[0]], [build_static(8, seed=1)[0]]]
    router = Router.for_query_document(*routes)
    SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path / "router"))
    for kind in ("damaged", "nothing", "hybrid", "router"):
        with pytest.raises(ParameterError, match=r"hybrid: [^\n]+\Z"):
            load_dense(str(tmp_path / kind))
