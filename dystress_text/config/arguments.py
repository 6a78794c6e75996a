"""The command line of the text program."""

from __future__ import annotations

from collections.abc import Sequence

from dystress_text.config.settings import PROGRAM, RunSettings
from dystress_text.training.presets import parse_options

# options in the short --help
COMMON = (
    "model_name_or_path", "train_file", "sample", "views", "supervised", "pooler_type",
    "max_seq_length", "loss", "eval_set", "eval_file", "output_dir", "overwrite_output_dir",
    "resume_from_checkpoint", "seed", "num_train_epochs", "max_steps", "train_batch_size",
    "learning_rate",
)  # fmt: skip
SIMCSE = "docs/from-simcse.md lists the options of SimCSE"


def parse(argv: Sequence[str], description: str | None = None) -> RunSettings:
    """Return the settings of a command line."""
    given = parse_options(PROGRAM, argv, "dystress train", description, COMMON, SIMCSE)
    return RunSettings.of(given)
