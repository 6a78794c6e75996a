"""The options of a text run, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dystress_text.cli.options import check_options, option
from dystress_text.core.distillation import LIST_LOSSES
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
        "cls",
        "One of cls, cls_before_pooler, avg, avg_top2, avg_first_last; a sentence-transformers model keeps its own.",
    )
    dropout: float | None = option(
        None, "Every dropout rate of the encoder; default: its configuration's.", interval="[0, 1)"
    )
    mlp_head: bool | None = option(None, "Train a head, dense + tanh; default as in SimCSE: with cls only.")
    mlp_only_train: bool | None = option(
        None,
        "Drop the head after training; no keeps it in the model. Default as in SimCSE: no with "
        "--supervised and cls, else yes; a head that the loaded model has is kept.",
        nargs="?",
        const=True,
    )
    mlp_init: str | None = option(
        None,
        "First weights of the head: new (random), or pooler (the encoder's own pooler; in SimCSE's published "
        "models it is their MLP). Default: the head or MLP of the checkpoint if it has one, else new.",
        choices=["new", "pooler"],
    )
    lora_rank: int | None = option(
        None,
        "Train only LoRA adapters of this rank and the head; default: all weights. Needs peft.",
        interval="[1, inf)",
    )
    lora_alpha: float | None = option(
        None,
        "lora: the adapters' output is scaled by alpha / rank; default twice the rank.",
        interval="(0, inf)",
        needs="lora_rank",
    )
    lora_dropout: float | None = option(
        None, "lora: dropout in front of the adapters; default 0.", interval="[0, 1)", needs="lora_rank"
    )
    lora_target_modules: list[str] | None = option(
        None, "lora: names of linear layers; default peft's choice, for BERT query and value.", needs="lora_rank"
    )
    merge_lora: bool | None = option(
        None,
        "lora: save only the merged model (default); no also saves the adapter's own files, in adapter/.",
        needs="lora_rank",
    )
    train_file: str | None = option(
        None,
        "Sentences, one per line (.txt, .gz, .xz, .bz2), a table (.csv, .tsv, .jsonl, .parquet), or the name "
        "of a data set on the hub; default Wiki1M.",
    )
    text_column: str | None = option(None, "Column of a table; default its only one, or text, sentence or sent0.")
    supervised: bool = option(
        False,
        "A row of the table is an anchor, its positive, and any number of hard negatives; each sentence is "
        "encoded once.",
    )
    text_columns: list[str] | None = option(
        None, "supervised: the columns in that order; default all columns of the table.", needs="supervised"
    )
    hard_negative_weight: float = option(0.0, "Added to the logits of a row's own hard negatives, after 1 / tau.")
    bidirectional: bool = option(
        False, "infonce: each positive has to find its anchor too; the loss is the mean of both directions."
    )
    mask_duplicates: bool = option(
        True,
        "Samples with the same tokens are not used as negatives for each other; the run reports their number.",
    )
    do_mlm: bool = option(False, "Add a masked-language-model loss on the same sentences and encoder.")
    mlm_weight: float = option(0.1, "do_mlm: weight of that loss.", interval="[0, inf)", needs="do_mlm")
    mlm_probability: float = option(
        0.15, "do_mlm: share of the tokens that are masked.", interval="(0, 1)", needs="do_mlm"
    )
    max_train_samples: int | None = option(None, "Use only the first sentences or rows, so many.", interval="[2, inf)")
    held_out: int = option(
        0,
        "Leave so many random sentences or rows, at most a tenth, out of training; at the end their random pairs say "
        "which similarity is high. With 0 it is some of those that were trained on.",
        interval="[0, inf)",
    )
    random_pairs: int = option(
        4_000,
        "Sentences of the training text whose random pairs are measured at the end where none are held out; "
        "0 leaves that out.",
        interval="[0, inf)",
    )
    max_seq_length: int = option(
        32, "Most tokens of a training sentence; evaluation uses the encoder's limit.", interval="[3, inf)"
    )
    guide: str | None = option(
        None,
        "A frozen sentence-transformers model, or base for a copy of the start: pairs that it finds too alike are no "
        "negatives. Say from where on: guide_threshold, guide_quantile or guide_margin.",
    )
    guide_threshold: float | None = option(
        None, "guide: a pair with a larger cosine is no negative.", interval="[-1, 1]", needs="guide"
    )
    guide_quantile: float | None = option(
        None,
        "guide: the same above this quantile of the guide's cosines of the batch's different samples; 0.95 leaves a "
        "twentieth of the pairs out.",
        interval="(0, 1)",
        needs="guide",
    )
    guide_margin: float | None = option(
        None,
        "guide, supervised: a pair whose cosine is above that of the anchor and its positive less this margin is no "
        "negative; 0 is GISTEmbed.",
        needs="guide",
    )
    guide_margin_strategy: str | None = option(
        None,
        "guide_margin: absolute, or relative to the positive's cosine; absolute.",
        choices=["absolute", "relative"],
    )
    teacher: str | None = option(
        None,
        "A frozen sentence-transformers model of any dimension, or base for a copy of the start: its ranking of each "
        "sentence's neighbours in the batch is learned beside the loss.",
    )
    teacher_loss: str | None = option(None, "teacher: the loss of a ranking; listnet.", choices=LIST_LOSSES)
    teacher_weight: float | None = option(None, "teacher: weight of that loss; 1.", interval="(0, inf)")
    teacher_temperature: float | None = option(
        None, "teacher: divides the teacher's cosines, for listnet; 0.025.", interval="(0, inf)"
    )
    student_temperature: float | None = option(
        None, "teacher: divides the model's cosines in that loss; 0.05.", interval="(0, inf)"
    )
    interpolate: float | None = option(
        None,
        "Save (1 - alpha) times the weights of the start plus alpha times the trained ones; 0 saves the start.",
        interval="[0, 1]",
    )
    matryoshka_dims: list[int] | None = option(
        None, "Sum the loss over the first so many dimensions of the vectors, such as 256 128 64, for each of them."
    )
    packing: bool = option(
        True, "Compute nothing for padding; no takes transformers' own forward pass: slower, with the same result."
    )
    data_dir: str | None = option(None, "Folder of prepared data; default: where dystress prepare puts them.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.text_column is not None and self.supervised:
            raise UserError("--text_column: with --supervised use --text_columns, which takes several")
        self._check_guide()
        self._check_teacher()
        if self.interpolate is not None and self.lora_rank is not None:
            raise UserError("--interpolate: does not go with --lora_rank, whose weights are products")
        if self.matryoshka_dims is not None and min(self.matryoshka_dims, default=0) < 1:
            raise UserError(f"--matryoshka_dims: positive numbers are needed, got {self.matryoshka_dims}")

    def _check_guide(self) -> None:
        limits = ("guide_threshold", "guide_quantile", "guide_margin")
        given = [f"--{name}" for name in limits if getattr(self, name) is not None]
        if self.guide is not None and len(given) != 1:
            raise UserError(
                f"--guide: one of --guide_threshold, --guide_quantile and --guide_margin says which pairs are no "
                f"negatives, got {' and '.join(given) or 'none'}"
            )
        if self.guide_margin is not None and not self.supervised:
            raise UserError(
                "--guide_margin: needs --supervised; to a guide two views of a sentence are one, so take "
                "--guide_quantile or --guide_threshold"
            )
        if self.guide_margin_strategy is not None and self.guide_margin is None:
            raise UserError("--guide_margin_strategy: has no effect without --guide_margin")

    def _check_teacher(self) -> None:
        defaults = {"teacher_loss": "listnet", "teacher_weight": 1.0, "teacher_temperature": 0.025,
                    "student_temperature": 0.05}  # fmt: skip
        for name, default in defaults.items():
            if self.teacher is None and getattr(self, name) is not None:
                raise UserError(f"--{name}: has no effect without --teacher")
            if self.teacher is not None and getattr(self, name) is None:
                object.__setattr__(self, name, default)  # so that a run's record says what was trained


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run.

    Attributes:
        text: encoder and data.
        evaluation: the evaluation during the run.
        loss: objective and temperature.
        engine: the loop.
        preset: the name of the preset.
        given: the options that the command line or its file names; the others have the preset's value or the default.
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
