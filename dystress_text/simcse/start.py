"""The encoder that a run starts from: a plain one, a SimCSE checkpoint, or a sentence-transformers
model.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from huggingface_hub import snapshot_download
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from dystress_text.encoders.beside import GIVES, WEIGHT, BesideEncoder, tokenizers_form
from dystress_text.encoders.encoder import SentenceEncoder, check_views, length_limit
from dystress_text.encoders.loading import (
    Pretrained,
    build_encoder,
    is_sentence_transformer,
    is_static,
    load_model,
    load_sentence_transformer,
    readable,
)
from dystress_text.encoders.masked_lm import load_lm_head
from dystress_text.encoders.pooling import FIRST
from dystress_text.encoders.saving import PROMPTS
from dystress_text.encoders.static import NEW, READ, StaticEncoder, StaticTable, new_static, refuse
from dystress_text.errors import ParameterError, UserError
from dystress_text.files.places import model_path, refuse_folder
from dystress_text.files.text_lines import CorpusReport
from dystress_text.simcse.settings import TextSettings
from dystress_text.simcse.texts import TrainingText


@dataclass(frozen=True)
class Start:
    """An encoder before the first step."""

    model: SentenceEncoder
    tokenizer: PreTrainedTokenizerBase
    notes: list[
        str
    ]  # for the user: what was loaded from a checkpoint, what was not, and what trains
    about: dict[str, Any]  # the same for the run's record


def load_start(
    text: TextSettings, given: Collection[str] = (), texts: TrainingText | None = None
) -> Start:
    """The encoder that a run starts from.

    ``given`` are the options that the user named; of ``texts``, the training text, a new vocabulary
    is learned.
    """
    name = model_path(text.model_name_or_path)
    named = "model_name_or_path" in given
    refuse_folder(
        "model_name_or_path",
        text.model_name_or_path,
        {NEW: "a new table of word vectors"} if named else {},
    )
    if text.beside is not None and not (name == NEW or is_static(name)):
        raise ParameterError(
            "beside",
            f"stands beside a static encoder, and {name!r} is none; static makes a new one",
        )
    if text.vocabulary != "embedded" and name != NEW:
        raise ParameterError(
            "vocabulary", f"is of --model_name_or_path {NEW}; {name!r} has its own"
        )
    if "dim" in given and name != NEW:
        raise ParameterError("dim", f"is of --model_name_or_path {NEW}; {name!r} has its own")
    if name == NEW or is_static(name):
        return _static_start(name, text, given, texts)
    try:
        pretrained = load_model(name, text.dropout)
    except ParameterError:
        raise
    except UserError as error:
        raise ParameterError("model_name_or_path", str(error)) from error
    pooler_type, own_head = (
        _pooler_type(text, given, pretrained.pooler_type),
        pretrained.head is not None,
    )
    if own_head and text.mlp_head is False:
        raise ParameterError(
            "mlp_head", "this model has a head of its own, dense + tanh, which stays part of it"
        )
    keep = own_head or (text.supervised and pooler_type == "cls")  # SimCSE has a head only with cls
    drop = not keep if text.mlp_only_train is None else text.mlp_only_train
    model = build_encoder(
        pretrained, pooler_type, True if own_head else text.mlp_head, keep_head=not drop
    )
    model.normalize = _normalize(text, pretrained)
    source = _start_head(model, pretrained, text)
    about: dict[str, Any] = {
        "head": None if model.head is None else {"starts": source, "kept": model.keep_head}
    }
    notes = _notes(model, pretrained, source)
    if text.do_mlm:
        model.lm_head = load_lm_head(name, model.transformer)
    if text.lora is not None:
        model.add_lora(text.lora)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        about["parameters"] = {
            "trained": trained,
            "all": sum(p.numel() for p in model.parameters()),
        }
        notes.append("LoRA: {trained:,} of {all:,} parameters train".format(**about["parameters"]))
    if text.max_seq_length > (limit := length_limit(pretrained.tokenizer, model.transformer)):
        raise ParameterError(
            "max_seq_length",
            f"this encoder reads at most {limit} tokens, got {text.max_seq_length}",
        )
    if (
        text.dropout != 0 and text.views == "dropout" and not text.supervised
    ):  # --dropout 0 is on purpose
        check_views(model, pretrained.tokenizer)
    return Start(model, pretrained.tokenizer, notes, about)


def _static_start(
    name: str, text: TextSettings, given: Collection[str], texts: TrainingText | None
) -> Start:
    refuse(name, mlp_head=text.mlp_head, do_mlm=text.do_mlm, lora=text.lora, dropout=text.dropout)
    if text.views == "dropout" and not text.supervised:
        raise ParameterError(
            "views", "a static encoder has no dropout: its views are crops, --views crop"
        )
    _pooler_type(text, given, "avg")
    if text.beside is not None and text.normalize is False:
        raise ParameterError(
            "normalize",
            "the vectors of both parts with --beside have length 1; leave the option out",
        )
    beside, pieces = (
        (None, None)
        if text.beside is None
        else _load_beside(text.beside, "vocabulary" not in given)
    )
    if name == NEW:
        learned_from = (
            texts.sentences(CorpusReport(), READ) if texts and text.vocabulary == "text" else None
        )
        table, tokenizer = new_static(text.dim, learned_from, pieces)
        model: SentenceEncoder = StaticEncoder(table, text.normalize is not False)
        notes = [f"static: {len(tokenizer):,} word pieces, {text.dim} numbers each"]
    else:
        pretrained = load_model(name)
        model, tokenizer = build_encoder(pretrained), pretrained.tokenizer
        model.normalize = _normalize(text, pretrained)
        notes = [
            f"static: {len(tokenizer):,} word pieces of {name!r}, {model.transformer.config.hidden_size} numbers"
        ]
    about: dict[str, Any] = {"head": None}
    if beside is not None:
        model = both = BesideEncoder(cast(StaticTable, model.transformer), *beside)
        about["beside"] = {"dim": both.dim, "weight": WEIGHT, "gives": GIVES}
        notes.append(f"beside {text.beside!r}: {both.dim} numbers, then {WEIGHT} x the words'")
    return Start(model, tokenizer, notes, about)


def _load_beside(name: str, its_pieces: bool) -> tuple[tuple[Any, Path], Tokenizer | None]:
    """A sentence-transformers model to stand beside, the folder of its files, and its tokenizer if
    it is needed.
    """
    try:
        if not is_sentence_transformer(name):
            raise UserError(f"{name!r} is no folder or name of a sentence-transformers model")
        model = load_sentence_transformer(name, "cpu")
        kinds = [type(module).__name__ for module in model]
        if {"Router", "Asym", "BesideEmbedding"} & {*kinds}:
            raise UserError(
                f"{name!r} is made of {', '.join(kinds)}; one encoder of all texts is needed"
            )
        with readable(name, "encode with"):
            vectors = model.encode(
                ["One text.", ""], convert_to_tensor=True, show_progress_bar=False
            )
            if vectors.ndim != 2 or not vectors.isfinite().all():
                raise UserError(f"{name!r} does not give one vector of numbers a text")
        folder = (
            Path(name)
            if Path(name).is_dir()
            else Path(snapshot_download(name, local_files_only=True))
        )
        return (model, folder), tokenizers_form(model) if its_pieces else None
    except UserError as error:
        raise ParameterError("beside", str(error)) from error


def _normalize(text: TextSettings, pretrained: Pretrained) -> bool:
    if text.normalize is not None:
        return text.normalize
    return pretrained.normalize or pretrained.pooler_type is None  # None of a new sentence encoder


def _pooler_type(text: TextSettings, given: Collection[str], saved: str | None) -> str:
    if saved is None or (saved in FIRST and text.pooler_type in FIRST):
        return text.pooler_type  # both cls and cls_before_pooler are saved as the first token
    if "pooler_type" in given and text.pooler_type != saved:
        reason = f"{text.pooler_type} was given, but this sentence-transformers model has {saved}; leave the option out"
        raise ParameterError("pooler_type", reason)
    return saved


def _start_head(model: SentenceEncoder, pretrained: Pretrained, text: TextSettings) -> str:
    """Give the head the weights that the checkpoint has for it; says where they come from."""
    if model.head is None:
        if text.mlp_only_train is False:
            raise ParameterError("mlp_only_train", "there is no head; --mlp_head yes adds one")
        return "none"
    if pretrained.head is not None:
        model.start_head(pretrained.head)
        return "the model's own"
    if pretrained.simcse and pretrained.pooler is not None:
        model.start_head(pretrained.pooler)
        return "SimCSE's MLP"
    return "new"


def _notes(model: SentenceEncoder, pretrained: Pretrained, source: str) -> list[str]:
    """Lines about what a checkpoint has brought, where the head comes from, and whether it stays."""
    notes, tokenizer = [], pretrained.tokenizer
    if tokenizer.pad_token == tokenizer.eos_token:
        notes.append(
            f"the end-of-sequence token {tokenizer.eos_token} pads: this tokenizer has no padding token"
        )
    if pretrained.pooler_type is not None:
        head, unit = (
            ", a head" * (pretrained.head is not None),
            ", normalised vectors" * pretrained.normalize,
        )
        limit = f", at most {pretrained.tokenizer.model_max_length} tokens"
        notes.append(f"sentence-transformers model: pooling {model.pooler_type}{head}{unit}{limit}")
    if any(
        (kept := getattr(pretrained.transformer.config, PROMPTS, {}).get("prompts", {})).values()
    ):
        names = ", ".join(name for name, prompt in kept.items() if prompt)
        notes.append(
            f"prompts: {names}; training reads plain texts, evaluations and the saved model use them"
        )
    if pretrained.simcse:
        used = source == "SimCSE's MLP"
        ignored = ", ".join(pretrained.left if used else ("mlp", *pretrained.left))
        notes.append(
            f"SimCSE checkpoint: encoder{' and MLP' * used} loaded; ignored: {ignored or 'nothing'}"
        )
    if model.apart:
        why = "a kept head" if model.keep_head else "a mean of layers"
        notes.append(
            f"with {why} only sentence-transformers reads the saved model, and export --to onnx makes one for other "
            "tools; --pooler_type avg is read by all"
        )
    if model.head is not None:
        notes.append(f"head: {source}, {'kept' if model.keep_head else 'dropped after training'}")
    return notes
