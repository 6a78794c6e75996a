"""The lexical baseline: cosines of TF-IDF vectors for pairs, BM25 for search.

Scripts without spaces (Chinese, Japanese, Thai and others) are read as bigrams of characters.

Example:
    >>> LexicalBaseline().cosines(["a cat"], ["the cat"]).shape
    (1,)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError
from dystress_text.evaluation.ranking import ranked
from dystress_text.io.paths import EMBEDDED, EMBEDDED_MODEL
from dystress_text.io.text_lines import UNSPACED
from dystress_text.training.run_record import RunRecord

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LEXICAL = "lexical"  # its name in --model and tables of evaluations
TITLE = (
    "pairs by the cosine of TF-IDF over word pieces (sublinear tf, idf of the set's own texts), "
    "search by BM25 over words without English stop words (bm25s); scripts without spaces by "
    "bigrams of characters"
)
_TOKENIZER = EMBEDDED / EMBEDDED_MODEL / "tokenizer.json"
_RUN = re.compile(rf"[{UNSPACED}]+")


class LexicalBaseline:
    """An encoder's counterpart without a model: similarities and rankings by shared words."""

    def cosines(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float64]:
        """Return the TF-IDF cosine of each pair, (pairs,).

        A token of :func:`tf_idf_tokens` that occurs tf times in a text, and in df of the n
        distinct texts, has the weight (1 + ln tf) (ln((1 + n) / (1 + df)) + 1), scikit-learn's
        smooth idf.

        Raises:
            DataError: no text has a token.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import

        rows = {text: row for row, text in enumerate(dict.fromkeys([*first, *second]))}
        tokens = _known(tf_idf_tokens(list(rows)))
        tf_idf = TfidfVectorizer(analyzer=list, sublinear_tf=True)
        vectors = tf_idf.fit_transform(tokens)  # (texts, tokens), sparse
        a = vectors[[rows[text] for text in first]]  # (pairs, tokens)
        b = vectors[[rows[text] for text in second]]
        return np.asarray(a.multiply(b).sum(axis=1)).ravel()

    def scores(
        self, queries: Sequence[str], documents: Sequence[str]
    ) -> Iterator[NDArray[np.floating]]:
        """Return BM25's scores of all documents (documents,), query by query.

        Raises:
            DataError: no document has a token of :func:`bm25_tokens`.
        """
        import bm25s

        index = bm25s.BM25()  # Lucene's form: k1 1.5, b 0.75
        index.index(_known(bm25_tokens(documents)), show_progress=False)
        none = np.zeros(len(documents))
        return (index.get_scores(query) if query else none for query in bm25_tokens(queries))

    def search(
        self, queries: Sequence[str], documents: Sequence[str], most: int
    ) -> list[list[tuple[int, float]]]:
        """Return indices and BM25 scores of each query's best documents with a common token.

        Args:
            queries: texts.
            documents: texts.
            most: number of documents.

        Raises:
            DataError: no document has a token of :func:`bm25_tokens`.
        """
        hits = []
        for scores in self.scores(queries, documents):
            best = ranked(scores, most)
            hits.append([(i, float(scores[i])) for i in best if scores[i] > 0])
        return hits


def bm25_tokens(texts: Sequence[str]) -> list[list[str]]:
    """Return the tokens of bm25s: words of two letters or more, without English stop words.

    Scripts without spaces are bigrams of characters.
    """
    import bm25s  # slow to import

    spaced = [_RUN.sub(" ", text) for text in texts]
    tokens: list[list[str]] = bm25s.tokenize(
        spaced, stopwords="english", return_ids=False, show_progress=False
    )
    for text, of_text in zip(texts, tokens, strict=True):
        of_text += _bigrams(text)  # bm25s would drop single characters and Thai's vowel signs
    return tokens


def tf_idf_tokens(texts: Sequence[str]) -> list[list[str]]:
    """Return the word pieces of texts, from the package's encoder.

    A word without pieces is one token; scripts without spaces are bigrams of characters.
    """
    spaced = [_RUN.sub(" ", text) for text in texts]
    tokens = []
    encodings = _tokenizer().encode_batch(spaced, add_special_tokens=False)
    for text, rest, encoding in zip(texts, spaced, encodings, strict=True):
        of_text = _bigrams(text)
        for piece, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
            if piece != "[UNK]":
                of_text.append(piece)
            elif any(map(str.isalnum, rest[start:end])):  # not a mark such as a snowman
                of_text.append(rest[start:end].lower())
        tokens.append(of_text)
    return tokens


@cache
def _tokenizer() -> Tokenizer:
    from tokenizers import Tokenizer  # slow to import

    return Tokenizer.from_file(str(_TOKENIZER))


def _bigrams(text: str) -> list[str]:
    """Return the bigrams of a text in scripts without spaces; a lone character as it is."""
    bigrams = []
    for run in _RUN.findall(text):
        bigrams += [run[i : i + 2] for i in range(max(1, len(run) - 1))]
    return bigrams


def _known(tokens: list[list[str]]) -> list[list[str]]:
    """Return the tokens of texts; refuse texts that have none."""
    if not any(tokens):
        raise DataError("no text has a word")
    return tokens


def not_beaten(record: RunRecord) -> list[str]:
    """Return a line for each measure on which the trained model is not above a baseline."""
    return [
        f"not above {baseline}: {name} {record.trained[name]:.1f}, {baseline} {floor:.1f}"
        for name, baseline, floor in record.not_above_baseline
    ]
