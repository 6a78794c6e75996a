"""Named configurations: settings that stand under the flags of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dystress_text.errors import UserError


@dataclass(frozen=True)
class Preset:
    """A configuration.

    Attributes:
        about: what it is, and which row of which table it stands for.
        settings: option names and values; options that are not named keep their defaults.
    """

    about: str
    settings: dict[str, Any]


_SMALL_ENCODER: dict[str, Any] = {
    "pooler_type": "avg",
    "mlp_head": True,
    "learning_rate": 1e-4,
}

PRESETS: dict[str, Preset] = {
    "paper": Preset(
        "BERT-base on Wiki1M as in the paper: Table stsresall, row DySTreSS* 0.05/0.07, STS average 76.37",
        {
            "model_name_or_path": "bert-base-uncased",
            "pooler_type": "cls",
            "max_seq_length": 32,
            "eval_set": "stsb_dev",
            "objective": "infonce",
            "train_batch_size": 64,
            "learning_rate": 3e-5,
            "lr_scheduler_type": "linear",
            "warmup_ratio": 0.0,
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            "num_train_epochs": 1,
            "eval_steps": 125,
        },
    ),
    "small": Preset(
        "a small encoder with nothing but masked-language-model training, on two CPU cores; no row of the paper",
        {**_SMALL_ENCODER, "model_name_or_path": "data/embedded/bert-mini-wiki", "max_steps": 1000},
    ),
    "quickstart": Preset(
        "no network, no GPU: an embedded encoder on sentences of Python's documentation; no row of the paper",
        {
            **_SMALL_ENCODER,
            "model_name_or_path": "data/embedded/bert-mini-wiki",
            "train_file": "python-documentation",
            "eval_set": "mini_sts",
            "max_steps": 150,
            "eval_steps": 0,
        },
    ),
}


def find_preset(name: str, presets: Mapping[str, Preset] = PRESETS) -> Preset:
    """The preset of that name.

    Raises:
        UserError: there is none; the message lists the names.
    """
    if name not in presets:
        raise UserError(f"--preset: unknown preset {name!r}; known are {', '.join(presets)}")
    return presets[name]
