"""Load the model that a run starts from.

It is a plain encoder with a pooler, a SimCSE checkpoint, a sentence-transformers model, or a static
model.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Transformer
from torch import nn
from transformers import PreTrainedTokenizerBase

from dystress_text.config.settings import TextSettings
from dystress_text.data.texts import TrainingText
from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.io.paths import model_path
from dystress_text.models.embedder import Embedder, check_views, encode
from dystress_text.models.hybrid import (
    WEIGHT,
    hybrid_part,
    load_dense,
    new_hybrid,
    save_hybrid,
)
from dystress_text.models.loading import (
    PretrainedEncoder,
    is_hybrid,
    is_sentence_transformer,
    load_encoder,
    load_sentence_transformer,
    prompts_of,
    transformer_of,
)
from dystress_text.models.masked_lm import load_lm_head
from dystress_text.models.poolers import (
    FIRST,
    LAST,
    POOLERS,
    attends_to_the_left_only,
    pooler_of,
    pooling_modules,
)
from dystress_text.models.static import (
    STATIC,
    TEXTS_READ,
    embedded_tokenizer,
    fast_tokenizer,
    freeze_unknown,
    is_static,
    learn_tokenizer,
    new_static,
    pretrained_tokenizer,
    tokenizer_of,
)

# origin of a head's weights
NEW_HEAD = "new"
OWN_HEAD = "the model's own"
SIMCSE_HEAD = "SimCSE's MLP"


@dataclass(frozen=True)
class InitialModel:
    """A model before the first step.

    Attributes:
        embedder: the module that is trained.
        model: the model that is evaluated and saved: the embedder's, or the hybrid around it.
        untrained: the model without a new head, for the figures before training.
        tokenizer: the tokenizer of the training text.
        pooler: a name of :data:`dystress_text.models.poolers.POOLERS`; None for other pooling.
        notes: lines for the user: what was loaded, what was ignored, and what is trained.
        metadata: the same for the run's record.
    """

    embedder: Embedder
    model: SentenceTransformer
    untrained: SentenceTransformer
    tokenizer: PreTrainedTokenizerBase
    pooler: str | None
    notes: list[str]
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def is_static(self) -> bool:
        """Whether the model is a table of token vectors without a transformer."""
        return is_static(self.embedder.model)

    def to(self, device: torch.device) -> None:
        """Move the model to a device."""
        self.embedder.to(device)
        self.model.to(device)

    def save(self, folder: Path) -> None:
        """Save the model in sentence-transformers' format."""
        if hybrid_part(self.model) is not None:
            save_hybrid(self.model, folder)
        else:
            self.embedder.save(folder)


def load_initial_model(
    settings: TextSettings, given: Collection[str] = (), texts: TrainingText | None = None
) -> InitialModel:
    """Load or make the model that a run starts from.

    Args:
        settings: the options of model and data.
        given: names of the options that the user has given.
        texts: the training text, from which ``vocabulary="text"`` learns word pieces.

    Raises:
        ParameterError: the model cannot be loaded, or an option does not fit it.
    """
    name = model_path(settings.model_name_or_path)
    if name != STATIC:
        reason = f"is of --model_name_or_path {STATIC}; {name!r} has its own"
        if settings.vocabulary != "embedded":
            raise ParameterError("vocabulary", reason)
        if "dim" in given:
            raise ParameterError("dim", reason)
        return _load(name, settings, given)
    dense = None if settings.hybrid is None else load_dense(settings.hybrid)
    if settings.vocabulary == "text" and texts is not None:
        tokenizer = learn_tokenizer(texts.sentences(texts.report(), TEXTS_READ))
    elif dense is not None and "vocabulary" not in given:
        tokenizer = fast_tokenizer(dense)
    else:
        tokenizer = embedded_tokenizer()
    model = new_static(tokenizer, settings.dim, settings.normalize is not False)
    note = f"static: {tokenizer.get_vocab_size():,} word pieces, {settings.dim} numbers each"
    return _static(model, note, settings, given, dense)


def _load(name: str, settings: TextSettings, given: Collection[str]) -> InitialModel:
    try:
        if is_hybrid(Path(name)):
            raise UserError(f"{name!r} is a hybrid model; train its parts")
        if not is_sentence_transformer(name):
            _refuse_hybrid(name, settings)
            return _from_encoder(load_encoder(name, settings.dropout), settings)
        model = load_sentence_transformer(name, dropout=settings.dropout)
    except ParameterError:
        raise
    except UserError as error:
        raise ParameterError("model_name_or_path", str(error)) from error
    if is_static(model):
        note = f"static: {len(model.tokenizer.get_vocab()):,} word pieces of {name!r}"
        dense = None if settings.hybrid is None else load_dense(settings.hybrid)
        return _static(model, note, settings, given, dense)
    if not isinstance(model[0], Transformer):
        reason = f"made of {_kinds(model)}; training needs Transformer or StaticEmbedding first"
        raise ParameterError("model_name_or_path", f"{name!r} is {reason}")
    _refuse_hybrid(name, settings)
    return _from_model(name, model, settings, given)


