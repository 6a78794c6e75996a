"""The model that a run starts from: a plain encoder with a pooler, a SimCSE checkpoint, a
sentence-transformers model, or a static one.
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
from dystress_text.io.paths import model_path, refuse_folder
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
from dystress_text.models.lora import add_adapters
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

# where the weights of a head come from
NEW_HEAD = "new"
OWN_HEAD = "the model's own"
SIMCSE_HEAD = "SimCSE's MLP"


@dataclass(frozen=True)
class InitialModel:
    """A model before the first step.

    Attributes:
        embedder: what is trained.
        model: what is evaluated and saved: the embedder's model, or the hybrid one around it.
        untrained: the same without a head that is new, for the figures before training.
        tokenizer: of the training text.
        pooler: its name, one of :data:`dystress_text.models.poolers.POOLERS`; None for another.
        notes: lines for the user: what was loaded, what was not, and what is trained.
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
        """Whether the vectors of tokens are trained, without a transformer."""
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
    text: TextSettings, given: Collection[str] = (), texts: TrainingText | None = None
) -> InitialModel:
    """Load or make the model that a run starts from.

    Args:
        text: options of model and data.
        given: the options that the user named.
        texts: the training text, from which a new vocabulary is learned.

    Raises:
        ParameterError: the model cannot be loaded, or an option does not fit it.
    """
    name = model_path(text.model_name_or_path)
    ours = {STATIC: "a new table of word vectors"} if "model_name_or_path" in given else {}
    refuse_folder("model_name_or_path", text.model_name_or_path, ours)
    if name != STATIC:
        reason = f"is of --model_name_or_path {STATIC}; {name!r} has its own"
        if text.vocabulary != "embedded":
            raise ParameterError("vocabulary", reason)
        if "dim" in given:
            raise ParameterError("dim", reason)
        return _load(name, text, given)
    dense = None if text.hybrid is None else load_dense(text.hybrid)
    if text.vocabulary == "text" and texts is not None:
        tokenizer = learn_tokenizer(texts.sentences(texts.report(), TEXTS_READ))
    elif dense is not None and "vocabulary" not in given:
        tokenizer = fast_tokenizer(dense)
    else:
        tokenizer = embedded_tokenizer()
    model = new_static(tokenizer, text.dim, text.normalize is not False)
    note = f"static: {tokenizer.get_vocab_size():,} word pieces, {text.dim} numbers each"
    return _static(model, note, text, given, dense)


def _load(name: str, text: TextSettings, given: Collection[str]) -> InitialModel:
    try:
        if is_hybrid(Path(name)):
            raise UserError(f"{name!r} is a hybrid model; train its parts")
        if not is_sentence_transformer(name):
            return _from_encoder(load_encoder(name, text.dropout), text)
        model = load_sentence_transformer(name, dropout=text.dropout)
    except ParameterError:
        raise
    except UserError as error:
        raise ParameterError("model_name_or_path", str(error)) from error
    if is_static(model):
        note = f"static: {len(model.tokenizer.get_vocab()):,} word pieces of {name!r}"
        dense = None if text.hybrid is None else load_dense(text.hybrid)
        return _static(model, note, text, given, dense)
    if not isinstance(model[0], Transformer):
        reason = f"made of {_kinds(model)}; training needs Transformer or StaticEmbedding first"
        raise ParameterError("model_name_or_path", f"{name!r} is {reason}")
    return _from_model(name, model, text, given)


def _kinds(model: SentenceTransformer) -> str:
    return ", ".join(type(module).__name__ for module in model)


