"""The encoder that a run starts from: a plain one, a SimCSE checkpoint, or a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from dystress_text.encoders.encoder import SentenceEncoder, length_limit
from dystress_text.encoders.loading import Pretrained, build_encoder, load_model
from dystress_text.encoders.masked_lm import load_lm_head
from dystress_text.encoders.pooling import AVERAGED
from dystress_text.errors import ParameterError, UserError
from dystress_text.simcse.settings import TextSettings


@dataclass(frozen=True)
class Start:
    """An encoder before the first step.

    Attributes:
        model: the encoder; a sentence-transformers model has brought its own ``pooler_type``.
        tokenizer: of the encoder.
        notes: lines for the user: what was loaded from a checkpoint, what was not, and what trains.
        about: the same for the run's record.
    """

    model: SentenceEncoder
    tokenizer: PreTrainedTokenizerBase
    notes: tuple[str, ...]
    about: dict[str, Any]

    @property
    def has_head(self) -> bool:
        """Whether a trained head is part of the model, so that its vectors are those after the head."""
        return self.model.keep_head and self.about["head"]["starts"] != "new"


def load_start(name: str, text: TextSettings, given: Collection[str] = ()) -> Start:
    """The encoder that a run starts from.

    Args:
        name: folder or hub name.
        text: the options of encoder and data.
        given: the options that the user named; if it has ``pooler_type``, a model with a pooler of its own must agree.
    """
    try:
        pretrained = load_model(name, text.dropout)
    except ParameterError:
        raise
    except UserError as error:
        raise ParameterError("model_name_or_path", str(error)) from error
    pooler_type = _pooler_type(text, given, pretrained.pooler_type)
    if pretrained.head is not None and text.mlp_head is False:
        raise ParameterError("mlp_head", "this model has a head of its own, dense + tanh, which stays part of it")
    keep = pretrained.head is not None or (text.supervised and pooler_type == "cls")  # SimCSE has a head only with cls
    drop = not keep if text.mlp_only_train is None else text.mlp_only_train
    model = build_encoder(pretrained, pooler_type, text.mlp_head if pretrained.head is None else True, not drop)
    source = _start_head(model, pretrained, text)
    notes = [] if pretrained.pooler_type is None else [_note_on_model(pretrained, model)]
    notes += _notes_on_head(model, pretrained, source)
    about: dict[str, Any] = {"head": None if model.head is None else {"starts": source, "kept": model.keep_head}}
    if text.do_mlm:
        model.lm_head = load_lm_head(name, model.transformer)
    if text.lora_rank is not None:
        keep = text.merge_lora is False
        model.add_lora(text.lora_rank, text.lora_alpha, text.lora_dropout or 0.0, text.lora_target_modules, keep)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        about["parameters"] = {"trained": trained, "all": sum(p.numel() for p in model.parameters())}
        notes.append("LoRA: {trained:,} of {all:,} parameters train".format(**about["parameters"]))
    return Start(model, pretrained.tokenizer, tuple(notes), about)


def _pooler_type(text: TextSettings, given: Collection[str], saved: str | None) -> str:
    if saved is None or (saved not in AVERAGED and text.pooler_type not in AVERAGED):
        return text.pooler_type  # both cls and cls_before_pooler are saved as the first token
    if "pooler_type" in given and text.pooler_type != saved:
        raise ParameterError(
            "pooler_type",
            f"{text.pooler_type} was given, but this sentence-transformers model has {saved}; leave the option out",
        )
    return saved


def _start_head(model: SentenceEncoder, pretrained: Pretrained, text: TextSettings) -> str:
    """Give the head its first weights, those of a sentence-transformers model if it has some; says their origin."""
    if model.head is None:
        if text.mlp_only_train is False or text.mlp_init is not None:
            name = "mlp_init" if text.mlp_init is not None else "mlp_only_train"
            raise ParameterError(name, "there is no head; mlp_head adds one")
        return "none"
    dense = pretrained.pooler
    if text.mlp_init == "pooler" and dense is None:
        raise ParameterError("mlp_init", f"{pretrained.name!r} has no weights of a pooler of dense + tanh")
    if text.mlp_init is None and pretrained.head is not None:
        model.start_head(pretrained.head)
        return "the model's own"
    if dense is not None and (text.mlp_init == "pooler" or (text.mlp_init is None and pretrained.simcse)):
        model.start_head(dense)
        return "SimCSE's MLP" if pretrained.simcse else "the encoder's pooler"
    return "new"


def _note_on_model(pretrained: Pretrained, model: SentenceEncoder) -> str:
    traits = [
        f"pooling {model.pooler_type}",
        "a head" if pretrained.head else "",
        "normalised vectors" if pretrained.normalize else "",
        f"at most {length_limit(pretrained.tokenizer, pretrained.transformer)} tokens",
    ]
    return f"sentence-transformers model: {', '.join(filter(None, traits))}"


def _notes_on_head(model: SentenceEncoder, pretrained: Pretrained, source: str) -> list[str]:
    """Lines about the origin of the head, whether it is kept, and which weights of a SimCSE folder were loaded."""
    notes = []
    if pretrained.simcse:
        mlp = source == "SimCSE's MLP"
        ignored = ", ".join([*([] if mlp else ["mlp"]), *pretrained.left])
        notes = [f"SimCSE checkpoint: encoder{' and MLP' * mlp} loaded" + (f"; ignored: {ignored}" if ignored else "")]
    if model.head is not None and source != "new":
        notes.append(f"the head starts as {source} and is {'kept' if model.keep_head else 'dropped after training'}")
    elif model.keep_head:
        notes.append("the head is new and is kept")
    return notes
