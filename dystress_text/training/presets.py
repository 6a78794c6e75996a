"""Presets and options: a preset's settings replace a program's defaults, and the options that are
given override them.

A preset may stand for a row of the paper's tables; a run's record then says in what the run differs
from that row.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from dystress_text.cli.command_line import without_tokens
from dystress_text.cli.options import SettingsParser, converted, default_of
from dystress_text.errors import ParameterError, lies_in, meant
from dystress_text.training.run_record import PaperRow
from dystress_text.training.settings import FREE_OPTIONS

if TYPE_CHECKING:
    from dystress_text.losses.objectives import Objective

PAPER = "paper"  # the entry of the record
_LENGTH = {"max_steps", "num_train_epochs"}
# options that no row has: places and logs, chance, and how the same numbers are computed
_NOT_OF_A_ROW = {*FREE_OPTIONS, "seed", "grad_cache_chunk"}
_NOT_OF_A_ROW -= {"train_file", "dataset", "train_list"}


@dataclass(frozen=True)
class Preset:
    """Settings with a description."""

    about: str  # what the settings are for, and the row of the paper's table that they reproduce
    settings: dict[str, Any]  # values by option name; other options keep their defaults
    # such as ``Table stsresall, row MACL (repro.)``; ``about`` has the first
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """What a training program can be told: its options, in groups, and its presets."""

    groups: Sequence[type]  # dataclasses whose fields are the options
    presets: Mapping[str, Preset]
    default: str  # name of the preset that holds if none is named
    of_loss: Collection[str] = ()  # options of a preset that do not hold if another loss is given
    not_of_a_row: Collection[str] = ()  # options of this program that no row of the tables has

    def listing(self) -> str:
        """A line for each preset: its name and what it stands for."""
        width = max(map(len, self.presets))
        lines = [f"{name.ljust(width)}  {preset.about}" for name, preset in self.presets.items()]
        return "\n".join(lines)

    @property
    def options(self) -> dict[str, Field[Any]]:
        """All options by name."""
        return {entry.name: entry for group in self.groups for entry in fields(group)}

    def settings(self, given: Mapping[str, Any]) -> tuple[list[Any], Objective, str]:
        """One instance of each group, the loss, and the name of the preset, from the options that
        are given.
        """
        options = dict(given)
        name = options.pop("preset", None) or self.default
        if not isinstance(name, str):  # as in train(sentences)
            raise ParameterError("preset", f"expected a name, got {type(name).__name__}")
        if name not in self.presets:
            reason = f"no {name!r}{meant(name, self.presets)}; --list_presets shows all"
            raise ParameterError("preset", reason)
        for option in options:
            if option not in self.options and option != "temp":
                raise ParameterError(option, f"unknown option{meant(option, self.options)}")
        left_out = set(self.of_loss if "loss" in options else ())
        if options.keys() & _LENGTH:
            left_out |= _LENGTH
        of_preset = self.presets[name].settings.items()
        values = {key: value for key, value in of_preset if key not in left_out} | options
        wanted = values["loss"]
        tau = values.pop("temp", None)
        values["loss"] = str(wanted)
        for option, value in values.items():
            if without_tokens(str(value)) != str(value):  # the run records all options
                reason = "this looks like an access token; put it into the environment variable"
                raise ParameterError(option, f"{reason} HF_TOKEN")
        groups: list[Any] = []
        for group in self.groups:
            entries = [entry for entry in fields(group) if entry.name in values]
            arguments = {x.name: converted(x, group, values[x.name]) for x in entries}
            groups.append(group(**arguments))
        # last, so that help and errors of the command line come at once: it needs torch
        objective = _objective(wanted, tau, "loss" in given)
        groups = [
            replace(group, loss=str(objective)) if hasattr(group, "loss") else group
            for group in groups
        ]
        return groups, objective, name


def _objective(wanted: object, tau: float | None, named: bool) -> Objective:
    """Return the loss of a run; ``temp`` replaces the preset's temperature, if no loss is named."""
    from dystress_text.losses.objectives import Objective, loss
    from dystress_text.losses.registry import LossError, parameters

    objective = wanted
    if isinstance(wanted, str):
        try:
            objective = loss(wanted, own_classes=True)
        except LossError as error:
            raise ParameterError("loss", str(error)) from error
    if not isinstance(objective, Objective):
        reason = f"a text or an objective, such as InfoNCELoss(0.05), got {wanted!r}"
        raise ParameterError("loss", reason)
    if tau is None:
        return objective
    if "temperature" not in parameters(type(objective)):
        raise ParameterError("temp", f"{objective} has no temperature to set; use --loss")
    if named:
        raise ParameterError("temp", "the loss has a temperature already; give one of the two")
    try:
        return objective.replace(temperature=float(tau))
    except (TypeError, ValueError) as error:
        reason = str(error)
        if not lies_in(tau, "(0, inf)"):
            reason = f"a temperature is a number above 0, such as 0.05, got {tau}"
        raise ParameterError("temp", reason) from error


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Adds the preset's default to the help of an option that does not mention it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        default = getattr(action, "shown", None)
        if default is None or default is False or "default" in text.lower():
            return text
        if isinstance(default, list):
            default = " ".join(map(str, default))
        return f"{text} Default {default}."