def _refuse_hybrid(name: str, settings: TextSettings) -> None:
    if settings.hybrid is not None:
        raise ParameterError("hybrid", f"requires a static encoder; {name!r} is not one")


def _kinds(model: SentenceTransformer) -> str:
    return ", ".join(type(module).__name__ for module in model)


@dataclass(frozen=True)
class _Parts:
    """The parts of a model with a transformer.

    Attributes:
        name: folder or hub name of the loaded model.
        modules: the transformer and its pooling.
        pooler: name of the pooling; None for other pooling.
        normalize: whether embeddings have length 1.
        own_head: dense + tanh on the pooled embedding, if the loaded model has one.
        mlp: weights for the head from a SimCSE checkpoint.
        options: prompts and similarity, for the SentenceTransformer.
    """

    name: str
    modules: list[nn.Module]
    pooler: str | None
    normalize: bool
    own_head: Dense | None = None
    mlp: nn.Linear | None = None
    options: dict[str, Any] = field(default_factory=dict)


def _from_encoder(encoder: PretrainedEncoder, settings: TextSettings) -> InitialModel:
    """Add a pooler, perhaps a head, and normalisation to an encoder."""
    pooler = settings.pooler_type
    module = encoder.module
    if pooler not in POOLERS:
        raise ParameterError("pooler_type", f"no {pooler!r}; known: {', '.join(POOLERS)}")
    if pooler in FIRST and attends_to_the_left_only(encoder.transformer):
        reason = f"{pooler} is the first token, which in this decoder sees no other; take {LAST}"
        raise ParameterError("pooler_type", reason)
    modules = [module, *pooling_modules(pooler, module)]
    mlp = None
    notes = []
    if encoder.is_simcse:
        mlp = encoder.pooler
        left = "" if _wants_head(settings, pooler) else "; its MLP is left out"
        notes.append(f"SimCSE checkpoint{left}")
    parts = _Parts(encoder.name, modules, pooler, settings.normalize is not False, mlp=mlp)
    return _assemble(parts, settings, notes)


def _from_model(
    name: str, model: SentenceTransformer, settings: TextSettings, given: Collection[str]
) -> InitialModel:
    """Keep the modules of a sentence-transformers model."""
    modules = list(model)
    pooler = pooler_of(model)
    if pooler in FIRST and settings.pooler_type in FIRST:
        pooler = settings.pooler_type  # both are saved as the first token
    if "pooler_type" in given and settings.pooler_type != pooler:
        reason = (
            f"{settings.pooler_type} was given, but this sentence-transformers model has "
            f"{pooler or 'another'}; leave the option out"
        )
        raise ParameterError("pooler_type", reason)
    normalize = isinstance(modules[-1], Normalize)
    if normalize:
        modules.pop()
    if settings.normalize is not None:
        normalize = settings.normalize
    head = None
    if isinstance(modules[-1], Dense):
        if settings.mlp_head is False:
            reason = "this model has a head of its own, which stays part of it"
            raise ParameterError("mlp_head", reason)
        head = cast(Dense, modules.pop())
    limit = model.max_seq_length
    notes = [f"sentence-transformers model: {_kinds(model)}; at most {limit} tokens"]
    prompts = ", ".join(role for role, prompt in model.prompts.items() if prompt)
    if prompts:
        notes.append(
            f"prompts: {prompts}; training reads plain texts, evaluations and the saved model use "
            "them"
        )
    options = {**prompts_of(model), "similarity_fn_name": model.similarity_fn_name}
    parts = _Parts(name, modules, pooler, normalize, head, options=options)
    return _assemble(parts, settings, notes)


def _wants_head(settings: TextSettings, pooler: str | None) -> bool:
    if settings.mlp_head is None:
        return pooler == "cls"  # SimCSE's rule
    return settings.mlp_head


def _head_of(parts: _Parts, settings: TextSettings, transformer: Any) -> tuple[Dense | None, str]:
    """Return the head and the origin of its weights."""
    if parts.own_head is not None:
        return parts.own_head, OWN_HEAD
    if not _wants_head(settings, parts.pooler):
        return None, "none"
    head = new_head(transformer)
    if parts.mlp is None:
        return head, NEW_HEAD
    head.linear.load_state_dict(parts.mlp.state_dict())
    return head, SIMCSE_HEAD


