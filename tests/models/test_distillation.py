"""Distillation into word vectors against ridge regression of scikit-learn in fp64."""

import json
import shutil

import numpy as np
import pytest
from conftest import make_sentences
from model_cases import build_model, build_static, close, log_counts
from scipy import sparse
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize

from dystress_text.errors import ParameterError
from dystress_text.models import distillation
from dystress_text.models.distillation import distill, fit_rows
from dystress_text.models.hybrid import text_words
from dystress_text.models.loading import load_sentence_transformer
from dystress_text.programs.train import main as train

TITLED = [
    ("One cat", "One cat The cat saw a bird in the tree. It was a red bird."),
    ("", "No dog was in the river; two ducks were."),
    ("The river", "The river Red water ran by the old tree near the dog."),
    ("", "cat"),
    ("", "?!"),
]
DOCUMENTS = [document for _, document in TITLED]
QUERIES = [
    "One cat",
    "The river",
    "The cat saw a bird in the tree.",
    "It was a red bird.",
    "No dog was in the river;",
    "Red water ran by the old tree near the dog.",
]


def untitled(texts):
    return lambda: [("", text) for text in texts]


def ridge(bags, vectors, prior):
    """Fit corrections of words and a map of the prior, both towards 0."""
    predicted = bags @ prior
    scale = (predicted * vectors).sum() / (predicted**2).sum()
    features = np.hstack([bags, np.sqrt(0.3) * predicted])
    fitted = Ridge(0.3, fit_intercept=False, solver="cholesky")
    weights = fitted.fit(features, vectors - scale * predicted).coef_.T
    words = bags.shape[1]
    return scale * prior + weights[:words] + np.sqrt(0.3) * prior @ weights[words:]


def embed(part, texts):
    return normalize(part(part.preprocess(texts))["sentence_embedding"].detach().numpy())


def test_rows_are_those_of_ridge_regression():
    random = np.random.default_rng(0)
    shape = (700, 300)  # more texts than a block has
    bags = normalize(random.random(shape) * (random.random(shape) < 0.05)).astype(np.float32)
    vectors = random.normal(0, 0.2, (700, 24)).astype(np.float32)
    prior = random.normal(0, 0.2, (300, 24)).astype(np.float32)
    expected = ridge(*(np.float64(each) for each in (bags, vectors, prior)))
    close(fit_rows(sparse.csr_matrix(bags), vectors, prior), expected, 1e-4)


def test_part_is_fitted_to_unit_vectors_of_documents_titles_and_sentences():
    teacher = build_model("bert", head=True, prompts={"query": "the cat saw ", "document": "red "})
    texts = DOCUMENTS + QUERIES
    words = sorted({word for text in DOCUMENTS for word in text_words(text)})
    frequencies = (log_counts(DOCUMENTS, text_words, words) > 0).sum(0)
    idf = np.log((0.05 + 5) / (0.05 + frequencies))
    bags = normalize(log_counts(texts, text_words, words) * idf)
    vectors = np.vstack([teacher.encode_document(DOCUMENTS), teacher.encode_query(QUERIES)])
    prior = teacher.encode_query(words)
    rows = ridge(bags, *(normalize(np.float64(each)) for each in (vectors, prior)))
    found = embed(distill(teacher, lambda: TITLED), texts)
    close(found, normalize(bags @ rows), 1e-5)
    np.testing.assert_array_equal(embed(distill(teacher, lambda: TITLED), texts), found)


def test_most_texts_and_words_are_limited(monkeypatch):
    monkeypatch.setattr(distillation, "MOST_TEXTS", 30)
    monkeypatch.setattr(distillation, "MOST_WORDS", 8)
    shapes = []

    def fit(bags, vectors, prior):
        shapes.append(bags.shape)
        return fit_rows(bags, vectors, prior)

    monkeypatch.setattr(distillation, "fit_rows", fit)
    texts = [f"{text} telephone{i}" for i, text in enumerate(make_sentences(80))]
    part = distill(build_static(16), untitled([*texts, *["telephone"] * 9]))
    ((number, words),) = shapes
    assert 20 < number <= 30  # some of the sample are equal
    assert words == 8
    first, second = embed(part, ["telephone7", "telephone"])  # the same first five letters
    np.testing.assert_array_equal(first, second)


def test_words_in_scripts_without_spaces_are_bigrams():
    texts = ["東京大学は古い。京都は美しい。", "大阪の川と橋", "京都の橋"]
    vectors = embed(distill(build_model("bert"), untitled(texts)), [*texts, "京都", "!"])
    close(np.linalg.norm(vectors, axis=1), [1, 1, 1, 1, 0])


@pytest.mark.parametrize("texts", [["..."] * 9, ["one"], ["the same words"] * 5])
def test_texts_without_different_words_are_refused(texts):
    with pytest.raises(ParameterError) as caught:
        distill(build_static(16), untitled(texts))
    assert caught.value.parameter == "distill"


def test_a_few_texts_are_enough():
    part = distill(build_static(16), untitled(["a cat", "a dog"]))
    assert np.isfinite(embed(part, ["cat", "dog", "bird"])).all()


def test_a_search_with_the_saved_model_needs_no_transformer(tmp_path, capsys):
    teacher = tmp_path / "teacher"
    build_model("bert", normalize=True).save(str(teacher))
    bodies = make_sentences(40)
    rows = [json.dumps({"title": f"Text {i}", "text": body}) for i, body in enumerate(bodies)]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    out = tmp_path / "out"
    command = [
        "--preset=own-text",
        f"--train_file={tmp_path / 'texts.jsonl'}",
        f"--distill={teacher}",
        f"--output_dir={out}",
        "--dim=16",
        "--max_steps=3",
        "--train_batch_size=8",
    ]
    assert train(command) == 0
    shutil.rmtree(teacher)
    plain = SentenceTransformer(str(out), trust_remote_code=True, device="cpu")
    assert not [module for module in plain.modules() if isinstance(module, Transformer)]
    vectors = load_sentence_transformer(str(out)).encode_document(bodies)
    close(plain.encode_document(bodies), vectors)
    assert plain[0].dims == {"distilled": 16, "lexical": 32, "table": 16}
    assert "teacher" in (out / "README.md").read_text()
    capsys.readouterr()
    assert train([*command, f"--hybrid={teacher}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
