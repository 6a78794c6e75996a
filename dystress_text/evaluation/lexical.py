"""The lexical baseline: cosines of TF-IDF vectors for pairs, BM25 for search.

The terms of a text are the stems of its words and, in scripts without spaces (Chinese, Japanese,
Thai and others), bigrams of characters.

Example:
    >>> LexicalBaseline("english").cosines(["a cat"], ["the cats"]).shape
    (1,)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError
from dystress_text.evaluation.ranking import ranked
from dystress_text.io.words import WordReader, reader_for

LEXICAL = "lexical"  # its name as a `model` and in tables


@dataclass(frozen=True)
class LexicalBaseline:
    """A baseline without a model: similarities and rankings by shared words.

    Args:
        language: the language of the texts, as in :func:`reader_for`; None detects it.
    """

    language: str | None = None

    def cosines(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float64]:
        """Return the TF-IDF cosine of each pair, (pairs,).

        A token that occurs tf times in a text and in df of the n distinct texts has the weight (1 +
        ln tf) (ln((1 + n) / (1 + df)) + 1), scikit-learn's smooth idf. Stop words count.

        Raises:
            DataError: no text has a token.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import

        texts = list(dict.fromkeys([*first, *second]))
        rows = {text: row for row, text in enumerate(texts)}
        reader = replace(reader_for(self.language, texts), keep_stop_words=True)
        tokens = _tokens(reader, texts)
        tf_idf = TfidfVectorizer(analyzer=list, sublinear_tf=True)
        vectors = tf_idf.fit_transform(tokens)  # (texts, tokens), sparse
        of_first = vectors[[rows[text] for text in first]]  # (pairs, tokens)
        of_second = vectors[[rows[text] for text in second]]
        return np.asarray(of_first.multiply(of_second).sum(axis=1)).ravel()

    def scores(
        self, queries: Sequence[str], documents: Sequence[str]
    ) -> Iterator[NDArray[np.float32]]:
        """For each query, yield the BM25 scores of all documents, (documents,).

        The scores of all queries may not fit in memory.

        Raises:
            DataError: no document has a token.
        """
        import bm25s  # slow to import

        reader = reader_for(self.language, documents)
        index = bm25s.BM25()  # Lucene's form: k1 1.5, b 0.75
        index.index(_tokens(reader, documents), show_progress=False)
        for query in queries:
            tokens = reader.tokens(query)
            if tokens:
                yield index.get_scores(tokens)
            else:
                yield np.zeros(len(documents), np.float32)

    def search(
        self, queries: Sequence[str], documents: Sequence[str], most: int
    ) -> Iterator[list[tuple[int, float]]]:
        """Yield, for each query, the best documents that share a token with it.

        Args:
            queries: texts.
            documents: texts.
            most: the number of documents to return for a query.

        Yields:
            Indices and BM25 scores, best first.

        Raises:
            DataError: no document has a token.
        """
        for scores in self.scores(queries, documents):
            yield [(i, float(scores[i])) for i in ranked(scores, most) if scores[i] > 0]


def describe_lexical(words: str) -> str:
    """Describe the baseline over terms such as ``English stems``, for notes."""
    return (
        "pairs by the cosine of TF-IDF (sublinear tf, idf of the set's own texts), search by BM25 "
        f"without stop words (bm25s), over {words}; scripts without spaces by bigrams of characters"
    )


def _tokens(reader: WordReader, texts: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each text; raise an error if no text has any."""
    tokens = [reader.tokens(text) for text in texts]
    if not any(tokens):
        raise DataError("no text has a word")
    return tokens