def _assemble(parts: _Parts, settings: TextSettings, notes: list[str]) -> InitialModel:
    """Assemble the model, and the head and language-model head that only training needs."""
    transformer = transformer_of(cast(Transformer, parts.modules[0]))
    head, source = _head_of(parts, settings, transformer)
    keep = source == OWN_HEAD or (settings.supervised and parts.pooler == "cls")  # SimCSE's rule
    if settings.mlp_only_train is not None:
        keep = not settings.mlp_only_train
        if keep and head is None:
            raise ParameterError("mlp_only_train", "there is no head; --mlp_head yes adds one")
    last: list[nn.Module] = [Normalize()] if parts.normalize else []
    made = {"device": "cpu", **parts.options}
    model = SentenceTransformer(modules=[*parts.modules, *last], **made)
    untrained = model
    metadata: dict[str, Any] = {"head": None}
    tokenizer = cast(PreTrainedTokenizerBase, model.tokenizer)
    if tokenizer.pad_token == tokenizer.eos_token:
        notes.append(
            f"the end-of-sequence token {tokenizer.eos_token} pads: this tokenizer has no padding "
            "token"
        )
    if head is not None:
        metadata["head"] = {"starts": source, "kept": keep}
        notes.append(f"head: {source}, {'kept' if keep else 'dropped after training'}")
        if keep:
            model = SentenceTransformer(modules=[*parts.modules, head, *last], **made)
            if source != NEW_HEAD:
                untrained = model
            head = None  # of the model, and not of its training alone
    lm_head = load_lm_head(parts.name, transformer) if settings.do_mlm else None
    embedder = Embedder(model, head, lm_head)
    limit = model.max_seq_length
    if limit is not None and settings.max_seq_length > limit:
        reason = f"this encoder reads at most {limit} tokens, got {settings.max_seq_length}"
        raise ParameterError("max_seq_length", reason)
    if settings.dropout != 0 and settings.views == "dropout" and not settings.supervised:
        check_views(embedder)  # --dropout 0 is on purpose
    return InitialModel(embedder, model, untrained, tokenizer, parts.pooler, notes, metadata)


def new_head(transformer: Any) -> Dense:
    """Return SimCSE's head, dense + tanh, initialised like the encoder."""
    dim = transformer.config.hidden_size
    head = Dense(dim, dim, activation_function=nn.Tanh())
    nn.init.normal_(head.linear.weight, std=getattr(transformer.config, "initializer_range", 0.02))
    nn.init.zeros_(head.linear.bias)
    return head


def _static(
    model: SentenceTransformer,
    note: str,
    settings: TextSettings,
    given: Collection[str],
    dense: SentenceTransformer | None,
) -> InitialModel:
    """Set up a static model, alone or as the lexical part of a hybrid."""
    name = settings.model_name_or_path
    for option in ("mlp_head", "do_mlm", "dropout"):
        if getattr(settings, option):
            reason = f"a static encoder such as {name!r} has none; leave the option out"
            raise ParameterError(option, reason)
    if settings.views == "dropout" and not settings.supervised:
        reason = "a static encoder has no dropout: its views are crops, --views crop"
        raise ParameterError("views", reason)
    if "pooler_type" in given and settings.pooler_type != "avg":
        reason = f"{settings.pooler_type} was given, but a static encoder takes the mean"
        raise ParameterError("pooler_type", reason)
    freeze_unknown(model)
    tokenizer = pretrained_tokenizer(tokenizer_of(model))
    notes = [note]
    metadata: dict[str, Any] = {"head": None}
    saved = model
    if dense is not None:
        if settings.normalize is False:
            reason = "both parts of a hybrid have length 1; leave the option out"
            raise ParameterError("normalize", reason)
        saved = new_hybrid(dense, model)
        dim = int(dense.get_embedding_dimension() or 0)
        metadata["hybrid"] = {"dim": dim, "weight": WEIGHT}
        notes.append(f"hybrid: {settings.hybrid!r} ({dim} dimensions) and {WEIGHT} x lexical part")
    elif settings.normalize is not None:
        model = _normalized(model, settings.normalize)
        saved = model
    return InitialModel(Embedder(model), saved, saved, tokenizer, "avg", notes, metadata)


def _normalized(model: SentenceTransformer, normalize: bool) -> SentenceTransformer:
    """Return a static model with or without normalisation."""
    modules = [module for module in model if not isinstance(module, Normalize)]
    if normalize:
        modules.append(Normalize())
    return SentenceTransformer(
        modules=modules, device="cpu", similarity_fn_name=model.similarity_fn_name
    )


_TRIALS = ["A model is saved and loaded before the first step.", "Or nowhere Else?"]


def check_saving(initial: InitialModel, scratch: Path) -> None:
    """Check that the model gives the same embeddings when saved and loaded.

    The scratch folder is removed, and the random state stays.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            initial.save(scratch)
            saved = load_sentence_transformer(str(scratch))
            expected = encode(initial.model, _TRIALS).cpu()
            if not torch.allclose(encode(saved, _TRIALS), expected, rtol=1e-4, atol=1e-5):
                raise UserError("its embeddings differ from the model's")
    except (OSError, SafetensorError) as error:  # of writing; reading raises others
        reason = f"cannot write to {str(scratch.parent)!r}: {reason_of(error)}"
        raise ParameterError("output_dir", reason) from error
    except Exception as error:  # of many libraries
        raise UserError(
            "the model, saved before the first step and loaded again, is another one "
            f"({reason_of(error)}): take another encoder, or this one with its own tokenizer"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
