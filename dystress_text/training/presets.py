"""Presets and options: a preset's settings replace a program's defaults, and the options that are
given override them.

A preset may stand for a row of the paper's tables; a run's record then says in what the run differs
from that row.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from dystress_text.cli.command_line import without_tokens
from dystress_text.cli.options import SettingsParser, converted, default_of
from dystress_text.errors import ParameterError, lies_in, meant
from dystress_text.training.run_record import PaperRow
from dystress_text.training.settings import FREE_OPTIONS

if TYPE_CHECKING:
    from dystress_text.core.objectives import Objective

PAPER = "paper"  # the entry of the record
# options that no row has: places and logs, chance, and how the same numbers are computed
_NOT_OF_A_ROW = {*FREE_OPTIONS, "seed", "grad_cache_chunk"} - {
    "train_file",
    "dataset",
    "train_list",
}


@dataclass(frozen=True)
class Preset:
    """Settings with a description."""

    about: str  # what the settings are for, and the row of the paper's table that they reproduce
    settings: dict[str, Any]  # values by option name; other options keep their defaults
    rows: tuple[
        str, ...
    ] = ()  # such as ``Table stsresall, row MACL (repro.)``; ``about`` has the first


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
        return "\n".join(
            f"{name.ljust(width)}  {preset.about}" for name, preset in self.presets.items()
        )

    def settings(self, given: Mapping[str, Any]) -> tuple[list[Any], Objective, str]:
        """One instance of each group, the loss, and the name of the preset, from the options that
        are given.
        """
        options = dict(given)
        name = str(options.pop("preset", None) or self.default)
        if name not in self.presets:
            raise ParameterError(
                "preset", f"no {name!r}{meant(name, self.presets)}; --list_presets shows all"
            )
        known = [entry.name for group in self.groups for entry in fields(group)]
        for option in options:
            if option not in (*known, "temp"):
                raise ParameterError(option, f"unknown option{meant(option, known)}")
        length = {"max_steps", "num_train_epochs"}
        left_out = {
            *(length if length & options.keys() else ()),
            *(self.of_loss if "loss" in options else ()),
        }
        values = {
            key: value for key, value in self.presets[name].settings.items() if key not in left_out
        } | options
        wanted, tau = values["loss"], values.pop("temp", None)
        values["loss"] = str(wanted)
        groups: list[Any] = [
            group(**{entry.name: converted(entry, group, values[entry.name])
                     for entry in fields(group) if entry.name in values})
            for group in self.groups
        ]  # fmt: skip
        objective = _objective(wanted, tau, "loss" in given)
        groups = [
            replace(group, loss=str(objective)) if hasattr(group, "loss") else group
            for group in groups
        ]
        for option, value in (each for group in groups for each in vars(group).items()):
            if without_tokens(str(value)) != str(value):  # the run records all options
                reason = (
                    "this looks like an access token; put it into the environment variable HF_TOKEN"
                )
                raise ParameterError(option, reason)
        return groups, objective, name


def _objective(wanted: object, tau: float | None, named: bool) -> Objective:
    """The loss of a run; ``temp`` takes the place of the preset's temperature, if no loss is named."""
    # here, so that help and errors of the command line come at once
    from dystress_text.core.objectives import Objective, loss
    from dystress_text.core.registry import LossError, parameters

    if isinstance(wanted, Objective):
        objective = wanted
    elif isinstance(wanted, str):
        try:
            objective = loss(wanted, own_classes=True)
        except LossError as error:
            raise ParameterError("loss", str(error)) from error
    else:
        raise ParameterError(
            "loss", f"a text or an objective, such as InfoNCELoss(0.05), got {wanted!r}"
        )
    if tau is None:
        return objective
    if "temperature" not in parameters(type(objective)):
        raise ParameterError("temp", f"{objective} has no temperature to set; use --loss")
    if named:
        raise ParameterError("temp", "the loss has a temperature already; give one of the two")
    try:
        return objective.replace(temperature=float(tau))
    except (TypeError, ValueError) as error:
        reason = f"a temperature is a number above 0, such as 0.05, got {tau}"
        raise ParameterError("temp", str(error) if lies_in(tau, "(0, inf)") else reason) from error


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Adds the preset's default to the help of an option that does not mention it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", getattr(action, "shown", None)
        if default is None or default is False or "default" in text.lower():
            return text
        return f"{text} Default {' '.join(map(str, default)) if isinstance(default, list) else default}."


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
    add, absent = parser.add_argument, argparse.SUPPRESS
    about = f"Settings by name; default {program.default}. --list_presets shows all."
    add("--preset", metavar="NAME", default=absent, help=about)
    about = "Show the presets with the table and row that each stands for, and exit."
    add("--list_presets", action="version", version=program.listing(), help=about)
    add(
        "--temp",
        type=float,
        default=absent,
        metavar="X",
        help="A constant temperature for the preset's objective.",
    )
    shown = ("preset", "list_presets", "help", "temp", *common) if common else ()
    about = f"Show the usual options, or all {sum(len(fields(group)) for group in program.groups)}, and exit."
    add(
        "-h",
        "--help",
        action=_Help,
        nargs="?",
        const=(program, shown),
        default=absent,
        metavar="all",
        help=about,
    )
    add("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)  # of torch.distributed.launch
    options = vars(parser.parse_args(argv))
    _check_rank(options.pop("local_rank"))
    return options


def _check_rank(rank: int) -> None:
    """Refuse a rank that is not the environment's, which accelerate reads: each process would train
    alone.
    """
    if rank >= 0 and os.environ.get("LOCAL_RANK") != str(rank):
        raise ParameterError(
            "local_rank", f"{rank}, but LOCAL_RANK is not; start with torchrun or accelerate launch"
        )


def paper_row(program: Program, run: Mapping[str, Any]) -> dict[str, Any]:
    """The record's entry about the row that a preset stands for, and in what the options of a run
    differ from it.
    """
    preset = program.presets[run["preset"]]
    if not preset.rows:
        return {}
    options = (entry for group in program.groups for entry in fields(group))
    row = {entry.name: preset.settings.get(entry.name, default_of(entry)) for entry in options}
    not_compared = {*_NOT_OF_A_ROW, *program.not_of_a_row}
    changed = [name for name in row if name not in not_compared and run[name] != row[name]]
    differs = ", ".join(f"--{name} {run[name]} (row: {row[name]})" for name in changed)
    return {PAPER: {"rows": list(preset.rows), "differs": differs}}


def said_of(paper: PaperRow) -> str:
    """Return the first row and in what a run differs from it; empty where there is none."""
    if not paper.rows:
        return ""
    differs = f"; differs from the row in {paper.differs}" if paper.differs else ""
    return f"{paper.rows[0]}{differs}"
