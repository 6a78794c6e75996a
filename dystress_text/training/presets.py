"""Combine the settings of a preset with the options that are given.

A preset may reproduce a row of the paper's tables; the record of a run then says how its options
differ from that row.
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

PAPER = "paper"  # key in run.json
_LENGTH = {"max_steps", "num_train_epochs"}
# options that do not define a row: paths, logs, the seed, and how the loss is computed
_ROW_FREE = {*FREE_OPTIONS, "seed", "grad_cache_chunk"} - {"train_file", "dataset", "train_list"}


@dataclass(frozen=True)
class Preset:
    """Settings with a description."""

    description: str  # one line, with the row of the paper's table that they reproduce
    settings: dict[str, Any]  # values by option name; other options keep their defaults
    # such as ``Table stsresall, row MACL (repro.)``
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """The options and presets of a training program."""

    groups: Sequence[type]  # dataclasses whose fields are the options
    presets: Mapping[str, Preset]
    default: str  # name of the default preset
    loss_options: Collection[str] = ()  # of a preset, dropped if another loss is given
    row_free_options: Collection[str] = ()  # that do not define a row of the paper

    def listing(self) -> str:
        """Return one line per preset: its name and description."""
        width = max(map(len, self.presets))
        lines = [
            f"{name.ljust(width)}  {preset.description}" for name, preset in self.presets.items()
        ]
        return "\n".join(lines)

    @property
    def options(self) -> dict[str, Field[Any]]:
        """Return all options by name."""
        return {entry.name: entry for group in self.groups for entry in fields(group)}

    def settings(self, given: Mapping[str, Any]) -> tuple[list[Any], Objective, str]:
        """Return an instance of each group, the loss and the preset's name for the given options.

        Raises:
            ParameterError: an option or the preset is unknown, or a value is invalid.
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
        dropped = set(self.loss_options if "loss" in options else ())
        if options.keys() & _LENGTH:
            dropped |= _LENGTH
        defaults = self.presets[name].settings.items()
        values = {key: value for key, value in defaults if key not in dropped} | options
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
    """Return the loss; ``tau`` (``--temp``) replaces the preset's temperature."""
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
    """Add the preset's default to the help of an option that does not mention it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        default = getattr(action, "shown", None)
        if default is None or default is False or "default" in text.lower():
            return text
        if isinstance(default, list):
            default = " ".join(map(str, default))
        return f"{text} Default {default}."


class _Help(argparse.Action):
    """Print help for common options, or all; ``const`` is the program and the common options."""

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
    """Parse a command line into options by name.

    ``--help`` shows the options in ``common``, and ``--help all`` all of them.
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
    help = f"Named settings; default {program.default}. --list_presets shows all."
    add("--preset", metavar="NAME", default=absent, help=help)
    help = "Show the presets with the paper's rows that they reproduce, and exit."
    add("--list_presets", action="version", version=program.listing(), help=help)
    help = "A constant temperature for the preset's loss."
    add("--temp", type=float, metavar="X", default=absent, help=help)
    shown = ("preset", "list_presets", "help", "temp", *common) if common else ()
    help = f"Show the common options, or all {len(program.options)}, and exit."
    more: dict[str, Any] = {"nargs": "?", "const": (program, shown), "metavar": "all"}
    add("-h", "--help", action=_Help, default=absent, help=help, **more)
    return vars(parser.parse_args(argv))


def paper_row(program: Program, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record's entry: a preset's rows, and how the options of a run differ from them."""
    preset = program.presets[run["preset"]]
    if not preset.rows:
        return {}
    row = {name: preset.settings.get(name, default_of(x)) for name, x in program.options.items()}
    compared = row.keys() - _ROW_FREE - set(program.row_free_options)
    changed = [name for name in row if name in compared and run[name] != row[name]]
    differs = ", ".join(f"--{name} {run[name]} (row: {row[name]})" for name in changed)
    return {PAPER: {"rows": list(preset.rows), "differs": differs}}


def describe_row(paper: PaperRow) -> str:
    """Return the first row and how a run differs from it; empty without a row."""
    if not paper.rows:
        return ""
    if not paper.differs:
        return paper.rows[0]
    return f"{paper.rows[0]}; differs from the row in {paper.differs}"
