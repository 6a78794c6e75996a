"""The command line of the text program."""

from __future__ import annotations

from collections.abc import Sequence

from dystress_text.config.settings import PROGRAM, RunSettings
from dystress_text.training.presets import parse_options

SIMCSE = "docs/from-simcse.md lists the options of SimCSE"


def parse(argv: Sequence[str], description: str | None = None) -> RunSettings:
    """Return the settings of a command line."""
    given = parse_options(PROGRAM, argv, "dystress train", description, SIMCSE)
    return RunSettings.of(given)
