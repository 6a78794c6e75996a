"""What a text run can be told: its options, as dataclasses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dystress_text.errors import UserError
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.training.settings import EngineSettings, LossSettings


@dataclass
class TextSettings:
    """Encoder and data."""

    _argument_group_name = "encoder and data"

    model_name_or_path: str = field(
        default="bert-base-uncased",
        metadata={
            "help": "Folder or hub name of an encoder, of a SimCSE checkpoint, or of a sentence-transformers model, "
            "whose pooling, head, normalisation and length limit are kept."
        },
    )
    pooler_type: str = field(
        default="cls",
        metadata={
            "help": "One of cls, cls_before_pooler, avg, avg_top2, avg_first_last; of a sentence-transformers model "
            "its own."
        },
    )
    dropout: float | None = field(
        default=None, metadata={"help": "Every dropout rate of the encoder; default: its configuration's."}
    )
    mlp_head: bool | None = field(
        default=None, metadata={"help": "Dense + tanh while training; default as in SimCSE: with cls only."}
    )
    mlp_only_train: bool | None = field(
        default=None,
        metadata={
            "help": "Drop the head after training; no keeps it in the model. Default as in SimCSE: no with "
            "--supervised and cls, else yes; a head that the model comes with is kept.",
            "nargs": "?",
            "const": True,
        },
    )
    mlp_init: str | None = field(
        default=None,
        metadata={
            "help": "Where the head starts: new (random), or pooler: the encoder's own pooler, which in SimCSE's "
            "published models is their MLP. Default: the head or MLP of the checkpoint if it has one, else new.",
            "choices": ["new", "pooler"],
        },
    )
    lora_rank: int | None = field(
        default=None,
        metadata={"help": "Train LoRA adapters of this rank (and the head) alone; default: all weights. Needs peft."},
    )
    lora_alpha: float | None = field(
        default=None, metadata={"help": "lora: the adapters count alpha / rank; default twice the rank."}
    )
    lora_dropout: float | None = field(
        default=None, metadata={"help": "lora: dropout in front of the adapters; default 0."}
    )
    lora_target_modules: list[str] | None = field(
        default=None,
        metadata={"help": "lora: names of linear layers; default peft's choice, for BERT query and value."},
    )
    merge_lora: bool | None = field(
        default=None,
        metadata={
            "help": "lora: save the merged model and nothing else (default); no keeps the adapter's own files beside "
            "it, in adapter/."
        },
    )
    train_file: str | None = field(
        default=None,
        metadata={
            "help": "Sentences, one a line (.txt, .gz, .xz, .bz2), a table (.csv, .tsv, .jsonl, .parquet), or the name "
            "of a data set on the hub; default Wiki1M."
        },
    )
    text_column: str | None = field(
        default=None, metadata={"help": "Column of a table; default its only one, or text, sentence or sent0."}
    )
    supervised: bool = field(
        default=False,
        metadata={
            "help": "Rows of a table belong together: an anchor, its positive, any number of hard negatives; each "
            "sentence is encoded once."
        },
    )
    text_columns: list[str] | None = field(
        default=None, metadata={"help": "supervised: the columns in that order; default all of the table."}
    )
    hard_negative_weight: float = field(
        default=0.0, metadata={"help": "Added to the logits of a row's own hard negatives, after 1 / tau."}
    )
    bidirectional: bool = field(
        default=False, metadata={"help": "infonce: each positive has to find its anchor too; the mean of both losses."}
    )
    mask_duplicates: bool = field(
        default=True,
        metadata={
            "help": "Samples of a batch with the same tokens are no negatives of each other; their number is reported."
        },
    )
    do_mlm: bool = field(
        default=False, metadata={"help": "Add a masked-language-model loss on the same sentences and encoder."}
    )
    mlm_weight: float = field(default=0.1, metadata={"help": "do_mlm: weight of that loss."})
    mlm_probability: float = field(default=0.15, metadata={"help": "do_mlm: share of the tokens to guess."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use the first so many sentences, or rows."})
    max_seq_length: int = field(
        default=32, metadata={"help": "Tokens a training sentence; evaluation has no such cut."}
    )
    packing: bool = field(
        default=True,
        metadata={"help": "Compute nothing for padding; no is transformers' own forward pass, slower and the same."},
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Where prepared data lie; default $DYSTRESS_DATA, else data/prepared."}
    )

    def __post_init__(self) -> None:
        if self.max_seq_length < 3:
            raise UserError(f"--max_seq_length: must be at least 3, got {self.max_seq_length}")
        if self.max_train_samples is not None and self.max_train_samples < 2:
            raise UserError(f"--max_train_samples: must be at least 2, got {self.max_train_samples}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UserError(f"--dropout: must lie in [0, 1), got {self.dropout}")
        if not 0 <= self.mlm_weight < math.inf:
            raise UserError(f"--mlm_weight: must be a number from 0, got {self.mlm_weight}")
        if not 0 < self.mlm_probability < 1:
            raise UserError(f"--mlm_probability: must lie in (0, 1), got {self.mlm_probability}")
        for name in ("mlm_weight", "mlm_probability"):
            if getattr(self, name) != getattr(TextSettings, name) and not self.do_mlm:
                raise UserError(f"--{name}: says nothing without --do_mlm")
        self._check_lora()
        if self.text_columns is not None and not self.supervised:
            raise UserError("--text_columns: says nothing without --supervised; --text_column names a single one")
        if self.text_column is not None and self.supervised:
            raise UserError("--text_column: --supervised takes several, --text_columns")

    def _check_lora(self) -> None:
        for name in ("lora_alpha", "lora_dropout", "lora_target_modules", "merge_lora"):
            if getattr(self, name) is not None and self.lora_rank is None:
                raise UserError(f"--{name}: says nothing without --lora_rank")
        if self.lora_rank is not None and self.lora_rank < 1:
            raise UserError(f"--lora_rank: must be at least 1, got {self.lora_rank}")
        if self.lora_alpha is not None and not 0 < self.lora_alpha < math.inf:
            raise UserError(f"--lora_alpha: must be positive, got {self.lora_alpha}")
        if self.lora_dropout is not None and not 0 <= self.lora_dropout < 1:
            raise UserError(f"--lora_dropout: must lie in [0, 1), got {self.lora_dropout}")


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run.

    Attributes:
        text: encoder and data.
        evaluation: what the run is evaluated on.
        loss: objective and temperature.
        engine: the loop.
        preset: the preset that the settings started from.
        given: the options that the command line or its file names; the others are the preset's or defaults.
    """

    text: TextSettings
    evaluation: EvaluationSettings
    loss: LossSettings
    engine: EngineSettings
    preset: str = "paper"
    given: frozenset[str] = field(default=frozenset(), compare=False)

    def options(self) -> dict[str, Any]:
        """Every option by its name."""
        evaluation = {**vars(self.evaluation), "eval_set": " ".join(self.evaluation.eval_set)}
        return {"preset": self.preset, **vars(self.text), **evaluation, **vars(self.loss), **vars(self.engine)}
