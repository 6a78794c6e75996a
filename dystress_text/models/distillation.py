"""Distil a model into vectors of words, in closed form, on the text that will be searched.

With F the unit bags of words of some texts, (texts, words), M the model's unit vectors of the same
texts, and T0 those of single words, the vectors of the words are

    T = a T0 + S F' (F S F' + 0.3 I)^-1 (M - a F T0),  S = I + 0.3 T0 T0',

which is ridge regression of M on F towards a T0, with a by least squares. Under S, words that are
similar for the model are corrected alike; it is the same as a linear map of T0, fitted with T.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

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
from dystress_text.models.embedder import Role, encode
from dystress_text.models.hybrid import idf, text_words, word_reader
from dystress_text.models.hybrid_module import DistilledPart, unit

Floats = NDArray[np.float32]

MOST_TEXTS = 10_000  # that the model embeds; a kernel of this size takes 400 MB
MOST_SENTENCES = 3_000  # of them sentences of the documents
MOST_WORDS = 50_000  # by document frequency; others count as the words that start like them
LEAST_WORDS = 4  # of a sentence
RIDGE = 0.3
SHARED = 0.3  # of a correction, by similar words
_AT_ONCE = 256  # texts or columns
_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|(?<=[\u3002\uff01\uff1b\uff1f])")


def distill(
    teacher: SentenceTransformer, texts: Callable[[], Iterable[tuple[str, str]]]
) -> DistilledPart:
    """Return vectors of the words of texts, and show a bar while the teacher embeds.

    Args:
        teacher: any model; its prompt for documents precedes documents, and that for queries
            titles, sentences and single words.
        texts: yields the title, or "", and the whole of each document, each time it is called.

    Raises:
        ParameterError: the texts have no words, or each has the same ones.
    """
    number = 0
    frequencies: Counter[str] = Counter()
    for _, document in texts():
        number += 1
        frequencies.update(dict.fromkeys(text_words(document)).keys())
    common = dict(frequencies.most_common(MOST_WORDS))
    words = list(common)
    weights = [idf(number, texts_with) for texts_with in common.values()]
    if not any(weights):
        raise ParameterError("distill", "needs texts of different words as --train_file")
    reader = word_reader(words, weights)
    documents, short = _sample(texts, number)
    features = reader.features([*documents, *short])
    entries = (features["weights"], features["tokens"], features["offsets"])
    bags = normalize(sparse.csr_matrix(entries, (len(documents) + len(short), len(words))))
    total = sum(map(len, [*documents, *short, *words]))
    with progress_bar(total=total, desc="distilling", unit=" characters", unit_scale=True) as bar:
        vectors = _embed(teacher, documents, "document", bar)
        if short:
            vectors = np.concatenate([vectors, _embed(teacher, short, "query", bar)])
        prior = _embed(teacher, words, "query", bar)
    rows = torch.from_numpy(fit_rows(bags, vectors, prior))
    return DistilledPart(reader, rows)


def _sample(
    texts: Callable[[], Iterable[tuple[str, str]]], number: int
) -> tuple[list[str], list[str]]:
    """Return documents, and titles and sentences of these; at most ``MOST_TEXTS`` together."""
    random = np.random.default_rng(0)
    chosen = set(random.permutation(number)[:MOST_TEXTS].tolist())
    documents: dict[str, None] = {}
    titles: dict[str, None] = {}
    sentences: dict[str, None] = {}
    for i, (title, document) in enumerate(texts()):
        if i in chosen:
            documents[document] = None
            if len(text_words(title)) > 1:
                titles[title] = None
            body = document.removeprefix(title)
            sentences |= dict.fromkeys(_sentences(body))
    some = dict.fromkeys(_chosen(list(sentences), MOST_SENTENCES, random))
    short = [text for text in titles | some if text not in documents]
    kept = set(_chosen([*documents, *short], MOST_TEXTS, random))
    return [text for text in documents if text in kept], [text for text in short if text in kept]


def _chosen(texts: Sequence[str], most: int, random: np.random.Generator) -> list[str]:
    return [texts[i] for i in random.permutation(len(texts))[:most]]


def _sentences(text: str) -> Iterator[str]:
    for sentence in _SENTENCE_END.split(text.strip()):
        if len(text_words(sentence)) >= LEAST_WORDS:
            yield sentence


def _embed(
    teacher: SentenceTransformer, texts: Sequence[str], role: Role, bar: tqdm[None]
) -> Floats:
    """Return unit vectors of texts, (texts, dim)."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    pieces = []
    for start in range(0, len(order), _AT_ONCE):
        some = [texts[i] for i in order[start : start + _AT_ONCE]]
        pieces.append(unit(encode(teacher, some, role)).cpu().numpy())
        bar.update(sum(map(len, some)))
    return np.concatenate(pieces)[np.argsort(order)]


def fit_rows(bags: sparse.csr_matrix, vectors: Floats, prior: Floats) -> Floats:
    """Return T of the module's docstring, (words, dim).

    Args:
        bags: F, (texts, words).
        vectors: M, (texts, dim).
        prior: T0, (words, dim).
    """
    predicted = bags @ prior  # (texts, dim)
    scale = np.vdot(predicted, vectors) / np.vdot(predicted, predicted)
    kernel = SHARED * predicted @ predicted.T  # (texts, texts)
    for start in range(0, len(kernel), _AT_ONCE):  # dense columns take less time and memory
        columns = bags[start : start + _AT_ONCE].T.toarray()
        kernel[:, start : start + _AT_ONCE] += bags @ columns
    kernel[np.diag_indices_from(kernel)] += RIDGE
    factor = cho_factor(kernel, lower=True, overwrite_a=True, check_finite=False)
    duals = cho_solve(factor, vectors - scale * predicted)  # (texts, dim)
    shared = SHARED * prior @ (predicted.T @ duals)
    rows: Floats = (scale * prior + bags.T @ duals + shared).astype(np.float32)
    return rows
