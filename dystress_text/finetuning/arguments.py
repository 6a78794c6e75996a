"""Parse the command line of text training."""

from __future__ import annotations

from collections.abc import Sequence

from dystress_text.cli.presets import parse_options
from dystress_text.finetuning.settings import PROGRAM, FineTuningSettings

SIMCSE = "docs/from-simcse.md lists the options of SimCSE"


def parse(argv: Sequence[str], description: str | None = None) -> FineTuningSettings:
    options = parse_options(PROGRAM, argv, "dystress train", description, SIMCSE)
    return FineTuningSettings.of(options)
