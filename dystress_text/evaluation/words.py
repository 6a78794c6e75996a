"""Words alone, the baseline of every table: the cosine of TF-IDF vectors for pairs, BM25 for
search.

from dystress_text.evaluation.words import Words
Words().cosines(["a cat"], ["the cat"])       # (pairs,); what sts and retrieval take in place of an
encoder
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.files.places import EMBEDDED, EMBEDDED_MODEL
from dystress_text.files.whole import sha256_of
from dystress_text.training.run_record import RunRecord

WORDS = "words"  # the row's name, and what --model calls it
TITLE = (
    "pairs by the cosine of TF-IDF over word pieces (sublinear tf, idf of the set's own texts), "
    "search by BM25 over words without English stop words (bm25s)"
)
_TOKENIZER = EMBEDDED / EMBEDDED_MODEL / "tokenizer.json"


class Words:
    """What takes the place of an encoder: similarities of pairs and rankings of documents, from
    words alone.
    """

    def cosines(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float64]:
        """The similarity of each pair, (pairs,); 0 where the texts have no word piece in common.

        A piece that is tf times in a text and in df of the n distinct texts weighs (1 + ln tf)
        (ln((1 + n) / (1 + df)) + 1), scikit-learn's smooth idf. Unknown pieces do not count.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(_TOKENIZER))
        rows = {text: row for row, text in enumerate(dict.fromkeys([*first, *second]))}
        pieces = [
            [piece for piece in encoded.tokens if piece != "[UNK]"]
            for encoded in tokenizer.encode_batch(list(rows), add_special_tokens=False)
        ]
        if not any(pieces):
            return np.zeros(len(first))
        tf_idf = TfidfVectorizer(analyzer=list, sublinear_tf=True)
        vectors = tf_idf.fit_transform(pieces)  # (texts, pieces), sparse
        a = vectors[[rows[text] for text in first]]  # (pairs, pieces)
        b = vectors[[rows[text] for text in second]]
        cosines = np.asarray(a.multiply(b).sum(axis=1)).ravel()
        return cosines.round(12)  # equal texts are equally similar

    def search(
        self, queries: Sequence[str], documents: Sequence[str], most: int
    ) -> list[list[tuple[int, float]]]:
        """For each query the places and BM25 scores of its best documents; none without a word of
        the query.
        """
        import bm25s

        tokenize = partial(
            bm25s.tokenize, return_ids=False, stopwords="english", show_progress=False
        )
        words = tokenize(list(documents))
        if not any(words):
            return [[] for _ in queries]
        index = bm25s.BM25()  # Lucene's form: k1 1.5, b 0.75
        index.index(words, show_progress=False)
        hits = []
        for query in tokenize(list(queries)):
            scores = index.get_scores(query) if query else np.zeros(len(words))  # (documents,)
            best = np.argsort(-scores, kind="stable")[:most]
            hits.append([(int(place), float(scores[place])) for place in best if scores[place] > 0])
        return hits

    @staticmethod
    def about(dtype: str) -> dict[str, Any]:
        """Return the description for the record; the tokenizer stands for a model's weights."""
        return {
            "model": WORDS,
            "pooler_type": None,
            "max_seq_length": None,
            "dtype": dtype,
            "device": "cpu",
            "weights": sha256_of(_TOKENIZER),
            "prompts": None,
        }


def not_beaten(record: RunRecord) -> list[str]:
    """Return a line for each set on which the trained model is not above the lexical baseline."""
    return [
        f"not above the lexical baseline: {name} {record.trained[name]:.1f}, "
        f"TF-IDF/BM25 {record.words[name]:.1f}"
        for name in record.not_above_baseline
    ]
