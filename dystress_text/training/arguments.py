"""The training program's arguments: defaults, a preset, a YAML file and flags, each on top of the one before."""

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
from dystress_text.errors import UserError
from dystress_text.training.build_loss import TEMPERATURE_OPTIONS
from dystress_text.training.presets import Preset, find_preset, listing


class _Help(argparse.RawDescriptionHelpFormatter):
    """Says the default where the text of an option does not, as the preset has it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if any(option.startswith("--no_") for option in action.option_strings):
            return f"Turns --{action.dest} off."
        unsaid = default is None or default is False or default is argparse.SUPPRESS
        if unsaid or "default" in text.lower():
            return text
        return f"{text} Default {' '.join(map(str, default)) if isinstance(default, list) else default}."


class _ListPresets(argparse.Action):
    """``--list_presets``: a line for each, and the program ends, as with ``--help``."""

    def __init__(self, option_strings: Sequence[str], dest: str, presets: Mapping[str, Preset]) -> None:
        told = "Show the presets with the table and row that each stands for, and exit."
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=told)
        self.presets = presets

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(listing(self.presets))
        parser.exit()


def parse_settings(
    argv: Sequence[str],
    groups: Sequence[Any],
    presets: Mapping[str, Preset],
    default_preset: str,
    prog: str,
    description: str | None = None,
    own_temperature: Sequence[str] = ("macl",),
) -> tuple[list[Any], str]:
    """One instance of each dataclass in ``groups``, and the name of the preset under the flags.

    Args:
        argv: the command line; its first word may be a YAML file.
        groups: dataclasses whose fields are the options.
        presets: by name.
        default_preset: the one that counts where none is named.
        prog: the program's name in errors.
        description: of the program, for its help.
        own_temperature: objectives that do not take a preset's temperature, where the flags name one of them.

    Raises:
        UserError: an unknown name or a value out of range.
    """
    parser = SettingsParser(
        list(groups),
        prog=prog,
        description=description,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--preset", help=f"Settings by name; default {default_preset}. --list_presets shows all.")
    parser.add_argument("--list_presets", action=_ListPresets, presets=presets)
    argv = flags_of_line(argv, groups)
    first_look = SettingsParser([], add_help=False, allow_abbrev=False)
    first_look.add_argument("--preset", default=default_preset)
    preset = first_look.parse_known_args(argv)[0].preset
    parser.set_defaults(**_below(argv, find_preset(preset, presets).settings, own_temperature))
    *settings, _, unknown = parser.parse_args_into_dataclasses(
        argv, return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        parser.error(f"unknown option {' '.join(unknown)}")
    for group in settings:
        for name, value in vars(group).items():
            for word in value if isinstance(value, list) else [value]:
                if isinstance(word, str):
                    _check_text(name, word)
    return settings, preset


def _below(argv: Sequence[str], preset: Mapping[str, Any], own_temperature: Sequence[str]) -> dict[str, Any]:
    """A preset's settings; without its temperature where the command line names one, or an objective with its own.

    A profile in place of a profile keeps the preset's range; a schedule's range or a constant is another matter.
    """
    if not re.search(rf"--(temp|temperature)\b|--objective[= ]({'|'.join(own_temperature)})(?!\S)", " ".join(argv)):
        return dict(preset)
    named = re.findall(r"--temperature[= ](\S+)", " ".join(argv))
    profiles = all(_is_profile(name) for name in (*named[-1:], preset.get("temperature")))
    kept = ("tau_min", "tau_max") if named and profiles else ()
    return {
        name: value
        for name, value in preset.items()
        if name in kept or name not in ("temperature", *TEMPERATURE_OPTIONS)
    }


def _is_profile(name: str | None) -> bool:
    return name in TEMPERATURES and issubclass(TEMPERATURES[name], ProfileTemperature)


def flags_of_line(argv: Sequence[str], groups: Sequence[Any]) -> list[str]:
    """A command line without the YAML file that may be its first word: with the flags that the file stands for."""
    if argv and argv[0].endswith((".yaml", ".yml")):
        lists = [f.name for group in groups for f in fields(group) if "list[" in str(f.type)]
        return [*_flags_of(Path(argv[0]), lists), *argv[1:]]
    return list(argv)


def _check_text(name: str, value: str) -> None:
    """A text that names something, such as a file, and is recorded with the run."""
    try:
        unusable = b"\0" in os.fsencode(value)
    except UnicodeEncodeError:
        unusable = True
    if unusable:
        raise UserError(f"--{name}: {value!r} has a character that no name can have")
    if holds_token(value):
        raise UserError(f"--{name}: this looks like an access token; its place is the environment variable HF_TOKEN")


def _flags_of(file: Path, lists: Sequence[str]) -> list[str]:
    """A YAML file's settings as flags, so that they are read and checked as flags are; ``lists`` may be lists."""
    try:
        # scalars as they are written: "no" is a precision and 1e-4 a number, whatever YAML 1.1 makes of them; nothing
        # is built from the file, whatever its tags say
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise UserError(f"{file}: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UserError(f"{file}: nested too deeply for settings") from error
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{file}: a mapping of option names to values is expected")
    settings: dict[str, list[str]] = {}
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{file}, line {key.start_mark.line + 1}: the name of an option is expected")
        if key.value in settings:
            raise UserError(f"{file}, line {key.start_mark.line + 1}: {key.value} stands twice")
        items = value.value if isinstance(value, yaml.SequenceNode) and key.value in lists else [value]
        if not items or not all(isinstance(item, yaml.ScalarNode) for item in items):
            raise UserError(f"{file}: the value of {key.value} must be a text, a number, true, false or null")
        settings[key.value] = [item.value for item in items]
        if isinstance(value, yaml.SequenceNode) and any(re.match(r"-\D|-?$", item.value) for item in items):
            raise UserError(f"{file}: {key.value} has a value that is empty or begins with a hyphen")
    flags = []
    for key, (first, *rest) in settings.items():
        if rest:
            flags += [f"--{key}", first, *rest]
        elif first not in ("", "null", "~"):
            flags.append(f"--{key}={first}")
    return flags
