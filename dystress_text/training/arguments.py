"""The training programs' arguments: defaults, a preset and flags; a later one overrides an earlier one."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dystress_text.cli.command_line import without_tokens
from dystress_text.cli.options import SettingsParser
from dystress_text.core.registry import TEMPERATURES
from dystress_text.core.temperature import ProfileTemperature
from dystress_text.errors import ParameterError
from dystress_text.training.presets import Preset, find_preset, listing
from dystress_text.training.settings import OF_AN_OBJECTIVE, TEMPERATURE_OPTIONS


class _Help(argparse.RawDescriptionHelpFormatter):
    """Adds the preset's default to the help of an option that does not mention it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if any(option.startswith("--no_") for option in action.option_strings):
            return f"Turns --{action.dest} off."
        hidden = default is None or default is False or default is argparse.SUPPRESS
        if hidden or "default" in text.lower():
            return text
        return f"{text} Default {' '.join(map(str, default)) if isinstance(default, list) else default}."


def settings_parser(
    groups: Sequence[Any], presets: Mapping[str, Preset], default_preset: str, prog: str, description: str | None = None
) -> SettingsParser:
    """The parser of :func:`parse_settings`, without the defaults of a preset."""
    parser = SettingsParser(list(groups), prog=prog, description=description, formatter_class=_Help, allow_abbrev=False)
    parser.usage = "%(prog)s [--preset NAME] [--OPTION VALUE ...]"
    parser.add_argument("--preset", help=f"Settings by name; default {default_preset}. --list_presets shows all.")
    parser.add_argument(
        "--list_presets",
        action="version",
        version=listing(presets),
        help="Show the presets with the table and row that each stands for, and exit.",
    )
    return parser


def parse_settings(
    argv: Sequence[str],
    groups: Sequence[Any],
    presets: Mapping[str, Preset],
    default_preset: str,
    prog: str,
    description: str | None = None,
    own_temperature: Sequence[str] = ("macl", "siglip"),
) -> tuple[list[Any], str]:
    """One instance of each dataclass in ``groups``, and the name of the preset.

    Args:
        argv: the command line.
        groups: dataclasses whose fields are the options.
        presets: by name.
        default_preset: the preset if the command line names none.
        prog: the program's name in errors.
        description: of the program, for its help.
        own_temperature: objectives with a temperature of their own; if the flags name one of them, the preset's
            temperature does not apply.
    """
    parser = settings_parser(groups, presets, default_preset, prog, description)
    first_look = SettingsParser([], add_help=False, allow_abbrev=False)
    first_look.add_argument("--preset", default=default_preset)
    preset = first_look.parse_known_args(argv)[0].preset
    parser.set_defaults(**_defaults_from(argv, find_preset(preset, presets).settings, own_temperature))
    *settings, _, unknown = parser.parse_args_into_dataclasses(
        argv, return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        parser.error(f"unknown option {' '.join(unknown)}")
    for group in settings:
        for name, value in vars(group).items():
            if without_tokens(str(value)) != str(value):  # the run records all options
                raise ParameterError(
                    name, "this looks like an access token; put it into the environment variable HF_TOKEN"
                )
    return settings, preset


def _defaults_from(argv: Sequence[str], preset: Mapping[str, Any], own_temperature: Sequence[str]) -> dict[str, Any]:
    """A preset's settings, without its temperature if the command line names one or an objective with its own.

    If both temperatures are profiles, the preset's tau_min and tau_max stay. Its objective takes its own options along.
    """
    line = " ".join(argv)
    left_out: set[str] = set(OF_AN_OBJECTIVE) if re.search(r"--objective\b", line) else set()
    if re.search(rf"--(temp|temperature)\b|--objective[= ]({'|'.join(own_temperature)})(?!\S)", line):
        left_out |= {"temperature", *TEMPERATURE_OPTIONS}
        named = re.findall(r"--temperature[= ](\S+)", line)
        kinds = [TEMPERATURES.get(name) for name in (*named[-1:], preset.get("temperature", ""))]
        if named and all(kind is not None and issubclass(kind, ProfileTemperature) for kind in kinds):
            left_out -= {"tau_min", "tau_max"}
    return {name: value for name, value in preset.items() if name not in left_out}
