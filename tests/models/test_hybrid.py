"""Hybrid models: parts in one saved model, which loads without this package."""

import ast
import hashlib
import json
import math
import re
import sys

import numpy as np
import pytest
import torch
from conftest import make_sentences
from datasets import Dataset
from hub_server import hub_server, with_hub
from model_cases import build_model, build_static, close, log_counts, with_document_row
from safetensors.torch import save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Router
from snowballstemmer import stemmer

from dystress_text.errors import ParameterError, UserError
from dystress_text.io.words import WordReader
from dystress_text.models import hybrid as hybrid_models
from dystress_text.models.hybrid import lexical_part, load_dense, new_hybrid
from dystress_text.models.hybrid_module import (
    DOCUMENT,
    BagReader,
    DistilledPart,
    HybridEmbedding,
    unit,
)
from dystress_text.models.loading import load_sentence_transformer, save_model
from dystress_text.models.static import table_of, tokenizer_of, unknown_id
from dystress_text.programs.export import main as export

DUCK = "\N{DUCK}"  # unknown to all tokenizers
LONG = " ".join(["cats dogs"] * 60)  # longer than the 40 positions of the dense model
TEXTS = [*make_sentences(9), "[SEP] a cat [CLS] ran", LONG, "trees", "42 42 women", ""]
CORPUS = [*make_sentences(60), "42 birds", "", LONG, "Trees, rivers and 42 houses", "treeless"]
ROWS = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
IDF = {"cat": 1.5, "tree": 2.0, "houses": 2.5}
STEM = stemmer("english").stemWord


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
    words = {word: [i] for i, word in enumerate(IDF)}
    reader = BagReader(words, [*IDF.values()], "[a-z0-9]+", "[\u4e00-\u9fff]+")
    table = with_document_row(build_static(8), CORPUS[:2])
    distilled = DistilledPart(reader, ROWS.clone())
    return new_hybrid(table, distilled=distilled, lexical=lexical())


@pytest.fixture
def load(tmp_path):
    """Return a function that saves a model and loads it with the code in its folder."""

    def saved(model, **options):
        save_model(model, tmp_path / "hybrid")
        return SentenceTransformer(
            str(tmp_path / "hybrid"), trust_remote_code=True, device="cpu", **options
        )

    return saved


def units(vectors):
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths, lengths, 1)


def words_of(text):
    return re.findall(r"[a-z0-9]+", text.lower())


def stems(text):
    stop_words = WordReader("english").stop_words
    return [STEM(word) for word in words_of(text) if word not in stop_words]


def lexical_vectors(texts, document):
    """Return the lexical part by its formula in fp64."""
    vocabulary = sorted({stem for text in CORPUS for stem in stems(text)})
    corpus = log_counts(CORPUS, stems, vocabulary)
    count = len(CORPUS)
    idf = np.log(1.01 * count / (0.01 * count + (corpus > 0).sum(0)))
    hashed = np.zeros((len(vocabulary), 32))
    for row, stem in zip(hashed, vocabulary, strict=True):
        digest = hashlib.blake2b(stem.encode(), digest_size=16).digest()
        for number in np.frombuffer(digest, np.int32).tolist():
            row[(number >> 1) % 31] += 0.5 if number % 2 else -0.5
    vectors = log_counts(texts, stems, vocabulary) * idf @ hashed
    if document:
        vectors[:, -1] = np.sqrt(0.25 * np.mean(((corpus * idf) ** 2).sum(1)))
    return units(vectors)


def distilled_vectors(texts):
    """Return the distilled part by its formula; words with the letters 'house' are one."""

    def known(text):
        return ["houses" if word[:5] == "house" else word for word in words_of(text)]

    idf = np.array([*IDF.values()])
    return units(log_counts(texts, known, [*IDF]) * idf @ ROWS.double().numpy())


def table_vectors(model, texts, document=False):
    """Return the table's part, row by row."""
    static = model[0].parts["table"]
    table = table_of(static).detach().double().numpy()
    mark = tokenizer_of(static).token_to_id(DOCUMENT.strip())
    vectors = np.zeros((len(texts), table.shape[1]))
    for vector, text in zip(vectors, texts, strict=True):
        ids = tokenizer_of(static).encode(text, add_special_tokens=False).ids
        if document and mark is not None:
            ids.append(mark)
        for i in ids:
            vector += table[i]
    return units(vectors)


