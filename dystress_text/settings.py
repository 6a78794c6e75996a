"""What a run can be told: the options of the training program, as dataclasses.

The help texts of the fields are the program's help. Names are SimCSE's and transformers' wherever they have one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dystress_text.errors import UserError

TEMPERATURE_BOUNDS = (0.01, 1.0)
OBJECTIVES = ("infonce", "ntxent", "dcl", "dclw", "macl")


@dataclass
class TextSettings:
    """Encoder and data."""

    _argument_group_name = "encoder, data and evaluation"

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
    eval_set: list[str] = field(
        default_factory=lambda: ["stsb_dev"],
        metadata={
            "help": "Evaluate on these: stsb_dev, mini_sts, sickr_dev, or the test sets sts12 to sts16, stsb_test and "
            "sickr_test, which are to be looked at and not to choose a model by; none for no set."
        },
    )
    eval_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Evaluate on scored pairs of your own too: .csv, .tsv, .jsonl or .parquet files with the columns "
            "sentence1, sentence2 and score (or any three, in that order), or OWNER/NAME[:SPLIT] on the hub."
        },
    )
    eval_columns: list[str] | None = field(
        default=None, metadata={"help": "eval_file: names of the columns of first sentence, second sentence and score."}
    )
    eval_score_range: list[float] | None = field(
        default=None, metadata={"help": "eval_file: lowest and highest score; one outside is refused; default any."}
    )
    eval_transfer: list[str] | None = field(
        default=None,
        metadata={
            "help": "Evaluate on the dev accuracy of these transfer tasks too (MR, CR, SUBJ, MPQA, SST2, TREC, MRPC; "
            "all seven if none is named), SentEval's fast mode. Needs a checkout."
        },
    )

    @property
    def evaluates_further(self) -> bool:
        """Whether there is more to evaluate on than one of the sets known by name."""
        return len(self.eval_set) > 1 or self.eval_file is not None or self.eval_transfer is not None

    def __post_init__(self) -> None:
        given: Any = self.eval_set  # a preset's or a record's is one text
        self.eval_set = " ".join([given] if isinstance(given, str) else given).split()
        if len(set(self.eval_set)) < max(len(self.eval_set), 1) or ("none" in self.eval_set and len(self.eval_set) > 1):
            raise UserError(
                f"--eval_set: one or more sets, each once, or none alone; got {' '.join(self.eval_set) or 'nothing'}"
            )
        self._check_evaluation()
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

    def _check_evaluation(self) -> None:
        for name in ("eval_columns", "eval_score_range"):
            if getattr(self, name) is not None and self.eval_file is None:
                raise UserError(f"--{name}: says nothing without --eval_file")
        if self.eval_columns is not None and (len(self.eval_columns) != 3 or len(set(self.eval_columns)) != 3):
            raise UserError(
                "--eval_columns: three names are needed, of the first sentence, the second and the score; got "
                f"{', '.join(self.eval_columns)}"
            )
        limits = self.eval_score_range
        if limits is not None and not (len(limits) == 2 and -math.inf < limits[0] < limits[1] < math.inf):
            raise UserError(
                "--eval_score_range: two numbers are needed, the lowest and the highest score; got "
                f"{' '.join(f'{limit:g}' for limit in limits)}"
            )


@dataclass
class LossSettings:
    """Objective and temperature. What is not given takes the temperature's own default."""

    _argument_group_name = "objective and temperature"

    objective: str = field(default="infonce", metadata={"help": "The objective.", "choices": list(OBJECTIVES)})
    temperature: str | None = field(
        default=None,
        metadata={
            "help": "constant, cosine, shifted_cosine, one_sided_cosine, linear, exponential, monotonic_cosine, "
            "even_ode, scheduled, alignment_adaptive; default shifted_cosine, constant with --temp, "
            "alignment_adaptive with macl."
        },
    )
    temp: float | None = field(default=None, metadata={"help": "The constant temperature (SimCSE: 0.05)."})
    tau_min: float | None = field(default=None, metadata={"help": "Lowest temperature; profiles: 0.05."})
    tau_max: float | None = field(default=None, metadata={"help": "Highest temperature; profiles: 0.07."})
    shift: float | None = field(
        default=None, metadata={"help": "shifted_cosine, one_sided_cosine: minus the plateau's start; -0.4 and 0.2."}
    )
    scale: float | None = field(default=None, metadata={"help": "shifted_cosine: the paper's k; (1 + |shift|) / 2."})
    sharpness: float | None = field(default=None, metadata={"help": "exponential: c; 3.5."})
    half_period: float | None = field(default=None, metadata={"help": "scheduled: half a swing, in --unit; 0.1."})
    unit: str | None = field(default=None, metadata={"help": "scheduled: run (the default) or epoch."})
    tau_0: float | None = field(default=None, metadata={"help": "alignment_adaptive: temperature at A = a_0; 0.05."})
    alpha: float | None = field(default=None, metadata={"help": "alignment_adaptive: how strongly it follows A; 2."})
    a_0: float | None = field(default=None, metadata={"help": "alignment_adaptive: reference alignment; 0.8."})
    sigma: float | None = field(default=None, metadata={"help": "dclw: width of the weights; 0.5."})
    detach_temperature: bool = field(default=True, metadata={"help": "Keep the temperature out of the gradient."})
    learn_temperature: bool = field(
        default=False, metadata={"help": "Train the constant, or a profile's two end points, with the network."}
    )
    temperature_bounds: list[float] = field(
        default_factory=lambda: list(TEMPERATURE_BOUNDS), metadata={"help": "learn_temperature: it stays between them."}
    )
    temperature_learning_rate: float = field(
        default=1e-3,
        metadata={"help": "learn_temperature: its peak learning rate; it has no weight decay and is not clipped."},
    )

    def __post_init__(self) -> None:
        bounds = self.temperature_bounds
        if len(bounds) != 2 or not 0 < bounds[0] < bounds[1] < math.inf:
            said = " ".join(map(str, bounds))
            raise UserError(f"--temperature_bounds: two positive numbers are needed, the lower one first, got {said}")
        if not 0 < self.temperature_learning_rate < math.inf:
            raise UserError(f"--temperature_learning_rate: must be positive, got {self.temperature_learning_rate}")
        if not self.learn_temperature:
            if self.temperature_learning_rate != LossSettings.temperature_learning_rate:
                raise UserError("--temperature_learning_rate: says nothing without --learn_temperature")
            if bounds != list(TEMPERATURE_BOUNDS):
                raise UserError("--temperature_bounds: says nothing without --learn_temperature")


