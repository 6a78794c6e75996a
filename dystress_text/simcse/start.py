"""The encoder that a run starts from: a plain one, a SimCSE checkpoint, or a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dystress_text.encoders.encoder import SentenceEncoder, build_encoder
from dystress_text.encoders.lora import add_lora
from dystress_text.encoders.masked_lm import load_lm_head
from dystress_text.encoders.pooling import AVERAGED, POOLERS
from dystress_text.encoders.pretrained import Pretrained, load_pretrained, pooler_dense
from dystress_text.encoders.saved_model import SavedModel, find_saved, limit_length, read_head, read_saved
from dystress_text.errors import UserError
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

    Raises:
        UserError: nothing can be loaded, or an option contradicts the loaded model.
    """
    if text.pooler_type not in POOLERS:
        raise UserError(f"--pooler_type: unknown pooler {text.pooler_type!r}; known are {', '.join(POOLERS)}")
    folder, saved = _saved(name)
    pooler_type = _pooler_type(text, given, saved)
    pretrained = load_pretrained(name, text.dropout)
    if saved is not None:
        limit_length(pretrained.tokenizer, saved)
    has_dense = saved is not None and saved.dense is not None
    if has_dense and text.mlp_head is False:
        raise UserError("--mlp_head no: this model has a head of its own, dense + tanh, which stays part of it")
    keep = has_dense or (text.supervised and pooler_type == "cls")  # SimCSE has a head only with cls
    drop = not keep if text.mlp_only_train is None else text.mlp_only_train
    model = build_encoder(pretrained, pooler_type, True if has_dense else text.mlp_head, keep_head=not drop)
    model.normalize = saved is not None and saved.normalize
    source = _start_head(model, pretrained, text, folder if has_dense else None, saved)
    notes = [] if saved is None else [_note_on_model(saved, model)]
    notes += _notes_on_head(model, pretrained, source)
    about: dict[str, Any] = {"head": None if model.head is None else {"starts": source, "kept": model.keep_head}}
    if text.do_mlm:
        model.lm_head = load_lm_head(name, model.transformer)
    if text.lora_rank is not None:
        model.adapt(
            add_lora(
                model.transformer, text.lora_rank, text.lora_alpha, text.lora_dropout or 0.0, text.lora_target_modules
            ),
            keep=text.merge_lora is False,
        )
        about["parameters"] = {
            "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "all": sum(p.numel() for p in model.parameters()),
        }
        notes.append("LoRA: {trained:,} of {all:,} parameters train".format(**about["parameters"]))
    return Start(model, pretrained.tokenizer, tuple(notes), about)


def _saved(name: str) -> tuple[Path, SavedModel] | tuple[None, None]:
    try:
        folder = find_saved(name)
        return (None, None) if folder is None else (folder, read_saved(folder))
    except UserError as error:
        raise UserError(f"--model_name_or_path: {str(error).removeprefix('--model_name_or_path: ')}") from error


def _pooler_type(text: TextSettings, given: Collection[str], saved: SavedModel | None) -> str:
    if saved is None or (saved.pooler_type not in AVERAGED and text.pooler_type not in AVERAGED):
        return text.pooler_type  # both cls and cls_before_pooler are saved as the first token
    if "pooler_type" in given and text.pooler_type != saved.pooler_type:
        raise UserError(
            f"--pooler_type: {text.pooler_type} was given, but this sentence-transformers model has "
            f"{saved.pooler_type}; leave the option out"
        )
    return saved.pooler_type


def _start_head(
    model: SentenceEncoder, pretrained: Pretrained, text: TextSettings, folder: Path | None, saved: SavedModel | None
) -> str:
    """Give the head its first weights, and return their origin."""
    if model.head is None:
        if text.mlp_only_train is False:
            raise UserError("--mlp_only_train no: there is no head to keep; --mlp_head yes adds one")
        if text.mlp_init is not None:
            raise UserError("--mlp_init: there is no head; --mlp_head yes adds one")
        return "none"
    dense = pooler_dense(pretrained.transformer)
    if text.mlp_init == "pooler":
        if pretrained.pooler is None or dense is None:
            raise UserError(f"--mlp_init pooler: {pretrained.name!r} has no weights of a pooler of dense + tanh")
        model.start_head(dense)
        return "SimCSE's MLP" if pretrained.pooler == "mlp" else "the encoder's pooler"
    if text.mlp_init is None and folder is not None and saved is not None:
        model.start_head(read_head(folder, saved))
        return "the model's own"
    if text.mlp_init is None and pretrained.pooler == "mlp" and dense is not None:
        model.start_head(dense)
        return "SimCSE's MLP"
    return "new"


def _note_on_model(saved: SavedModel, model: SentenceEncoder) -> str:
    traits = [f"pooling {model.pooler_type}"]
    if saved.dense:
        traits.append("a head")
    if saved.normalize:
        traits.append("normalised vectors")
    if saved.max_seq_length:
        traits.append(f"at most {saved.max_seq_length} tokens")
    return f"sentence-transformers model: {', '.join(traits)}"


def _notes_on_head(model: SentenceEncoder, pretrained: Pretrained, source: str) -> list[str]:
    """Lines about the origin of the head, whether it is kept, and which weights of a SimCSE folder were loaded."""
    notes = []
    after_training = "kept" if model.keep_head else "dropped after training"
    if model.head is not None and source != "new":
        notes.append(f"the head starts as {source} and is {after_training}")
    elif model.head is not None and model.keep_head:
        notes.append("the head is new and is kept")
    if pretrained.pooler == "mlp":
        loaded = "encoder and MLP" if source == "SimCSE's MLP" else "encoder"
        ignored = [*([] if source == "SimCSE's MLP" else ["mlp"]), *pretrained.left]
        notes.insert(0, f"SimCSE checkpoint: {loaded} loaded" + (f"; ignored: {', '.join(ignored)}" if ignored else ""))
    return notes
