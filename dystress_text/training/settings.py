"""The options that the training programs for text and images share, as dataclasses.

The help texts of the fields are the programs' help. Names are those of SimCSE and transformers wherever they have one.
"""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any, ClassVar

from dystress_text.cli.options import check_options, option
from dystress_text.errors import ParameterError, UserError
from dystress_text.training.constructors import constructor_options, core_classes, lineage, parameters, registered

AUTO_FP16 = "auto_fp16"
OBJECTIVES = {  # classes of dystress_text.core
    "infonce": "InfoNCELoss", "ntxent": "NTXentLoss", "dcl": "DCLLoss", "dclw": "DCLWLoss", "macl": "MACLLoss",
    "rince": "RINCELoss", "siglip": "SigLIPLoss",
}  # fmt: skip
RULES = {
    "debiased": "DebiasedRule", "hcl": "HardNegativeRule", "focal": "FocalRule", "adnce": "ADNCERule",
    "hardness": "HardnessRule",
}  # fmt: skip
MACL_ROWS = ("infonce", "ntxent")
_CLASSES = core_classes()
TEMPERATURES = registered(_CLASSES)
PROFILES = [name for name, cls in TEMPERATURES.items() if _CLASSES["ProfileTemperature"] in lineage(cls, _CLASSES)]
# what temperatures, rules and objectives take besides what all objectives take
_OF_TEMPERATURES = {
    "temp" if name == "tau" else name: found for name, found in constructor_options(TEMPERATURES, _CLASSES).items()
}
_OF_OTHERS = {
    name: found
    for name, found in constructor_options({**RULES, **OBJECTIVES}, _CLASSES).items()
    if name not in (*parameters("ContrastiveLoss", _CLASSES), *_OF_TEMPERATURES, "bidirectional", "both_views")
}
TEMPERATURE_OPTIONS = tuple(_OF_TEMPERATURES)
GRID = tuple(option for option in TEMPERATURE_OPTIONS if option != "unit")  # the numbers, which a sweep varies
OWNERS = {name: tuple(found.described) for name, found in _OF_OTHERS.items()}  # of an option: rules and objectives
OF_AN_OBJECTIVE = ("rows", *(name for name, owners in OWNERS.items() if set(owners) <= set(OBJECTIVES)))
# options that may differ between a run and its continuation
FREE_OPTIONS = (
    "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "save_steps", "save_total_limit", "logging_steps",
    "report_to", "log_similarity", "train_file", "text_column", "eval_file", "dataset", "data_dir",
    "train_list", "skip_corrupt", "tsv_quoting", "preset", "push_to_hub",
)  # fmt: skip

DATA_OPTIONS = {"train_file", "text_column", "eval_file", "dataset", "train_list"}
# options that may differ between two runs of one configuration, which has one training text
CONFIGURATION_FREE = {*FREE_OPTIONS, "metric_for_best_model"} - DATA_OPTIONS


_ConstructorOptions: Any = make_dataclass(
    "_ConstructorOptions",
    [(name, found.kind | None, option(None, found.help)) for name, found in (_OF_TEMPERATURES | _OF_OTHERS).items()],
    frozen=True,
)


