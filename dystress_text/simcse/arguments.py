"""The command line of the text program."""

from __future__ import annotations

from collections.abc import Sequence

from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.simcse.flags import translate
from dystress_text.simcse.presets import PRESETS
from dystress_text.simcse.settings import RunSettings, TextSettings
from dystress_text.training.arguments import flags_of_line, parse_settings
from dystress_text.training.settings import EngineSettings, LossSettings


def parse(argv: Sequence[str], description: str | None = None) -> RunSettings:
    """Settings from the command line, which may be one of SimCSE's own.

    Raises:
        UserError: a name is unknown, or a value is out of range.
    """
    groups = (TextSettings, EvaluationSettings, LossSettings, EngineSettings)
    words = translate(flags_of_line(argv, groups))
    (text, evaluation, loss, engine), preset = parse_settings(words, groups, PRESETS, "paper", "train.py", description)
    named = (word.removeprefix("--").split("=")[0] for word in words if word.startswith("--"))
    given = frozenset(name.replace("-", "_") for name in named)
    return RunSettings(text, evaluation, loss, engine, preset, given)
