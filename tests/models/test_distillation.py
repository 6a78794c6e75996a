"""Distillation into vectors of words: against ridge regression of scikit-learn in fp64."""

import json
import shutil

import numpy as np
import pytest
from conftest import make_sentences
from model_cases import build_model, build_static
from scipy import sparse
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from sklearn.linear_model import Ridge
from torch.nn.functional import normalize

from dystress_text.errors import ParameterError
from dystress_text.models import distillation
from dystress_text.models.distillation import RIDGE, SHARED, distill, fit_rows
from dystress_text.models.hybrid import text_words
from dystress_text.models.loading import load_sentence_transformer
from dystress_text.programs.train import main as train

TITLED = [
    ("One cat", "The cat saw a bird in the tree. It was a red bird."),
    ("", "No dog was in the river; two ducks were."),
    ("The river", "Red water ran by the old tree near the dog."),
    ("", "cat"),
    ("", "?!"),
]
TITLES = ["One cat", "The river"]
SENTENCES = [
    "The cat saw a bird in the tree.",
    "It was a red bird.",
    "No dog was in the river;",
    "Red water ran by the old tree near the dog.",
]


def titled():
    return [(title, f"{title} {body}".strip()) for title, body in TITLED]


def untitled(texts):
    return lambda: [("", text) for text in texts]


def ridge(bags, vectors, prior):
    """Fit corrections of words and a map of the prior, both towards 0, by the normal equations."""
    predicted = bags @ prior
    scale = (predicted * vectors).sum() / (predicted**2).sum()
    features = np.hstack([bags, np.sqrt(SHARED) * predicted])
    fitted = Ridge(RIDGE, fit_intercept=False, solver="cholesky")
    weights = fitted.fit(features, vectors - scale * predicted).coef_.T
    words = bags.shape[1]
    return scale * prior + weights[:words] + np.sqrt(SHARED) * prior @ weights[words:]


def part_of(part, texts):
    features = part.preprocess(texts)
    return normalize(part(features)["sentence_embedding"]).detach().numpy()


def test_rows_are_those_of_ridge_regression():
    random = np.random.default_rng(0)
    bags = random.random((700, 300)) * (random.random((700, 300)) < 0.05)
    bags /= np.maximum(np.linalg.norm(bags, axis=1, keepdims=True), 1e-9)
    vectors = random.standard_normal((700, 24)) / 5
    prior = random.standard_normal((300, 24)) / 5
    found = fit_rows(
        sparse.csr_matrix(bags.astype(np.float32)),
        vectors.astype(np.float32),
        prior.astype(np.float32),
    )
    np.testing.assert_allclose(found, ridge(bags, vectors, prior), rtol=0, atol=1e-4)


def test_part_is_fitted_to_unit_vectors_of_documents_titles_and_sentences():
    teacher = build_model("bert", head=True, prompts={"query": "the cat saw ", "document": "red "})
    documents = [document for _, document in titled()]
    short = TITLES + SENTENCES
    words = sorted({word for document in documents for word in text_words(document)})
    counts = np.array([[text_words(text).count(word) for word in words] for text in documents])
    texts_with = (counts > 0).sum(0)
    idf = np.log((0.05 + 5) / (0.05 + texts_with))
    counts = np.array([[text_words(x).count(word) for word in words] for x in documents + short])
    bags = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0) * idf
    bags /= np.maximum(np.linalg.norm(bags, axis=1, keepdims=True), 1e-9)
    vectors = [*teacher.encode_document(documents), *teacher.encode_query(short)]
    unit = [vector / np.linalg.norm(vector) for vector in np.float64(vectors)]
    prior = np.float64(teacher.encode_query(words))
    prior /= np.linalg.norm(prior, axis=1, keepdims=True)
    expected = bags @ ridge(bags, np.array(unit), prior)
    expected /= np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-9)
    found = part_of(distill(teacher, titled), documents + short)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    again = part_of(distill(teacher, titled), documents + short)
    np.testing.assert_array_equal(found, again)


def test_most_texts_and_words_are_limited(monkeypatch):
    monkeypatch.setattr(distillation, "MOST_TEXTS", 30)
    monkeypatch.setattr(distillation, "MOST_WORDS", 8)
    texts = [f"{text} telephone{i}" for i, text in enumerate(make_sentences(80))]
    texts += ["telephone"] * 9
    kept = []
    fitted = distillation.fit_rows
    monkeypatch.setattr(distillation, "fit_rows", lambda *a: kept.append(a[0]) or fitted(*a))
    part = distill(build_static(16), untitled(texts))
    number, words = kept[0].shape
    assert 20 < number <= 30  # some of the sample are equal
    assert words == 8
    first, second = part_of(part, ["telephone7", "telephone"])  # the same first five letters
    np.testing.assert_array_equal(first, second)


def test_words_in_scripts_without_spaces_are_bigrams():
    texts = ["東京大学は古い。京都は美しい。", "大阪の川と橋", "京都の橋"]
    part = distill(build_model("bert"), untitled(texts))
    vectors = part_of(part, [*texts, "京都", "!"])
    np.testing.assert_allclose(np.linalg.norm(vectors[:-1], axis=1), 1, atol=1e-6)
    assert not vectors[-1].any()


@pytest.mark.parametrize("texts", [["..."] * 9, ["one"], ["the same words"] * 5])
def test_texts_without_different_words_are_refused(texts):
    with pytest.raises(ParameterError) as caught:
        distill(build_static(16), untitled(texts))
    assert caught.value.parameter == "distill"


def test_a_few_texts_are_enough():
    part = distill(build_static(16), untitled(["a cat", "a dog"]))
    assert np.isfinite(part_of(part, ["cat", "dog", "bird"])).all()


def test_a_search_with_the_saved_model_needs_no_transformer(tmp_path, capsys):
    build_model("bert", normalize=True).save(str(tmp_path / "teacher"))
    bodies = make_sentences(40)
    rows = [{"title": f"Text {i}", "text": body} for i, body in enumerate(bodies)]
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["--preset=own-text", f"--train_file={data}", "--dim=16", "--max_steps=3"]
    command += [f"--distill={tmp_path / 'teacher'}", f"--output_dir={tmp_path / 'out'}"]
    assert train([*command, "--train_batch_size=8"]) == 0
    vectors = load_sentence_transformer(str(tmp_path / "out")).encode_document(bodies)
    shutil.rmtree(tmp_path / "teacher")
    plain = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    assert not [module for module in plain.modules() if isinstance(module, Transformer)]
    np.testing.assert_allclose(plain.encode_document(bodies), vectors, rtol=0, atol=1e-6)
    assert plain[0].dims == {"distilled": 16, "lexical": 32, "table": 16}
    assert "teacher" in (tmp_path / "out" / "README.md").read_text()
    capsys.readouterr()
    assert train([*command, f"--hybrid={tmp_path / 'teacher'}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