def joined(*parts):
    """Join parts, each with its weight."""
    return units(np.hstack([math.sqrt(weight) * vectors for weight, vectors in parts]))


def test_on_the_hub_it_says_how_to_load_it(hybrid, tmp_path):
    save_model(hybrid, tmp_path / "hybrid")
    modules = (tmp_path / "hybrid" / "modules.json").read_bytes()
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["models/someone/hybrid"] = {"modules.json": modules}
        with pytest.raises(UserError, match=r"\A[^\n]*hf download someone/hybrid [^\n]*\Z"):
            load_sentence_transformer("someone/hybrid")


def test_saved_model_joins_its_parts_without_this_package(dense, hybrid, load, tmp_path):
    plain = load(hybrid)
    assert not isinstance(plain[0], HybridEmbedding)  # but the class of the folder's own file
    folder = str(tmp_path / "hybrid")
    assert export([folder, "--to=native"]) == 0
    assert export([folder, "--to=onnx"]) == 2
    models = [
        plain,
        load_sentence_transformer(folder),
        load_sentence_transformer(f"{folder}-native"),
    ]
    for name in ("encode", "encode_query", "encode_document"):
        document = name == "encode_document"
        own = units(getattr(dense, name)(TEXTS).astype(float))
        counted = lexical_vectors(TEXTS, document)
        expected = joined((1, own), (1, counted), (0.5, table_vectors(hybrid, TEXTS, document)))
        for model in models:
            close(getattr(model, name)(TEXTS), expected)


def test_model_without_a_dense_model_equals_its_formula(without_dense, load, tmp_path):
    plain = load(without_dense)
    texts = [text for text in TEXTS if text]
    for encode, document in [
        (plain.encode, False),
        (plain.encode_query, False),
        (plain.encode_document, True),
    ]:
        distilled = distilled_vectors(texts)
        counted = lexical_vectors(texts, document)
        table = table_vectors(without_dense, texts, document)
        close(encode(texts), joined((1, distilled), (1, counted), (0.75, table)))
    assert not any("transformer" in file.name for file in tmp_path.rglob("*.safetensors"))


def test_the_dense_model_gets_the_options_of_the_whole(hybrid, load):
    loaded = load(
        hybrid,
        model_kwargs={"dtype": torch.float64},
        processor_kwargs={"model_max_length": 7},
        config_kwargs={"attention_probs_dropout_prob": 0.3},
    )
    dense = loaded[0].parts["dense"]
    assert dense.dtype == torch.float64
    assert dense.tokenizer.model_max_length == 7
    assert dense[0].model.config.attention_probs_dropout_prob == 0.3


def test_the_folders_code_imports_four_packages(hybrid, tmp_path):
    save_model(hybrid, tmp_path)
    code = ast.parse((tmp_path / "hybrid_module.py").read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
    roots = {name.split(".")[0] for name in imported}
    packages = {"torch", "safetensors", "sentence_transformers", "tokenizers"}
    assert roots <= packages | sys.stdlib_module_names


def test_hybrids_of_0_2_load(dense, load, tmp_path):
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
    table = table_vectors(loaded, TEXTS)
    for model in (loaded, load(loaded)):
        query = joined((1, dense.encode_query(TEXTS)), (0.49, table))
        close(model.encode_query(TEXTS), query)
        close(model.encode_document(TEXTS), joined((1, dense.encode(TEXTS)), (0.49, table)))


def test_only_the_prompt_marks_a_document(hybrid):
    last = 16 + 32 - 1  # of the lexical part
    assert hybrid.encode([f"{DOCUMENT}a cat", "[DOC] a cat"])[:, last].tolist() == [0, 0]
    assert hybrid.encode("a cat", prompt_name="document")[last] > 0.1
    features = hybrid.preprocess(["a cat"], task="document")
    assert hybrid.eval()(features)["sentence_embedding"][0, last] > 0.1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u6f22\u5b57!", ["\u6f22\u5b57"]),
        ("\u5c71", ["\u5c71"]),
        ("the 42", ["42"]),
        ("housekeepers", ["hous"]),  # the most frequent with these five letters
        ("cafe\u0301s", [STEM("caf\u00e9s")]),  # another normal form
        ("zebra the there", []),  # stop words do not count as words that begin like them
    ],
)
def test_words_without_spaces_digits_and_the_unknown(text, expected):
    corpus = ["\u6f22\u5b57\u3092", "\u6f22\u5b57", "42 houses", "", "caf\u00e9s", "thereabouts"]
    part = lexical([*corpus, "houses", "houseboats", "\u5c71"])
    tokens = part.settings["tokens"]
    assert [tokens[token] for token in part.reader.bag(text)] == expected