@dataclass
class EngineSettings:
    """Settings of the loop; the same for text and vision."""

    _argument_group_name = "training loop"

    output_dir: str = field(default="out", metadata={"help": "Where the model, the log and checkpoints go."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the run that output_dir holds."})
    resume_from_checkpoint: bool = field(default=False, metadata={"help": "Go on with the run that output_dir holds."})
    seed: int = field(default=42, metadata={"help": "Of everything: initialisation, order, dropout."})
    num_train_epochs: int = field(default=1, metadata={"help": "Passes over the data."})
    max_steps: int = field(default=-1, metadata={"help": "Optimiser steps, instead of epochs if positive."})
    train_batch_size: int = field(
        default=64, metadata={"help": "Samples a batch over all processes together: what contrasts with what."}
    )
    per_device_train_batch_size: int | None = field(
        default=None, metadata={"help": "Samples a batch in each process, instead of train_batch_size."}
    )
    gradient_accumulation_steps: int = field(
        default=1, metadata={"help": "Batches a step; negatives come from one batch alone."}
    )
    grad_cache_chunk: int | None = field(
        default=None,
        metadata={
            "help": "Embed a batch so many samples at a time in each process, twice; the gradient is the whole batch's "
            "and the memory the chunk's."
        },
    )
    learning_rate: float = field(default=3e-5, metadata={"help": "Peak learning rate of AdamW."})
    weight_decay: float = field(default=0.0, metadata={"help": "Of AdamW; not on biases and normalisation layers."})
    max_grad_norm: float = field(default=1.0, metadata={"help": "Clip the gradient's norm; 0 for no clipping."})
    lr_scheduler_type: str = field(
        default="linear",
        metadata={"help": "Fall of the learning rate to 0.", "choices": ["linear", "cosine", "constant"]},
    )
    warmup_ratio: float = field(default=0.0, metadata={"help": "Share of the steps over which the rate rises first."})
    mixed_precision: str = field(
        default="auto",
        metadata={
            "help": "auto: what the launcher says, else bf16 where the device is fast in it, else fp16 on CUDA, else "
            "no. Give no for fp32 under a launcher that says nothing.",
            "choices": ["auto", "no", "bf16", "fp16"],
        },
    )
    eval_steps: int = field(default=125, metadata={"help": "Steps between evaluations; 0 for one at the end."})
    save_steps: int = field(
        default=0, metadata={"help": "Steps between checkpoints; 0 for none but that of a run that is told to stop."}
    )
    save_total_limit: int = field(default=2, metadata={"help": "Keep so many checkpoints, the newest ones."})
    logging_steps: int = field(default=10, metadata={"help": "Steps between log lines, and reads from the device."})
    log_similarity: bool = field(
        default=False,
        metadata={
            "help": "Write what the temperature does to the pairs of each step to similarity.jsonl: similarities, "
            "temperatures, and where the gradient goes."
        },
    )
    high_similarity: float = field(
        default=0.4, metadata={"help": "log_similarity: negatives above it are the high-similarity region."}
    )
    metric_for_best_model: str | None = field(
        default=None, metadata={"help": "The metric by which the best model is kept (higher is better)."}
    )
    report_to: str = field(
        default="none",
        metadata={"help": "A tracker of accelerate, such as tensorboard or wandb; metrics.jsonl always."},
    )

    def __post_init__(self) -> None:
        for name in (
            "num_train_epochs", "gradient_accumulation_steps", "logging_steps", "per_device_train_batch_size",
            "grad_cache_chunk", "save_total_limit",
        ):  # fmt: skip
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"--{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("weight_decay", "max_grad_norm", "eval_steps", "save_steps"):
            if not getattr(self, name) >= 0:
                raise UserError(f"--{name}: must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed: must lie in [0, 2^32), got {self.seed}")
        if not 0 < self.learning_rate < math.inf:
            raise UserError(f"--learning_rate: must be positive, got {self.learning_rate}")
        if not 0 <= self.warmup_ratio <= 1:
            raise UserError(f"--warmup_ratio: must lie in [0, 1], got {self.warmup_ratio}")
        if not -1 <= self.high_similarity < 1:
            raise UserError(f"--high_similarity: must lie in [-1, 1), got {self.high_similarity}")
        if self.high_similarity != EngineSettings.high_similarity and not self.log_similarity:
            raise UserError("--high_similarity: says nothing without --log_similarity")
        if self.max_steps < 1 and self.max_steps != -1:
            raise UserError(f"--max_steps: must be at least 1, or -1 for whole epochs, got {self.max_steps}")
        if self.overwrite_output_dir and self.resume_from_checkpoint:
            raise UserError("--overwrite_output_dir and --resume_from_checkpoint exclude each other")


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run.

    Attributes:
        text: encoder and data.
        loss: objective and temperature.
        engine: the loop.
        preset: the preset that the settings started from.
        given: the options that the command line or its file names; the others are the preset's or defaults.
    """

    text: TextSettings
    loss: LossSettings
    engine: EngineSettings
    preset: str = "paper"
    given: frozenset[str] = field(default=frozenset(), compare=False)

    def options(self) -> dict[str, Any]:
        """Every option by its name."""
        text = {**vars(self.text), "eval_set": " ".join(self.text.eval_set)}
        return {"preset": self.preset, **text, **vars(self.loss), **vars(self.engine)}
