"""Build hybrid models, whose vectors consist of the vectors of several parts.

Only the part ``table`` is trained, a static model. The lexical part counts words of the training
text, and the distilled part or the dense model, which exclude each other, stay as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router

from dystress_text.errors import ParameterError, naming
from dystress_text.io.words import RUN, WORD, WordReader
from dystress_text.models.encoding import prompt_of
from dystress_text.models.hybrid_module import (
    DOCUMENT,
    BagReader,
    DistilledPart,
    HybridEmbedding,
    LexicalPart,
    words_of,
)
from dystress_text.models.loading import (
    is_sentence_transformer,
    load_sentence_transformer,
    prompts_of,
)
from dystress_text.models.static import PIVOT, idf, set_unknown

WEIGHTS = {"dense": 1.0, "distilled": 1.0, "lexical": 1.0, "table": 0.5}
TABLE_BESIDE_DISTILLED = 0.75  # the table's weight with a distilled part
MOST_TOKENS = 200_000  # in the lexical part
TEXTS_MEASURED = 10_000  # at least so many of more give the mean length for the document entry


def new_hybrid(
    static: SentenceTransformer,
    dense: SentenceTransformer | None = None,
    distilled: DistilledPart | None = None,
    lexical: LexicalPart | None = None,
) -> SentenceTransformer:
    """Return a hybrid model of the parts that are given and a table with the vectors of ``static``.

    The table shares the vectors, so training ``static`` trains it.
    """
    set_unknown(static, 0.0)  # so that a text of unknown tokens has only the other parts
    table = SentenceTransformer(modules=[static[0]], device="cpu", **prompts_of(static))
    every = {"dense": dense, "distilled": distilled, "lexical": lexical, "table": table}
    parts = {name: part for name, part in every.items() if part is not None}
    weights = {name: WEIGHTS[name] for name in parts}
    if distilled is not None:
        weights["table"] = TABLE_BESIDE_DISTILLED
    prompts = {"query": "", "document": DOCUMENT}
    default = None
    if dense is not None:
        default = dense.default_prompt_name
        prompts["query"] = prompt_of(dense, "query") or ""
        prompts["document"] += prompt_of(dense, "document") or ""
        prompts = {name: prompt or "" for name, prompt in dense.prompts.items()} | prompts
    return SentenceTransformer(
        modules=[HybridEmbedding(parts, weights)],
        device="cpu",
        prompts=prompts,
        default_prompt_name=default,
        similarity_fn_name="cosine",
    )


def text_words(text: str) -> list[str]:
    """Return all words of a text as hybrid models read them.

    In scripts without spaces the words are character bigrams.
    """
    return words_of(text, WORD, RUN)


def count_tokens(
    texts: Iterable[str],
    tokens_of: Callable[[str], list[str]],
    most: int,
    stop_words: Iterable[str] = (),
) -> tuple[BagReader, list[str], int]:
    """Count the tokens of texts; return a reader of bags, the tokens, and the number of texts.

    Args:
        texts: texts with all the words that the reader will know.
        tokens_of: returns the tokens of a word.
        most: how many tokens to keep, by document frequency.
        stop_words: words without tokens.
    """
    words: dict[str, list[str]] = {word: [] for word in sorted(stop_words)}
    frequencies: Counter[str] = Counter()
    count = 0
    for text in texts:
        count += 1
        of_text: dict[str, None] = {}  # unlike a set it keeps the order
        for word in text_words(text):
            if word not in words:
                words[word] = tokens_of(word)
            of_text |= dict.fromkeys(words[word])
        frequencies.update(of_text.keys())
    kept = dict(frequencies.most_common(most))
    indices = {token: i for i, token in enumerate(kept)}
    known = {}
    for word, tokens in words.items():
        of_word = [indices[token] for token in tokens if token in indices]
        if of_word or not tokens:
            known[word] = of_word
    weights = idf(count, torch.tensor(list(kept.values())))
    return BagReader(known, weights.tolist(), WORD, RUN), list(kept), count


def lexical_part(texts: Callable[[], Iterable[str]], reader: WordReader, dim: int) -> LexicalPart:
    """Return a lexical part that knows the words of texts.

    Args:
        texts: a function that yields the texts.
        reader: splits a word into tokens.
        dim: the dimension of its vectors, including the entry that marks documents.
    """
    bags, tokens, count = count_tokens(texts(), reader.tokens, MOST_TOKENS, reader.stop_words)
    squares = []
    for text in islice(texts(), 0, None, max(1, count // TEXTS_MEASURED)):
        squares.append(sum(weight**2 for weight in bags.bag(text).values()))
    document = math.sqrt(PIVOT * sum(squares) / max(1, len(squares)))
    return LexicalPart(bags, tokens, dim, document)


def hybrid_part(model: SentenceTransformer) -> HybridEmbedding | None:
    """Return the module of a hybrid model, or None for another model."""
    first = model[0]
    return first if isinstance(first, HybridEmbedding) else None


def dense_columns(model: SentenceTransformer) -> int | None:
    """Return how many entries, at the start of a hybrid's vectors, are those of its dense model.

    None means that there is no dense model, or that vectors are truncated.
    """
    hybrid = hybrid_part(model)
    if hybrid is None or model.truncate_dim is not None:
        return None
    return hybrid.dims.get("dense")


def describe_parts(hybrid: HybridEmbedding) -> str:
    """Return a line with the dimensions and weights of the parts."""
    dims = " + ".join(f"{dim:,} {name}" for name, dim in hybrid.dims.items())
    weights = ", ".join(f"{name} {weight:g}" for name, weight in hybrid.weights.items())
    total = hybrid.get_embedding_dimension()
    return f"{dims} = {total:,} numbers; weights: {weights}"


def check_dense(name_or_path: str, option: str) -> None:
    """Check without loading it that a dense model exists; errors name ``option``."""
    with naming(option):
        exists = is_sentence_transformer(name_or_path)
    if not exists:
        reason = "is not the folder or name of a sentence-transformers model"
        raise ParameterError(option, f"{name_or_path!r} {reason}")


def load_dense(name_or_path: str, option: str = "hybrid") -> SentenceTransformer:
    """Load the dense model of a hybrid, or the model to distil; errors name ``option``."""
    with naming(option):
        model = load_sentence_transformer(name_or_path)
    if isinstance(model[0], HybridEmbedding | Router):
        kind = type(model[0]).__name__
        reason = f"has several encoders ({kind}); a model of one encoder is needed"
        raise ParameterError(option, f"{name_or_path!r} {reason}")
    return model