@dataclass(frozen=True)
class _Parts:
    """What a model is assembled from.

    Attributes:
        name: folder or hub name of what was loaded.
        modules: the transformer and its pooling.
        pooler: the pooling's name; None for another.
        normalize: whether embeddings have length 1.
        own_head: dense + tanh on the pooled embedding, part of what was loaded.
        mlp: weights for a head, of a SimCSE checkpoint.
        settings: prompts and similarity.
    """

    name: str
    modules: list[nn.Module]
    pooler: str | None
    normalize: bool
    own_head: Dense | None = None
    mlp: nn.Linear | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def _from_encoder(encoder: PretrainedEncoder, text: TextSettings) -> InitialModel:
    """Put a pooler, perhaps a head, and normalisation on an encoder."""
    _refuse_beside(encoder.name, text)
    pooler = text.pooler_type
    module = encoder.module
    tokenizer = cast(PreTrainedTokenizerBase, module.tokenizer)
    if pooler not in POOLERS:
        raise ParameterError("pooler_type", f"no {pooler!r}; known: {', '.join(POOLERS)}")
    if pooler in FIRST and attends_to_the_left_only(encoder.transformer, tokenizer):
        reason = f"{pooler} is the first token, which in this decoder sees no other; take {LAST}"
        raise ParameterError("pooler_type", reason)
    modules = [module, *pooling_modules(pooler, module)]
    mlp = None
    notes = []
    if encoder.is_simcse:
        mlp = encoder.pooler
        loaded = "encoder and MLP"
        ignored = list(encoder.ignored)
        if mlp is None or not _wants_head(text, pooler):
            loaded = "encoder"
            ignored.insert(0, "mlp")
        left = ", ".join(ignored) or "nothing"
        notes.append(f"SimCSE checkpoint: {loaded} loaded; ignored: {left}")
    parts = _Parts(encoder.name, modules, pooler, text.normalize is not False, mlp=mlp)
    return _assemble(parts, text, notes)


def _from_model(
    name: str, model: SentenceTransformer, text: TextSettings, given: Collection[str]
) -> InitialModel:
    """Train a sentence-transformers model further as it is."""
    _refuse_beside(name, text)
    modules = list(model)
    pooler = pooler_of(model)
    if pooler in FIRST and text.pooler_type in FIRST:
        pooler = text.pooler_type  # both are saved as the first token
    if "pooler_type" in given and text.pooler_type != pooler:
        reason = (
            f"{text.pooler_type} was given, but this sentence-transformers model has "
            f"{pooler or 'another'}; leave the option out"
        )
        raise ParameterError("pooler_type", reason)
    normalize = isinstance(modules[-1], Normalize)
    if normalize:
        modules.pop()
    if text.normalize is not None:
        normalize = text.normalize
    head = None
    if isinstance(modules[-1], Dense):
        if text.mlp_head is False:
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
    settings = {**prompts_of(model), "similarity_fn_name": model.similarity_fn_name}
    parts = _Parts(name, modules, pooler, normalize, head, settings=settings)
    return _assemble(parts, text, notes)


def _wants_head(text: TextSettings, pooler: str | None) -> bool:
    if text.mlp_head is None:
        return pooler == "cls"  # SimCSE's rule
    return text.mlp_head


def _head_of(parts: _Parts, text: TextSettings, transformer: Any) -> tuple[Dense | None, str]:
    """Return the head that is trained, and where its weights come from."""
    if parts.own_head is not None:
        return parts.own_head, OWN_HEAD
    if not _wants_head(text, parts.pooler):
        return None, "none"
    head = new_head(transformer)
    if parts.mlp is None:
        return head, NEW_HEAD
    head.linear.load_state_dict(parts.mlp.state_dict())
    return head, SIMCSE_HEAD


