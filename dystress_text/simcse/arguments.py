"""The command line of the text program."""

from __future__ import annotations

from collections.abc import Sequence

from dystress_text.cli.options import SettingsParser
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.simcse.flags import translate
from dystress_text.simcse.presets import PRESETS
from dystress_text.simcse.settings import RunSettings, TextSettings
from dystress_text.training.arguments import flags_of_line, parse_settings, settings_parser
from dystress_text.training.settings import EngineSettings, LossSettings

_GROUPS = (TextSettings, EvaluationSettings, LossSettings, EngineSettings)
_PRESET = "paper"  # where the command line names none
_PROGRAM = "dystress train"


def make_parser(description: str | None = None) -> SettingsParser:
    """The text program's options, without the defaults of a preset."""
    return settings_parser(_GROUPS, PRESETS, _PRESET, _PROGRAM, description)


def parse(argv: Sequence[str], description: str | None = None) -> RunSettings:
    """Settings from the command line, which may be one of SimCSE's own.

    Raises:
        UserError: a name is unknown, or a value is out of range.
    """
    words = translate(flags_of_line(argv, _GROUPS))
    (text, evaluation, loss, engine), preset = parse_settings(words, _GROUPS, PRESETS, _PRESET, _PROGRAM, description)
    named = (word.removeprefix("--").split("=")[0] for word in words if word.startswith("--"))
    given = frozenset(name.replace("-", "_") for name in named)
    return RunSettings(text, evaluation, loss, engine, preset, given)
