"""The training programs' arguments: defaults, a preset, a YAML file and flags; a later one overrides an earlier one."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from dystress_text.cli.access_tokens import holds_token
from dystress_text.cli.options import SettingsParser
from dystress_text.core.registry import TEMPERATURES
from dystress_text.core.temperature import ProfileTemperature
from dystress_text.errors import ParameterError, UserError, reason_of
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
    parser.usage = "%(prog)s [FILE.yaml] [--preset NAME] [--OPTION VALUE ...]"
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
        argv: the command line; its first word may be a YAML file.
        groups: dataclasses whose fields are the options.
        presets: by name.
        default_preset: the preset if the command line names none.
        prog: the program's name in errors.
        description: of the program, for its help.
        own_temperature: objectives with a temperature of their own; if the flags name one of them, the preset's
            temperature does not apply.
    """
    parser = settings_parser(groups, presets, default_preset, prog, description)
    argv = flags_of_line(argv, groups)
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
            for word in value if isinstance(value, list) else [value]:
                _check_text(name, str(word))
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


def flags_of_line(argv: Sequence[str], groups: Sequence[Any]) -> list[str]:
    """A command line in which a YAML file as the first word is replaced by the flags that the file stands for."""
    if argv and argv[0].endswith((".yaml", ".yml")):
        lists = [f.name for group in groups for f in fields(group) if "list[" in str(f.type)]
        return [*_flags_of(Path(argv[0]), lists), *argv[1:]]
    return list(argv)


def _check_text(name: str, value: str) -> None:
    """Refuse a text that cannot name a file or that holds an access token: the run records all texts."""
    try:
        unusable = b"\0" in os.fsencode(value)
    except UnicodeEncodeError:
        unusable = True
    if unusable:
        raise ParameterError(name, f"{value!r} has a character that no name can have")
    if holds_token(value):
        raise ParameterError(name, "this looks like an access token; put it into the environment variable HF_TOKEN")


def _flags_of(file: Path, lists: Sequence[str]) -> list[str]:
    """A YAML file's settings as flags, which are read and checked like flags; options in ``lists`` may be lists."""
    try:
        # BaseLoader keeps scalars as texts: YAML 1.1 would read "no" as false and 1e-4 as a text. It also ignores tags,
        # so the file cannot create objects.
        settings = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (OSError, ValueError, TypeError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{file}: {reason_of(error)}") from error
    if not isinstance(settings, dict):
        raise UserError(f"{file}: a mapping of option names to values is expected")
    flags = []
    for key, value in settings.items():
        words = value if isinstance(value, list) and key in lists else [value]
        if not all(isinstance(word, str) for word in (key, *words)) or not words:
            raise UserError(f"{file}: the value of {key} must be a text, a number, true, false or null")
        if len(words) > 1:
            if any(re.match(r"-\D|-?$", word) for word in words):
                raise UserError(f"{file}: {key} has a value that is empty or begins with a hyphen")
            flags += [f"--{key}", *words]
        elif words[0] not in ("", "null", "~"):
            flags.append(f"--{key}={words[0]}")
    return flags
