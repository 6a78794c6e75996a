"""Small sentence-transformers models of every kind."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Transformer
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from torch import Tensor, nn

from dystress_text.models.loading import load_encoder
from dystress_text.models.poolers import pooling_modules
from dystress_text.models.static import (
    embedded_tokenizer,
    new_static,
    set_document_row,
    table_of,
)
from dystress_text.models.text_reader import TextReader

POSITIONS = 40  # of the encoders in conftest
TEXTS = [*make_sentences(7), "cat", " ".join(["cat"] * 100)]  # the last one is beyond the positions


def save_encoder(folder: Path, family: str = "bert", special: str = "[CLS] $A [SEP]") -> Path:
    """Save a random encoder and its tokenizer as transformers does."""
    transformer = build_transformer(family)
    # transformers 5 saves on the first rank alone, but each process has its own folder here
    transformer.should_save_on_this_rank = lambda is_main_process: True
    transformer.save_pretrained(folder)
    build_tokenizer(special).save_pretrained(folder)
    return folder


def encoder_module(family: str = "bert", special: str = "[CLS] $A [SEP]") -> Transformer:
    """Return a random encoder as the first module of a model."""
    with tempfile.TemporaryDirectory() as folder:
        return load_encoder(str(save_encoder(Path(folder), family, special))).module


def random_head(dim: int = 16) -> Dense:
    """Return dense + tanh with weights far from the identity and from 0."""
    torch.manual_seed(3)
    head = Dense(dim, dim, activation_function=nn.Tanh())
    nn.init.normal_(head.linear.weight, std=(16 / dim) ** 2)  # a wide one would round more
    nn.init.normal_(head.linear.bias)
    return head


def build_model(
    family: str = "bert",
    pooler: str = "avg",
    head: bool = False,
    normalize: bool = False,
    special: str = "[CLS] $A [SEP]",
    **settings: object,
) -> SentenceTransformer:
    """Return an encoder with a pooler and perhaps more; settings are sentence-transformers'."""
    module = encoder_module(family, special)
    modules = [module, *pooling_modules(pooler, module)]
    if head:
        modules.append(random_head())
    if normalize:
        modules.append(Normalize())
    return SentenceTransformer(modules=modules, device="cpu", **settings)


def without_normalization(model: SentenceTransformer) -> SentenceTransformer:
    """Return the modules before the ``Normalize`` that ends a model, as a model."""
    *modules, last = model
    assert isinstance(last, Normalize)
    own = {"prompts": model.prompts, "default_prompt_name": model.default_prompt_name}
    return SentenceTransformer(modules=modules, device="cpu", **own)


def build_static(
    dim: int = 8, normalize: bool = False, seed: int = 0, small: bool = False
) -> SentenceTransformer:
    """Return a static model with random vectors, with the package's word pieces or few words."""
    pieces = build_tokenizer().backend_tokenizer if small else embedded_tokenizer()
    model = new_static(pieces, dim, normalize)
    nn.init.normal_(table_of(model), generator=torch.Generator().manual_seed(seed))
    return model


def with_document_row(static: SentenceTransformer, texts: Sequence[str]) -> SentenceTransformer:
    """Set the document row of a static model as training on texts does; return the model."""
    set_document_row(static, [TextReader(static, 10_000).batch(texts)])
    return static


def encode_alone(model: SentenceTransformer, texts: Sequence[str]) -> Tensor:
    """Return sentence-transformers' embeddings (texts, dim), each text in a batch of one."""
    encode = functools.partial(model.encode, convert_to_tensor=True, show_progress_bar=False)
    return torch.stack([encode(text) for text in texts])


def text_reader(
    length: int, special: str = "[CLS] $A [SEP]", model: SentenceTransformer | None = None
) -> TextReader:
    """Return what reads training text for a small encoder, or for a model."""
    return TextReader(model or build_model(special=special), length)


def packed_batch(model: SentenceTransformer, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return token ids (tokens,), text after text, and lengths (texts,)."""
    ids = [torch.tensor(of_text) for of_text in model.tokenizer(list(texts))["input_ids"]]
    return torch.cat(ids), torch.tensor([len(of_text) for of_text in ids])


def log_counts(
    texts: Sequence[str], words_of: Callable[[str], list[str]], vocabulary: Sequence[str]
) -> NDArray[np.float64]:
    """Return 1 + ln of the count of each word in each text by scikit-learn, (texts, words)."""
    counts = CountVectorizer(analyzer=words_of, vocabulary=vocabulary).transform(texts)
    sublinear = TfidfTransformer(norm=None, use_idf=False, sublinear_tf=True)
    return sublinear.fit_transform(counts.astype(float)).toarray()


def close(found: object, expected: object, atol: float = 1e-6) -> None:
    """Compare arrays or tensors entry by entry."""
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=atol)


class _Given(nn.Module):
    """Embed texts by a function."""

    def __init__(self, embed: Callable[[Sequence[str]], Tensor]) -> None:
        super().__init__()
        self.embed = embed

    def preprocess(self, inputs: Sequence[str], **_: object) -> dict[str, Tensor]:
        return {"sentence_embedding": self.embed(list(inputs))}

    def forward(self, features: dict[str, Tensor], **_: object) -> dict[str, Tensor]:
        return features


def model_of(embed: Callable[[Sequence[str]], Tensor]) -> SentenceTransformer:
    """Return a model that embeds texts (n,) by a function to (n, dim)."""
    return SentenceTransformer(modules=[_Given(embed)], device="cpu", similarity_fn_name="cosine")
