"""Combine the settings of a preset with the options of the user."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from dystress_text.cli.command_line import without_tokens
from dystress_text.cli.options import (
    SettingsParser,
    check_options,
    default_of,
    instances,
    option,
)
from dystress_text.errors import ParameterError, meant

if TYPE_CHECKING:
    from dystress_text.losses.objectives import Objective

# options of a preset that are dropped if one of them is given
_LENGTH = {"max_steps", "num_train_epochs"}


@dataclass(frozen=True)
class Preset:
    """The settings of a preset, and its description."""

    description: str  # one line
    settings: dict[str, Any]  # values by option name; other options keep their defaults


@dataclass(frozen=True)
class StartSettings:
    """The preset of a run, and the loss or temperature in place of the preset's."""

    title: ClassVar[str] = "preset and loss"

    preset: str | None = option(None, "Named settings.", metavar="NAME")
    loss: str | None = option(
        None,
        "The loss: an objective with a temperature or a reweighting (docs/losses.md), such as "
        "infonce(0.05).",
    )
    temp: float | None = option(
        None, "A constant temperature for the preset's loss.", interval="(0, inf)"
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class Program:
    """The options and presets of a training program."""

    groups: Sequence[type]  # StartSettings, and other dataclasses whose fields are the options
    presets: Mapping[str, Preset]
    default: str  # name of the default preset
    loss_options: Collection[str] = ()  # of a preset, dropped if another loss is given
    loss_module: str = "dystress_text.losses"  # registers the losses of the program when imported

    def listing(self) -> str:
        """Return a line for each preset, with name and description."""
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
        """Return the other groups, the loss and the preset's name for the given options.

        Raises:
            ParameterError: an option or the preset is unknown, or a value is invalid.
        """
        name = given.get("preset") or self.default
        if not isinstance(name, str) or name not in self.presets:
            reason = f"unknown preset {name!r}{meant(str(name), self.presets)}; see --list_presets"
            raise ParameterError("preset", reason)
        unknown = given.keys() - self.options.keys()
        if unknown:
            named = ", ".join(f"{name}{meant(name, self.options)}" for name in sorted(unknown))
            raise ParameterError(named, "unknown option")
        dropped = set(self.loss_options if "loss" in given else ())
        if given.keys() & _LENGTH:
            dropped |= _LENGTH
        defaults = self.presets[name].settings.items()
        values = {key: value for key, value in defaults if key not in dropped} | dict(given)
        wanted = values["loss"]
        values["loss"] = str(wanted)
        for key, value in values.items():
            if without_tokens(str(value)) != str(value):  # the run records all options
                reason = "this looks like an access token; put it into the environment variable"
                raise ParameterError(key, f"{reason} HF_TOKEN")
        start, *groups = instances(self.groups, values)
        if start.temp is not None and "loss" in given:
            raise ParameterError("temp", "cannot be combined with `loss`")
        # last, so that help and errors of the command line come at once: it needs torch
        importlib.import_module(self.loss_module)
        return groups, _objective(wanted, start.temp), name


def _objective(wanted: object, tau: float | None) -> Objective:
    """Parse the loss, and set its temperature to the constant ``tau`` if there is one."""
    from dystress_text.losses.objectives import Objective, parse_loss
    from dystress_text.losses.registry import LossError

    objective = wanted
    if isinstance(wanted, str):
        try:
            objective = parse_loss(wanted, own_classes=True)
        except LossError as error:
            raise ParameterError("loss", str(error)) from error
    if not isinstance(objective, Objective):
        reason = f"expected a text or an objective, such as InfoNCELoss(0.05), got {wanted!r}"
        raise ParameterError("loss", reason)
    if tau is None:
        return objective
    try:
        return objective.replace(temperature=tau)
    except TypeError:
        raise ParameterError("temp", f"{objective} has no temperature to replace") from None


class _Help(argparse.Action):
    """Print the help, with the preset's values as defaults. ``const`` is the program."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object
    ) -> None:
        program: Program = self.const
        name = getattr(namespace, "preset", program.default)
        preset = {"preset": name, **program.presets.get(name, Preset("", {})).settings}
        for action in parser._actions:
            entry = program.options.get(action.dest)
            if entry is not None and action.help != argparse.SUPPRESS:
                value = preset.get(action.dest, default_of(entry))
                if value is not None and value is not False:
                    action.help = f"{action.help} Default {value}."
        parser.print_help()
        parser.exit()


def parse_options(
    program: Program,
    argv: Sequence[str],
    prog: str,
    description: str | None,
    epilog: str | None = None,
) -> dict[str, Any]:
    """Parse a command line; return the given options by name."""
    parser = SettingsParser(program.groups, prog, description, epilog=epilog, add_help=False)
    parser.usage = "%(prog)s [--preset NAME] [--OPTION VALUE ...]"
    add = parser.add_argument
    absent = argparse.SUPPRESS
    help = "Show the presets, and exit."
    add("--list_presets", action="version", version=program.listing(), help=help)
    help = "Show the options with the preset's values, and exit."
    add("-h", "--help", action=_Help, nargs=0, const=program, default=absent, help=help)
    return vars(parser.parse_args(argv))