class _Help(argparse.Action):
    """``--help`` and ``--help all``; ``const`` has the program and the options that the former
    shows.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object
    ) -> None:
        program, common = self.const
        preset = program.presets.get(getattr(namespace, "preset", None) or program.default)
        for action in parser._actions:
            if preset is not None and action.dest in preset.settings:
                action.shown = preset.settings[action.dest]  # type: ignore[attr-defined]
            if values != "all" and common and action.dest not in common:
                action.help = argparse.SUPPRESS
        parser.print_help()
        parser.exit()


def parse_options(
    program: Program,
    argv: Sequence[str],
    prog: str,
    description: str | None,
    common: Collection[str] = (),
    elsewhere: str = "",
) -> dict[str, Any]:
    """The options that a command line gives, by name; ``--help`` shows those in ``common``,
    ``--help all`` all.
    """
    parser = SettingsParser(
        program.groups,
        prog,
        description,
        elsewhere=elsewhere,
        formatter_class=_Formatter,
        add_help=False,
    )
    parser.usage = "%(prog)s [--preset NAME] [--OPTION VALUE ...]"
    add = parser.add_argument
    absent = argparse.SUPPRESS
    about = f"Settings by name; default {program.default}. --list_presets shows all."
    add("--preset", metavar="NAME", default=absent, help=about)
    about = "Show the presets with the table and row that each stands for, and exit."
    add("--list_presets", action="version", version=program.listing(), help=about)
    about = "A constant temperature for the preset's objective."
    add("--temp", type=float, metavar="X", default=absent, help=about)
    shown = ("preset", "list_presets", "help", "temp", *common) if common else ()
    about = f"Show the usual options, or all {len(program.options)}, and exit."
    const = (program, shown)
    add(
        "-h",
        "--help",
        action=_Help,
        nargs="?",
        const=const,
        metavar="all",
        default=absent,
        help=about,
    )
    return vars(parser.parse_args(argv))


def paper_row(program: Program, run: Mapping[str, Any]) -> dict[str, Any]:
    """The record's entry about the row that a preset stands for, and in what the options of a run
    differ from it.
    """
    preset = program.presets[run["preset"]]
    if not preset.rows:
        return {}
    row = {name: preset.settings.get(name, default_of(x)) for name, x in program.options.items()}
    compared = row.keys() - _NOT_OF_A_ROW - set(program.not_of_a_row)
    changed = [name for name in row if name in compared and run[name] != row[name]]
    differs = ", ".join(f"--{name} {run[name]} (row: {row[name]})" for name in changed)
    return {PAPER: {"rows": list(preset.rows), "differs": differs}}


def describe_row(paper: PaperRow) -> str:
    """Return the first row and in what a run differs from it; empty where there is none."""
    if not paper.rows:
        return ""
    if not paper.differs:
        return paper.rows[0]
    return f"{paper.rows[0]}; differs from the row in {paper.differs}"
