"""Options for training on text and on images.

Options of SimCSE and transformers keep their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dystress_text.cli.options import check_options, option
from dystress_text.errors import ParameterError

AUTO_FP16 = "auto_fp16"
TRACKER_FOLDER = "tracker-logs"  # inside the folder of a run
# options that may change when a run resumes
FREE_OPTIONS = (
    "output_dir",
    "overwrite_output_dir",
    "resume_from_checkpoint",
    "save_steps",
    "keep_checkpoints",
    "logging_steps",
    "report_to",
    "log_similarity",
    "no_samples",
    "train_file",
    "pairs",
    "dataset",
    "data_dir",
    "train_list",
    "skip_corrupt",
    "max_pixels",
    "preset",
    "push_to_hub",
)
# options that may differ between two runs of one configuration
CONFIGURATION_FREE = {*FREE_OPTIONS, "metric_for_best_model"} - {
    "train_file",
    "pairs",
    "dataset",
    "train_list",
}


@dataclass(frozen=True)
class TrainingSettings:
    """Options of the training loop."""

    title: ClassVar[str] = "the training loop"

    output_dir: str = option("out", "Folder for the model, the log and checkpoints.")
    overwrite_output_dir: bool = option(False, "Replace the run in output_dir.")
    resume_from_checkpoint: str = option(
        "no",
        "Resume the run in output_dir; auto also starts one if the folder is absent or empty.",
        nargs="?",
        const="yes",
        choices=["yes", "no", "auto"],
    )
    seed: int = option(42, "Seed of initialisation, order and dropout.", interval="[0, 4294967296)")
    num_train_epochs: float | None = option(
        None,
        "Passes over the data, such as 0.5; default 1 without --max_steps.",
        interval="(0, 4294967296)",
    )
    max_steps: int = option(
        -1,
        "Optimiser steps at most; -1 or 0: no limit.",
        interval="[-1, inf)",
    )
    train_batch_size: int = option(
        64, "Global batch size; the other samples serve as negatives.", interval="[2, inf)"
    )
    gradient_accumulation_steps: int = option(
        1, "Batches per step, each with its own negatives.", interval="[1, inf)"
    )
    grad_cache_chunk: int | None = option(
        None,
        "Chunk size for gradient caching, per process.",
        interval="[1, inf)",
    )
    learning_rate: float = option(3e-5, "Peak learning rate of AdamW.", interval="(0, inf)")
    weight_decay: float = option(
        0.0, "Weight decay of AdamW, except for biases and norms.", interval="[0, inf]"
    )
    max_grad_norm: float = option(
        1.0, "Clip the gradient to this norm; 0: do not clip.", interval="[0, inf]"
    )
    lr_scheduler_type: str = option(
        "linear", "Decay to 0, or constant.", choices=["linear", "cosine", "constant"]
    )
    warmup_ratio: float = option(0.0, "Fraction of the steps for linear warmup.", interval="[0, 1]")
    mixed_precision: str = option(
        "auto",
        "no is fp32. auto: the launcher's precision, else bf16 if the device supports it, else "
        "fp16 on CUDA, else no. auto_fp16: the same, but fp16 on every CUDA device, as in SimCSE.",
        choices=["auto", AUTO_FP16, "no", "bf16", "fp16"],
    )
    deterministic: bool = option(
        False,
        "Use deterministic kernels on a GPU; slower.",
    )
    eval_steps: int = option(
        125, "Steps between evaluations; 0: only at the end.", interval="[0, inf)"
    )
    save_steps: int = option(
        0, "Steps between checkpoints; 0: only when a signal stops the run.", interval="[0, inf)"
    )
    keep_checkpoints: bool = option(False, "Keep the checkpoints of a run that has finished.")
    logging_steps: int = option(10, "Steps between log lines.", interval="[1, inf)")
    log_similarity: bool = option(
        False,
        "Log similarities, temperatures and gradients to similarity.jsonl for dystress audit.",
    )
    metric_for_best_model: str | None = option(
        None, "The metric that selects the best model (higher is better)."
    )
    report_to: str = option(
        "none", "A tracker of accelerate, such as wandb, in addition to metrics.jsonl."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.overwrite_output_dir and self.resumes:
            reason = "cannot be combined with `resume_from_checkpoint`"
            raise ParameterError("overwrite_output_dir", reason)

    @property
    def resumes(self) -> bool:
        """Whether to resume from a checkpoint, if there is one."""
        return self.resume_from_checkpoint != "no"