def test_no_language_counts_words_and_first_letters():
    part = lexical(["housing", "houses", "river"], language=None)
    known = part.reader.bag("houses").keys()
    unknown = part.reader.bag("household").keys()
    tokens = part.settings["tokens"]
    assert {tokens[token] for token in known - unknown} == {"houses"}
    assert unknown < known


def test_the_most_frequent_tokens_are_kept(monkeypatch):
    monkeypatch.setattr(hybrid_models, "MOST_TOKENS", 2)
    part = lexical(["houses dogs", "houses dogs trees", "houses birdsong", "dogs housekeeping"])
    assert part.settings["tokens"] == ["hous", "dog"]
    assert part.reader.bag("birdsong trees") == {}
    assert part.reader.bag("housekeeping") == part.reader.bag("houses")


def test_loss_of_three_columns_equals_a_loop(hybrid):
    columns = [["cat", "dog", "the bird"], ["tree", DUCK, "river"], ["one", "two", "red"]]
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
        table_of(static)[unknown_id(static)] = torch.tensor([0, *[2e-5] * 15])  # as in a new one
    hybrid = new_hybrid(static, dense=dense, lexical=lexical()).eval()
    assert hybrid[0].parts["table"][0].embedding.weight is table_of(static)
    texts = [DUCK, "the cat"]
    vectors = hybrid(hybrid.preprocess(texts))["sentence_embedding"]
    close(vectors[0, :16].detach(), dense.encode(DUCK))
    vectors[0].sum().backward()
    gradients = [p.grad for p in hybrid.parameters() if p.grad is not None]
    assert max(gradient.norm() for gradient in gradients) < 1e3
    close(hybrid.half().encode(texts), vectors.detach(), 4e-3)


def test_texts_without_a_known_word_train_without_a_dense_model(without_dense):
    without_dense.eval()
    columns = [[DUCK, "cat", ""], ["", "tree", DUCK]]
    features = [without_dense.preprocess(texts) for texts in columns]
    MultipleNegativesRankingLoss(without_dense)(features, None).backward()
    for parameter in without_dense.parameters():
        assert parameter.grad.norm() < 1e3
    vectors = without_dense.encode(columns[0])
    close(np.linalg.norm(vectors, axis=1), np.ones(3))
    close(without_dense.half().encode(columns[0], normalize_embeddings=True), vectors, 4e-3)


def test_sentence_transformers_trains_it(without_dense, tmp_path):
    rows = without_dense[0].parts["distilled"].rows
    before = rows.detach().clone()
    data = Dataset.from_dict({"anchor": ["cat", "tree"] * 4, "positive": ["houses", "cats"] * 4})
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=4,
        prompts={"positive": DOCUMENT},
        max_steps=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
    )
    loss = MultipleNegativesRankingLoss(without_dense)
    SentenceTransformerTrainer(without_dense, arguments, data, loss=loss).train()
    assert torch.isfinite(rows).all()
    assert not torch.equal(rows, before)


def test_unit_vectors_of_half_precision_are_computed_in_fp32():
    close(unit(torch.full((1, 400), 6e4).half()), [[0.05] * 400])


def test_static_model_can_be_the_dense_part(load):
    dense = build_static(8, seed=1)
    dense.prompts = {"own": "dogs "}
    dense.default_prompt_name = "own"
    hybrid = new_hybrid(build_static(16, small=True), dense=dense)
    own = units(dense.encode(["the cat"]))
    for model in (hybrid, load(hybrid)):
        close(units(model.encode(["the cat"])[:, :8]), own)


@pytest.mark.parametrize("kind", ["damaged", "nothing", "hybrid", "router"])
def test_invalid_dense_model_is_rejected(kind, hybrid, tmp_path):
    if kind == "damaged":
        (tmp_path / "modules.json").write_text("[{")
    if kind == "hybrid":
        save_model(hybrid, tmp_path)
    if kind == "router":
        routes = [[build_static(8)[0]], [build_static(8, seed=1)[0]]]
        router = Router.for_query_document(*routes)
        SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path))
    with pytest.raises(ParameterError, match=r"hybrid: [^\n]+\Z"):
        load_dense(str(tmp_path))
