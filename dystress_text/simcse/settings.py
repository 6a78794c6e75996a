"""What a text run can be told: its options, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dystress_text.cli.options import check_options, option
from dystress_text.errors import UserError
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.training.settings import EngineSettings, LossSettings


@dataclass(frozen=True)
class TextSettings:
    """Encoder and data."""

    _argument_group_name = "encoder and data"

    model_name_or_path: str = option(
        "bert-base-uncased",
        "Folder or hub name of an encoder, of a SimCSE checkpoint, or of a sentence-transformers model, "
        "whose pooling, head, normalisation and length limit are kept.",
    )
    pooler_type: str = option(
        "cls", "One of cls, cls_before_pooler, avg, avg_top2, avg_first_last; of a sentence-transformers model its own."
    )
    dropout: float | None = option(
        None, "Every dropout rate of the encoder; default: its configuration's.", interval="[0, 1)"
    )
    mlp_head: bool | None = option(None, "Dense + tanh while training; default as in SimCSE: with cls only.")
    mlp_only_train: bool | None = option(
        None,
        "Drop the head after training; no keeps it in the model. Default as in SimCSE: no with "
        "--supervised and cls, else yes; a head that the model comes with is kept.",
        nargs="?",
        const=True,
    )
    mlp_init: str | None = option(
        None,
        "Where the head starts: new (random), or pooler: the encoder's own pooler, which in SimCSE's "
        "published models is their MLP. Default: the head or MLP of the checkpoint if it has one, else new.",
        choices=["new", "pooler"],
    )
    lora_rank: int | None = option(
        None,
        "Train LoRA adapters of this rank (and the head) alone; default: all weights. Needs peft.",
        interval="[1, inf)",
    )
    lora_alpha: float | None = option(
        None, "lora: the adapters count alpha / rank; default twice the rank.", interval="(0, inf)", needs="lora_rank"
    )
    lora_dropout: float | None = option(
        None, "lora: dropout in front of the adapters; default 0.", interval="[0, 1)", needs="lora_rank"
    )
    lora_target_modules: list[str] | None = option(
        None, "lora: names of linear layers; default peft's choice, for BERT query and value.", needs="lora_rank"
    )
    merge_lora: bool | None = option(
        None,
        "lora: save the merged model and nothing else (default); no keeps the adapter's own files beside "
        "it, in adapter/.",
        needs="lora_rank",
    )
    train_file: str | None = option(
        None,
        "Sentences, one a line (.txt, .gz, .xz, .bz2), a table (.csv, .tsv, .jsonl, .parquet), or the name "
        "of a data set on the hub; default Wiki1M.",
    )
    text_column: str | None = option(None, "Column of a table; default its only one, or text, sentence or sent0.")
    supervised: bool = option(
        False,
        "Rows of a table belong together: an anchor, its positive, any number of hard negatives; each "
        "sentence is encoded once.",
    )
    text_columns: list[str] | None = option(
        None, "supervised: the columns in that order; default all of the table.", needs="supervised"
    )
    hard_negative_weight: float = option(0.0, "Added to the logits of a row's own hard negatives, after 1 / tau.")
    bidirectional: bool = option(False, "infonce: each positive has to find its anchor too; the mean of both losses.")
    mask_duplicates: bool = option(
        True, "Samples of a batch with the same tokens are no negatives of each other; their number is reported."
    )
    do_mlm: bool = option(False, "Add a masked-language-model loss on the same sentences and encoder.")
    mlm_weight: float = option(0.1, "do_mlm: weight of that loss.", interval="[0, inf)", needs="do_mlm")
    mlm_probability: float = option(0.15, "do_mlm: share of the tokens to guess.", interval="(0, 1)", needs="do_mlm")
    max_train_samples: int | None = option(None, "Use the first so many sentences, or rows.", interval="[2, inf)")
    max_seq_length: int = option(32, "Tokens a training sentence; evaluation has no such cut.", interval="[3, inf)")
    packing: bool = option(
        True, "Compute nothing for padding; no is transformers' own forward pass, slower and the same."
    )
    data_dir: str | None = option(None, "Where prepared data lie; default $DYSTRESS_DATA, else data/prepared.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.text_column is not None and self.supervised:
            raise UserError("--text_column: --supervised takes several, --text_columns")


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
