"""What a run can be told: the options of the training program, as dataclasses.

The help texts of the fields are the program's help. Names are SimCSE's and transformers' wherever they have one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dystress_text.errors import UserError

TEMPERATURE_BOUNDS = (0.01, 1.0)
OBJECTIVES = ("infonce", "ntxent", "dcl", "dclw", "macl")


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
