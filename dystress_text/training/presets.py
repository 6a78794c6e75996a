"""Presets and flags: a preset's settings replace a program's defaults, and its flags override them.

A preset may stand for a row of the paper's tables; a run's record then says in what the run differs from that row.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from dystress_text.cli.command_line import without_tokens
from dystress_text.cli.options import SettingsParser, named_options
from dystress_text.errors import ParameterError, meant
from dystress_text.training.settings import (
    FREE_OPTIONS,
    OF_AN_OBJECTIVE,
    PROFILES,
    TEMPERATURE_OPTIONS,
    global_batch_size,
)

PAPER = "paper"  # the entry of the record
# options that no row has: places and logs, chance, and how the same numbers are computed; the temperature is compared
# as a whole
_NOT_OF_A_ROW = {*FREE_OPTIONS, "seed", "grad_cache_chunk", "skip_corrupt", "sync_batchnorm", "knn_k",
                 "per_device_train_batch_size", *TEMPERATURE_OPTIONS
                 } - {"train_file", "dataset", "train_list"}  # fmt: skip


@dataclass(frozen=True)
class Preset:
    """Settings with a description."""

    about: str  # what the settings are for, and the row of the paper's table that they reproduce
    settings: dict[str, Any]  # values by option name; other options keep their defaults
    # of the paper's tables, such as ``Table stsresall, row MACL (repro.)``; the line is about the first
    rows: tuple[str, ...] = ()


def listing(presets: Mapping[str, Preset]) -> str:
    """A line for each preset: its name and what it stands for."""
    width = max(len(name) for name in presets)
    return "\n".join(f"{name.ljust(width)}  {preset.about}" for name, preset in presets.items())


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Adds the preset's default to the help of an option that does not mention it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        hidden = default is None or default is False or default is argparse.SUPPRESS
        if hidden or "default" in text.lower():
            return text
        return f"{text} Default {' '.join(map(str, default)) if isinstance(default, list) else default}."


class _Help(argparse.Action):
    """``--help``, with the options that are often needed, and ``--help all``; ``const`` names the former."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object) -> None:
        for action in parser._actions:
            if values != "all" and action.dest not in self.const:
                action.help = argparse.SUPPRESS
        parser.print_help()
        parser.exit()


def parse_settings(
    argv: Sequence[str],
    groups: Sequence[Any],
    presets: Mapping[str, Preset],
    default_preset: str,
    prog: str,
    description: str | None = None,
    own_temperature: Sequence[str] = ("macl", "siglip"),
    common: Collection[str] = (),
) -> tuple[list[Any], str]:
    """One instance of each dataclass in ``groups``, whose fields are the options, and the name of the preset.

    Args:
        own_temperature: objectives with a temperature of their own; if the flags name one of them, the preset's
            temperature does not apply.
        common: options that ``--help`` shows, where ``--help all`` shows all; without them both do.
    """
    parser = SettingsParser(groups, prog, description, formatter_class=_Formatter, add_help=not common)
    parser.usage = "%(prog)s [--preset NAME] [--OPTION VALUE ...]"
    parser.add_argument(
        "--preset", metavar="NAME", help=f"Settings by name; default {default_preset}. --list_presets shows all."
    )
    parser.add_argument(
        "--list_presets",
        action="version",
        version=listing(presets),
        help="Show the presets with the table and row that each stands for, and exit.",
    )
    if common:
        shown, every = ("preset", "list_presets", "help", *common), sum(len(fields(group)) for group in groups)
        about = f"Show the usual options, or all {every}, and exit."
        parser.add_argument("-h", "--help", action=_Help, nargs="?", const=shown, metavar="all", help=about)
    words = parser.spelled(argv)
    given = named_options(words)
    preset = given.get("preset") or default_preset
    if preset not in presets:
        raise ParameterError("preset", f"no {preset!r}{meant(preset, presets)}; --list_presets shows all")
    parser.set_defaults(**_defaults_from(given, presets[preset].settings, own_temperature))
    settings = parser.settings(words)
    for group in settings:
        for name, value in vars(group).items():
            if without_tokens(str(value)) != str(value):  # the run records all options
                raise ParameterError(
                    name, "this looks like an access token; put it into the environment variable HF_TOKEN"
                )
    return settings, preset


def _defaults_from(
    given: Mapping[str, str], preset: Mapping[str, Any], own_temperature: Sequence[str]
) -> dict[str, Any]:
    """A preset's settings, without its temperature if the command line names one or an objective with its own.

    Its length does not apply either if the command line names steps or epochs, nor what belongs to a choice that it
    replaces, such as ``crop_min`` to ``views crop``.

    If both temperatures are profiles, the preset's tau_min and tau_max stay. Its objective takes its own options along,
    its shift the scale.
    """
    left_out: set[str] = set(OF_AN_OBJECTIVE) if "objective" in given else set()
    if not given.keys().isdisjoint(("max_steps", "num_train_epochs")):
        left_out |= {"max_epochs"} | ({"max_steps"} if "num_train_epochs" in given else set())
    if not given.keys().isdisjoint(("temp", "temperature")) or given.get("objective") in own_temperature:
        left_out |= {"temperature", *TEMPERATURE_OPTIONS}
        if {given.get("temperature"), preset.get("temperature")} <= set(PROFILES):
            left_out -= {"tau_min", "tau_max"}
    for name, value in preset.items():
        if given.get(name, value) != value:
            left_out |= {option for option in preset if option.startswith(f"{value}_")}
    if "shift" in given:
        left_out.add("scale")  # which follows the shift
    return {name: value for name, value in preset.items() if name not in left_out}


def paper_row(
    preset: Preset,
    settings: Any,
    processes: int,
    temperature_of: Callable[[Any], object],
    not_compared: Collection[str] = (),
) -> dict[str, Any]:
    """The record's entry about the row that the preset stands for, and in what a run differs; empty without a row.

    Args:
        settings: of the run, a dataclass of groups; ``loss`` and ``engine`` are among them.
        temperature_of: what a group ``loss`` makes; None where it has no temperature.
        not_compared: options that no row of these presets has.
    """
    if not preset.rows:
        return {}
    groups: dict[str, Any] = {name: group for name, group in vars(settings).items() if is_dataclass(group)}
    of_preset = replace(  # without any flags
        settings,
        **{
            name: type(group)(**{key: value for key, value in preset.settings.items() if key in vars(group)})
            for name, group in groups.items()
        },
    )
    run, row = settings.options(), of_preset.options()
    run["train_batch_size"] = global_batch_size(settings.engine, processes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a falling logit is said where the run's own temperature is built
        run["temperature"], row["temperature"] = (repr(temperature_of(each.loss)) for each in (settings, of_preset))
    changed = [name for name in row if name not in {*_NOT_OF_A_ROW, *not_compared} and run[name] != row[name]]
    differs = ", ".join(f"--{name} {run[name]} (row: {row[name]})" for name in changed)
    return {PAPER: {"rows": list(preset.rows), "differs": differs}}


def rows_of(record: Mapping[str, Any]) -> list[str]:
    """The rows that a run's record names."""
    rows: list[str] = record.get(PAPER, {}).get("rows", [])
    return rows


def said_of(record: Mapping[str, Any]) -> str:
    """The row of a record and in what the run differs from it, in words; empty where there is none."""
    if not rows_of(record):
        return ""
    row, differs = rows_of(record)[0], record[PAPER]["differs"]
    return f"{row}; differs from the row in {differs}" if differs else row