@dataclass(frozen=True)
class LossSettings(_ConstructorOptions):  # type: ignore[misc]  # its fields are those of the constructors
    """Objective and temperature. An option that is not given has the default of the temperature, rule or objective.

    The options of the constructors, such as ``tau_min`` and ``sigma``, are fields too; ``temp`` is a constant's tau.
    """

    default_temperature: ClassVar[str] = "shifted_cosine"
    default_rows: ClassVar[str] = "infonce"
    # options of a temperature that are not given, before its constructor's defaults
    fallbacks: ClassVar[dict[str, dict[str, Any]]] = {
        "profile": {"tau_min": 0.05, "tau_max": 0.07},  # the paper's best STS row
        # five swings a run: fine-tuning has one epoch, not hundreds
        "scheduled": {"tau_min": 0.05, "tau_max": 0.07, "unit": "run", "half_period": 0.1},
    }

    objective: str = option("infonce", "The objective.", choices=list(OBJECTIVES))
    temperature: str | None = option(
        None, f"{', '.join(TEMPERATURES)}; default shifted_cosine, constant with --temp, alignment_adaptive with macl."
    )
    rule: str | None = option(
        None,
        "What the negatives weigh, with any temperature and objective but siglip; default nothing more.",
        choices=list(RULES),
    )
    rows: str | None = option(
        None,
        "macl: what it reweights, the rows of infonce (one view against the other) or of ntxent (each view against all "
        "others); infonce.",
        choices=MACL_ROWS,
    )
    detach_temperature: bool = option(True, "Keep the temperature out of the gradient.")
    learn_temperature: bool = option(False, "Train the constant, or a profile's two end points, with the network.")
    temperature_bounds: list[float] = option(
        [0.01, 1.0], "learn_temperature: lower and upper bound.", needs="learn_temperature"
    )
    temperature_learning_rate: float = option(
        1e-3,
        "learn_temperature, siglip: peak learning rate of what is learned; no weight decay, no clipping.",
        interval="(0, inf)",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if len(self.temperature_bounds) != 2:
            raise ParameterError("temperature_bounds", f"two numbers are needed, got {self.temperature_bounds}")
        if self.rows is None and self.objective == "macl":
            object.__setattr__(self, "rows", self.default_rows)  # so that a run's record says what was trained
        elif self.rows is not None and self.objective != "macl":
            raise ParameterError("rows", f"objective {self.objective!r} has its own rows; macl takes the option")


@dataclass(frozen=True)
class EngineSettings:
    """The training loop. It is the same for text and vision."""

    output_dir: str = option("out", "Folder for the model, the log and checkpoints.")
    overwrite_output_dir: bool = option(False, "Replace the run that output_dir holds.")
    resume_from_checkpoint: str = option(
        "no",
        "Resume the run that output_dir holds; auto also begins one where the folder is absent or empty.",
        nargs="?",
        const="yes",
        choices=["yes", "no", "auto"],
    )
    seed: int = option(42, "Seed of everything: initialisation, order, dropout.", interval="[0, 4294967296)")
    num_train_epochs: float = option(1, "Passes over the data; 0.5 is half of one.", interval="(0, 4294967296)")
    max_steps: int = option(-1, "Optimiser steps, instead of epochs if positive.", interval="[-1, inf)")
    max_epochs: float | None = option(
        None, "Most passes over the data, whatever max_steps.", interval="(0, 4294967296)"
    )
    train_batch_size: int = option(64, "Samples per batch over all processes, which have the negatives.")
    per_device_train_batch_size: int | None = option(
        None, "Samples per batch in each process, instead of train_batch_size.", interval="[1, inf)"
    )
    gradient_accumulation_steps: int = option(1, "Batches per step, each with its own negatives.", interval="[1, inf)")
    grad_cache_chunk: int | None = option(
        None, "Samples that a process embeds at a time, twice: a large batch in little memory.", interval="[1, inf)"
    )
    learning_rate: float = option(3e-5, "Peak learning rate of AdamW.", interval="(0, inf)")
    weight_decay: float = option(0.0, "Weight decay of AdamW, without biases and norms.", interval="[0, inf]")
    max_grad_norm: float = option(1.0, "The gradient is clipped to this norm; 0: not at all.", interval="[0, inf]")
    lr_scheduler_type: str = option("linear", "Decay to 0, or constant.", choices=["linear", "cosine", "constant"])
    warmup_ratio: float = option(0.0, "Share of the steps in which the learning rate rises first.", interval="[0, 1]")
    mixed_precision: str = option(
        "auto",
        "auto: the launcher's precision, else bf16 if the device is fast in it, else fp16 on CUDA, else no. "
        "auto_fp16: the same, but fp16 on every CUDA device, as SimCSE's scripts. "
        "no is fp32, also under a launcher without a precision.",
        choices=["auto", AUTO_FP16, "no", "bf16", "fp16"],
    )
    deterministic: bool = option(
        False, "On a GPU: the same kernels each time, so that runs are equal bit by bit, as on the CPU anyway; slower."
    )
    tf32: bool = option(
        False, "On a GPU: products in TF32 (10 of 23 bits): of the loss, or with mixed_precision no all of them."
    )
    evaluation_strategy: str | None = option(
        None, "When to evaluate besides the last step; default steps.", choices=["steps", "epoch", "no"]
    )
    eval_steps: int = option(125, "Steps between evaluations; 0 for only one at the end.", interval="[0, inf)")
    save_steps: int = option(0, "Steps between checkpoints; 0: only when a signal stops the run.", interval="[0, inf)")
    save_total_limit: int = option(2, "Number of checkpoints to keep, the newest ones.", interval="[1, inf)")
    logging_steps: int = option(10, "Steps between log lines, and reads from the device.", interval="[1, inf)")
    log_similarity: bool = option(
        False, "Write similarities, temperatures and gradients of pairs to similarity.jsonl, for dystress audit."
    )
    metric_for_best_model: str | None = option(None, "The metric that selects the best model (higher is better).")
    report_to: str = option("none", "A tracker of accelerate, such as wandb, besides metrics.jsonl.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.overwrite_output_dir and self.resumes:
            raise UserError("--overwrite_output_dir and --resume_from_checkpoint exclude each other")

    @property
    def resumes(self) -> bool:
        """Whether the run goes on from a checkpoint, if there is one."""
        return self.resume_from_checkpoint != "no"


def global_batch_size(settings: EngineSettings, world_size: int) -> int:
    """The size of the global batch, over all processes: at least 2, and the same for each of them."""
    if settings.per_device_train_batch_size is not None:
        option, size = "per_device_train_batch_size", settings.per_device_train_batch_size * world_size
    else:
        option, size = "train_batch_size", settings.train_batch_size
    if size < 2:
        raise ParameterError(
            option,
            "must be at least 2 over all processes (a single pair has no negatives, and a single image no batch "
            f"statistics), got {size}",
        )
    if size % world_size:
        raise ParameterError(
            option,
            f"{size} does not divide among {world_size} processes; use a multiple of {world_size}, or "
            "--per_device_train_batch_size",
        )
    return size
