"""Distil a model into word vectors, in closed form, on the text that will be searched.

F, (texts, words), are bags of words as unit vectors; M, (texts, dim), are the model's unit vectors
of the same texts, and T0, (words, dim), its unit vectors of single words. The word vectors are

    T = a T0 + S F' (F S F' + 0.3 I)^-1 (M - a F T0),  S = I + 0.3 T0 T0'

This is ridge regression of M on F that shrinks T towards a T0, with a from least squares. S makes
words that are similar in T0 share corrections, which equals fitting a linear map of T0 beside T.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from sentence_transformers import SentenceTransformer
from sklearn.preprocessing import normalize
from tqdm import tqdm

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import ParameterError
from dystress_text.models.encoding import Role, encode
from dystress_text.models.hybrid import count_tokens, text_words
from dystress_text.models.hybrid_module import DistilledPart, unit

Floats = NDArray[np.float32]

MOST_TEXTS = 10_000  # embedded by the model; their kernel takes 400 MB
MOST_SENTENCES = 3_000  # among these texts
MOST_WORDS = 50_000  # with the highest document frequency; others share a word's first letters
LEAST_WORDS = 4  # in a sentence
RIDGE = 0.3
SHARED = 0.3  # weight of T0 T0' in S
_AT_ONCE = 256  # texts in a batch, columns in a block
_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|(?<=[\u3002\uff01\uff1b\uff1f])")


def distill(
    teacher: SentenceTransformer, texts: Callable[[], Iterable[tuple[str, str]]]
) -> DistilledPart:
    """Return word vectors distilled from a model; a bar shows how many texts are embedded.

    Args:
        teacher: the model. It embeds documents with its prompt for documents; titles, sentences and
            single words with its prompt for queries.
        texts: a function that yields the title (or "") and the whole text of each document.

    Raises:
        ParameterError: no word distinguishes the texts.
    """
    wholes = (document for _, document in texts())
    reader, words, number = count_tokens(wholes, lambda word: [word], MOST_WORDS)
    if not any(reader.settings["idf"]):
        raise ParameterError("distill", "needs a `train_file` whose texts have different words")
    sample = _sample(texts, number)
    features = reader.features(list(sample))
    entries = (features["weights"], features["tokens"], features["offsets"])
    bags = normalize(sparse.csr_matrix(entries, (len(sample), len(words))))
    total = sum(map(len, [*sample, *words]))
    with progress_bar(total=total, desc="distilling", unit=" characters", unit_scale=True) as bar:
        vectors = _embed(teacher, sample, bar)
        prior = _embed(teacher, dict.fromkeys(words, "query"), bar)
    rows = torch.from_numpy(fit_rows(bags, vectors, prior))
    return DistilledPart(reader, rows)


def _sample(texts: Callable[[], Iterable[tuple[str, str]]], number: int) -> dict[str, Role]:
    """Draw at most ``MOST_TEXTS`` documents, titles and sentences; map each to its role.

    ``number`` is the number of documents.
    """
    random = np.random.default_rng(0)
    drawn = set(random.permutation(number)[:MOST_TEXTS].tolist())
    documents: dict[str, Role] = {}
    titles: dict[str, Role] = {}
    sentences: dict[str, Role] = {}
    for i, (title, document) in enumerate(texts()):
        if i in drawn:
            documents[document] = "document"
            if len(text_words(title)) > 1:
                titles[title] = "query"
            for sentence in _SENTENCE_END.split(document.removeprefix(title).strip()):
                if len(text_words(sentence)) >= LEAST_WORDS:
                    sentences[sentence] = "query"
    some = _draw(sentences, MOST_SENTENCES, random)
    roles = documents | titles | some | documents  # a text that is both is a document
    kept = _draw(roles, MOST_TEXTS, random)
    return {text: role for text, role in roles.items() if text in kept}


def _draw(roles: Mapping[str, Role], most: int, random: np.random.Generator) -> dict[str, Role]:
    texts = list(roles)
    return {texts[i]: roles[texts[i]] for i in random.permutation(len(texts))[:most]}


def _embed(teacher: SentenceTransformer, roles: Mapping[str, Role], bar: tqdm[None]) -> Floats:
    """Return the unit vectors of texts, each encoded in its role, (texts, dim)."""
    vectors: dict[str, Floats] = {}
    for role in sorted(set(roles.values())):
        texts = [text for text in roles if roles[text] == role]
        texts.sort(key=len, reverse=True)
        for start in range(0, len(texts), _AT_ONCE):
            batch = texts[start : start + _AT_ONCE]
            embeddings = unit(encode(teacher, batch, role)).cpu().numpy()
            vectors.update(zip(batch, embeddings, strict=True))
            bar.update(sum(map(len, batch)))
    return np.stack([vectors[text] for text in roles])


def fit_rows(bags: sparse.csr_matrix, vectors: Floats, prior: Floats) -> Floats:
    """Return the word vectors T of this module's docstring, (words, dim).

    Args:
        bags: F, (texts, words).
        vectors: M, (texts, dim).
        prior: T0, (words, dim).
    """
    predicted = bags @ prior  # (texts, dim)
    scale = np.vdot(predicted, vectors) / np.vdot(predicted, predicted)
    kernel = SHARED * predicted @ predicted.T  # (texts, texts)
    for start in range(0, len(kernel), _AT_ONCE):  # less time and memory than a sparse product
        columns = bags[start : start + _AT_ONCE].T.toarray()
        kernel[:, start : start + _AT_ONCE] += bags @ columns
    kernel[np.diag_indices_from(kernel)] += RIDGE
    factor = cho_factor(kernel, lower=True, overwrite_a=True, check_finite=False)
    duals = cho_solve(factor, vectors - scale * predicted)  # (texts, dim)
    shared = SHARED * prior @ (predicted.T @ duals)
    rows: Floats = (scale * prior + bags.T @ duals + shared).astype(np.float32)
    return rows
