"""Build, load and save hybrid models: a dense and a lexical embedding in one vector.

The lexical part is a static model trained on one text; the dense model is not trained.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router

from dystress_text.errors import ParameterError, UserError
from dystress_text.io.atomic import atomic_files
from dystress_text.models import hybrid_module
from dystress_text.models.hybrid_module import HybridEmbedding
from dystress_text.models.loading import (
    MODULES,
    is_sentence_transformer,
    load_sentence_transformer,
    prompts_of,
    quiet,
    readable,
    save_model,
)
from dystress_text.models.static import (
    set_unknown,
    table_of,
    tokenizer_of,
    without_special_tokens,
)

WEIGHT = 0.7  # of the lexical part


def new_hybrid(dense: SentenceTransformer, static: SentenceTransformer) -> SentenceTransformer:
    """Return a hybrid model of both, which shares the static model's vectors."""
    set_unknown(static, 0.0)  # a text of unknown tokens has only the dense part
    tokenizer = without_special_tokens(tokenizer_of(static))
    module = HybridEmbedding(dense, table_of(static).detach(), tokenizer, WEIGHT)
    module.table.weight = table_of(static)
    return _as_model(module)


def load_hybrid(folder: Path, device: str | None) -> SentenceTransformer:
    """Load a saved hybrid model by this package's class; the code of the folder is not run."""
    dense = load_sentence_transformer(str(folder / hybrid_module.MODEL), device)
    with readable(str(folder)):
        model = _as_model(HybridEmbedding.from_folder(dense, folder))
    return model.to(dense.device)


def _as_model(module: HybridEmbedding) -> SentenceTransformer:
    return SentenceTransformer(
        modules=[module],
        device=str(module.model.device),
        similarity_fn_name="cosine",
        **prompts_of(module.model),
    )


def hybrid_part(model: SentenceTransformer) -> HybridEmbedding | None:
    """Return the module of a hybrid model; None for any other model."""
    first = model[0]
    return first if isinstance(first, HybridEmbedding) else None


def dense_columns(model: SentenceTransformer) -> int | None:
    """Return how many numbers of a hybrid's vectors are its dense model's, the first ones.

    None if there is no dense model, or its numbers are cut.
    """
    hybrid = hybrid_part(model)
    if hybrid is None or model.truncate_dim is not None:
        return None
    return hybrid.model.get_embedding_dimension()


def save_hybrid(model: SentenceTransformer, folder: str | Path) -> None:
    """Save a hybrid model with the file of its module, so that it loads without this package."""
    file = Path(hybrid_module.__file__)
    with quiet(), atomic_files(folder) as complete:
        save_model(model, complete)
        shutil.copyfile(file, complete / file.name)
        modules = complete / MODULES  # names the class as this package's
        types = modules.read_text(encoding="utf-8")
        modules.write_text(types.replace(hybrid_module.__name__, file.stem), encoding="utf-8")


def check_dense(name_or_path: str) -> None:
    """Check that the dense model of a hybrid can be found, without loading it."""
    try:
        found = is_sentence_transformer(name_or_path)
    except UserError as error:
        raise ParameterError("hybrid", str(error)) from error
    if not found:
        reason = "is not the folder or name of a sentence-transformers model"
        raise ParameterError("hybrid", f"{name_or_path!r} {reason}")


def load_dense(name_or_path: str) -> SentenceTransformer:
    """Load the dense model of a hybrid."""
    try:
        model = load_sentence_transformer(name_or_path)
    except UserError as error:
        raise ParameterError("hybrid", str(error)) from error
    if isinstance(model[0], HybridEmbedding | Router):
        kind = type(model[0]).__name__
        reason = f"has several encoders ({kind}); a model of one encoder is needed"
        raise ParameterError("hybrid", f"{name_or_path!r} {reason}")
    return model