def _assemble(parts: _Parts, text: TextSettings, notes: list[str]) -> InitialModel:
    """Make the model of its parts, and what only its training needs."""
    transformer = transformer_of(cast(Transformer, parts.modules[0]))
    head, source = _head_of(parts, text, transformer)
    keep = source == OWN_HEAD or (text.supervised and parts.pooler == "cls")  # SimCSE's rule
    if text.mlp_only_train is not None:
        keep = not text.mlp_only_train
        if keep and head is None:
            raise ParameterError("mlp_only_train", "there is no head; --mlp_head yes adds one")
    last: list[nn.Module] = [Normalize()] if parts.normalize else []
    made = {"device": "cpu", **parts.settings}
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
    lm_head = load_lm_head(parts.name, transformer) if text.do_mlm else None
    embedder = Embedder(model, head, lm_head)
    if text.lora is not None:
        add_adapters(transformer, text.lora)
        counts = {
            "trained": sum(p.numel() for p in embedder.parameters() if p.requires_grad),
            "all": sum(p.numel() for p in embedder.parameters()),
        }
        metadata["parameters"] = counts
        notes.append(f"LoRA: {counts['trained']:,} of {counts['all']:,} parameters train")
    limit = model.max_seq_length
    if limit is not None and text.max_seq_length > limit:
        reason = f"this encoder reads at most {limit} tokens, got {text.max_seq_length}"
        raise ParameterError("max_seq_length", reason)
    if text.dropout != 0 and text.views == "dropout" and not text.supervised:
        check_views(embedder)  # --dropout 0 is on purpose
    return InitialModel(embedder, model, untrained, tokenizer, parts.pooler, notes, metadata)


def new_head(transformer: Any) -> Dense:
    """Return SimCSE's head, dense + tanh, initialised as the encoder is."""
    dim = transformer.config.hidden_size
    head = Dense(dim, dim, activation_function=nn.Tanh())
    nn.init.normal_(head.linear.weight, std=getattr(transformer.config, "initializer_range", 0.02))
    nn.init.zeros_(head.linear.bias)
    return head


def _static(
    model: SentenceTransformer,
    note: str,
    text: TextSettings,
    given: Collection[str],
    dense: SentenceTransformer | None,
) -> InitialModel:
    """Train a static model, alone or as the lexical part of a hybrid one."""
    name = text.model_name_or_path
    for option in ("mlp_head", "do_mlm", "lora", "dropout"):
        if getattr(text, option):
            reason = f"a static encoder such as {name!r} has none; leave the option out"
            raise ParameterError(option, reason)
    if text.views == "dropout" and not text.supervised:
        reason = "a static encoder has no dropout: its views are crops, --views crop"
        raise ParameterError("views", reason)
    if "pooler_type" in given and text.pooler_type != "avg":
        reason = f"{text.pooler_type} was given, but a static encoder takes the mean; leave it out"
        raise ParameterError("pooler_type", reason)
    freeze_unknown(model)
    tokenizer = pretrained_tokenizer(tokenizer_of(model))
    notes = [note]
    metadata: dict[str, Any] = {"head": None}
    whole = model
    if dense is not None:
        if text.normalize is False:
            reason = "the vectors of both parts with --hybrid have length 1; leave the option out"
            raise ParameterError("normalize", reason)
        whole = new_hybrid(dense, model)
        dim = int(dense.get_embedding_dimension() or 0)
        metadata["hybrid"] = {"dim": dim, "weight": WEIGHT}
        notes.append(f"beside {text.hybrid!r}: {dim} numbers, then {WEIGHT} x the words'")
    elif text.normalize is not None:
        model = _normalized(model, text.normalize)
        whole = model
    return InitialModel(Embedder(model), whole, whole, tokenizer, "avg", notes, metadata)


def _normalized(model: SentenceTransformer, normalize: bool) -> SentenceTransformer:
    """Return a static model with normalisation, or without."""
    modules = [module for module in model if not isinstance(module, Normalize)]
    if normalize:
        modules.append(Normalize())
    return SentenceTransformer(
        modules=modules, device="cpu", similarity_fn_name=model.similarity_fn_name
    )


def _refuse_beside(name: str, text: TextSettings) -> None:
    if text.hybrid is not None:
        raise ParameterError("hybrid", f"--hybrid requires a static encoder; {name!r} is not one")


_TRIALS = ["A model is saved and loaded before the first step.", "Or nowhere Else?"]


def check_saving(initial: InitialModel, scratch: Path) -> None:
    """Check that the model, saved into a scratch folder and loaded, gives the same embeddings.

    The folder is removed, and no random number is drawn.
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
