"""The options that the training programs for text and images share, as dataclasses.

The help texts of the fields are the programs' help. Names are those of SimCSE and transformers wherever they have one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dystress_text.cli.options import check_options, option
from dystress_text.errors import UserError

TEMPERATURE_BOUNDS = (0.01, 1.0)
AUTO_FP16 = "auto_fp16"
OBJECTIVES = ("infonce", "ntxent", "dcl", "dclw", "macl", "rince", "siglip")
RULES = ("debiased", "hcl", "focal", "adnce", "hardness")
OF_AN_OBJECTIVE = ("rows", "q", "lam", "logit_scale", "logit_bias")
MACL_ROWS = ("infonce", "ntxent")


@dataclass(frozen=True)
class LossSettings:
    """Objective and temperature. An option that is not given has the temperature's own default."""

    _argument_group_name = "objective and temperature"
    _rows_of_macl: ClassVar[str] = "infonce"  # where rows is not given

    objective: str = option("infonce", "The objective.", choices=list(OBJECTIVES))
    temperature: str | None = option(
        None,
        "constant, cosine, shifted_cosine, one_sided_cosine, linear, exponential, monotonic_cosine, "
        "even_ode, scheduled, alignment_adaptive, temo; default shifted_cosine, "
        "constant with --temp, "
        "alignment_adaptive with macl.",
    )
    temp: float | None = option(
        None, "The constant temperature (SimCSE: 0.05); of robust and isogclr the one at the start."
    )
    tau_min: float | None = option(None, "Lowest temperature; profiles: 0.05.")
    tau_max: float | None = option(None, "Highest temperature; profiles: 0.07.")
    shift: float | None = option(None, "shifted_cosine, one_sided_cosine: minus the plateau's start; -0.4 and 0.2.")
    scale: float | None = option(None, "shifted_cosine: the paper's k; (1 + |shift|) / 2.")
    sharpness: float | None = option(None, "exponential: c; 3.5.")
    half_period: float | None = option(None, "scheduled: half a swing, in --unit; 0.1.")
    unit: str | None = option(None, "scheduled: run (the default) or epoch.")
    tau_0: float | None = option(None, "alignment_adaptive: temperature at A = a_0; 0.05. temo: at s = -1; 0.01.")
    alpha: float | None = option(
        None, "alignment_adaptive: how strongly it follows A; 2. temo: how far the temperature rises; 0.04."
    )
    a_0: float | None = option(None, "alignment_adaptive: reference alignment; 0.8.")
    rule: str | None = option(
        None,
        "What the negatives weigh, with any temperature and objective but siglip; default nothing more.",
        choices=RULES,
    )
    tau_plus: float | None = option(None, "debiased, hcl: probability that a negative is a positive; 0.1.")
    beta: float | None = option(None, "hcl: concentration of the weights on hard negatives; 1.")
    margin: float | None = option(None, "focal: added to the similarity that multiplies a negative's logit; 0.3.")
    mu: float | None = option(None, "adnce: similarity of the largest weight; 0.4.")
    hardness_strength: float | None = option(
        None, "hardness: a negative's similarity times this is added to its logit, without a gradient; 9."
    )
    sigma: float | None = option(None, "dclw: width of the weights; 0.5. adnce: of the weights; 1.")
    q: float | None = option(None, "rince: from InfoNCE, towards 0, to a symmetric loss, 1; 0.1.")
    lam: float | None = option(None, "rince: weight of the denominator; 0.01.")
    logit_scale: float | None = option(None, "siglip: its learned scale at the start; 10.")
    logit_bias: float | None = option(None, "siglip: its learned bias at the start; -10.")
    rows: str | None = option(
        None,
        "macl: what it reweights, the rows of infonce (one view against the other) or of ntxent (each view against all "
        "others); infonce.",
        choices=MACL_ROWS,
    )
    detach_temperature: bool = option(True, "Keep the temperature out of the gradient.")
    learn_temperature: bool = option(False, "Train the constant, or a profile's two end points, with the network.")
    temperature_bounds: list[float] = option(
        list(TEMPERATURE_BOUNDS), "learn_temperature: lower and upper bound.", needs="learn_temperature"
    )
    temperature_learning_rate: float = option(
        1e-3,
        "learn_temperature, robust, siglip: peak learning rate of what is learned; no weight decay, no clipping.",
        interval="(0, inf)",
    )

    def __post_init__(self) -> None:
        check_options(self)
        bounds = self.temperature_bounds
        if len(bounds) != 2 or not 0 < bounds[0] < bounds[1] < math.inf:
            given = " ".join(map(str, bounds))
            raise UserError(f"--temperature_bounds: two positive numbers are needed, the lower one first, got {given}")
        if self.rows is None and self.objective == "macl":
            object.__setattr__(self, "rows", self._rows_of_macl)  # so that a run's record says what was trained
        elif self.rows is not None and self.objective != "macl":
            raise UserError(f"--rows: objective {self.objective!r} has its own rows; macl takes the option")


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the loop; the same for text and vision."""

    _argument_group_name = "training loop"

    output_dir: str = option("out", "Folder for the model, the log and checkpoints.")
    overwrite_output_dir: bool = option(False, "Replace the run that output_dir holds.")
    resume_from_checkpoint: str = option(
        "no",
        "Resume the run that output_dir holds; auto also begins one where the folder is absent or empty.",
        nargs="?",
        const="yes",
        metavar="{yes,no,auto}",
    )
    seed: int = option(42, "Seed of everything: initialisation, order, dropout.", interval="[0, 2^32)")
    num_train_epochs: float = option(1, "Passes over the data; 0.5 is half of one.", interval="(0, 2^32)")
    max_steps: int = option(-1, "Optimiser steps, instead of epochs if positive.")
    train_batch_size: int = option(
        64, "Samples per batch over all processes: the global batch, which has the negatives."
    )
    per_device_train_batch_size: int | None = option(
        None, "Samples per batch in each process, instead of train_batch_size.", interval="[1, inf)"
    )
    gradient_accumulation_steps: int = option(
        1, "Batches per step; negatives come from one batch only.", interval="[1, inf)"
    )
    grad_cache_chunk: int | None = option(
        None,
        "Embed so many samples at a time in each process, twice: the gradient of the whole batch in the memory "
        "of a chunk.",
        interval="[1, inf)",
    )
    learning_rate: float = option(3e-5, "Peak learning rate of AdamW.", interval="(0, inf)")
    weight_decay: float = option(
        0.0, "Weight decay of AdamW; not on biases and normalisation layers.", interval="[0, inf]"
    )
    max_grad_norm: float = option(
        1.0, "Largest norm of the gradient, which is clipped; 0 for no clipping.", interval="[0, inf]"
    )
    lr_scheduler_type: str = option(
        "linear", "Decay of the learning rate to 0, or constant.", choices=["linear", "cosine", "constant"]
    )
    warmup_ratio: float = option(0.0, "Share of the steps in which the learning rate rises first.", interval="[0, 1]")
    mixed_precision: str = option(
        "auto",
        "auto: the launcher's precision, else bf16 if the device is fast in it, else fp16 on CUDA, else no. "
        "auto_fp16: the same, but fp16 on every CUDA device, as SimCSE's scripts. "
        "no is fp32, also under a launcher without a precision.",
        choices=["auto", AUTO_FP16, "no", "bf16", "fp16"],
    )
    deterministic: bool = option(
        False,
        "On a GPU: the same kernels each time, so that runs and resumed runs are equal bit by bit; slower. On the CPU "
        "they are anyway.",
    )
    tf32: bool = option(
        False,
        "On a GPU: products of fp32 matrices in TF32, with 10 of the 23 bits; those of the loss, and with "
        "mixed_precision no all of them.",
    )
    evaluation_strategy: str | None = option(
        None,
        "steps: evaluate every eval_steps, the default; epoch: after each epoch; no: not before the end. "
        "The last step is always evaluated.",
        choices=["steps", "epoch", "no"],
    )
    eval_steps: int = option(125, "Steps between evaluations; 0 for only one at the end.", interval="[0, inf)")
    save_steps: int = option(
        0, "Steps between checkpoints; 0 writes one only when a signal stops the run.", interval="[0, inf)"
    )
    save_total_limit: int = option(2, "Number of checkpoints to keep, the newest ones.", interval="[1, inf)")
    logging_steps: int = option(10, "Steps between log lines, and reads from the device.", interval="[1, inf)")
    log_similarity: bool = option(
        False,
        "Write the pairs' similarities, temperatures and shares of the gradient at each step to similarity.jsonl, "
        "which dystress audit reads.",
    )
    high_similarity: float = option(
        0.4,
        "log_similarity: negatives above it form the high-similarity region.",
        interval="[-1, 1)",
        needs="log_similarity",
    )
    metric_for_best_model: str | None = option(None, "The metric that selects the best model (higher is better).")
    early_stopping_patience: int | None = option(
        None,
        "Stop after so many evaluations in a row without a better value of the metric that selects the best model.",
        interval="[1, inf)",
    )
    report_to: str = option(
        "none", "A tracker of accelerate, such as tensorboard or wandb; metrics.jsonl is always written."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_steps < 1 and self.max_steps != -1:
            raise UserError(f"--max_steps: must be at least 1, or -1 for whole epochs, got {self.max_steps}")
        asked = str(self.resume_from_checkpoint).lower()  # True and False too
        object.__setattr__(self, "resume_from_checkpoint", {"true": "yes", "false": "no"}.get(asked, asked))
        if self.resume_from_checkpoint not in ("yes", "no", "auto"):
            raise UserError(
                f"--resume_from_checkpoint: yes, no or auto, got {asked!r}; the run is the one in --output_dir"
            )
        if self.overwrite_output_dir and self.resumes:
            raise UserError("--overwrite_output_dir and --resume_from_checkpoint exclude each other")

    @property
    def resumes(self) -> bool:
        """Whether the run goes on from a checkpoint, if there is one."""
        return self.resume_from_checkpoint != "no"
