"""Combine the settings of a preset with the options of the user."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from dystress_text.cli.command_line import without_tokens
from dystress_text.cli.options import SettingsParser, default_of, instances
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
class Program:
    """The options and presets of a training program."""

    groups: Sequence[type]  # dataclasses whose fields are the options
    presets: Mapping[str, Preset]
    default: str  # name of the default preset
    loss_options: Collection[str] = ()  # of a preset, dropped if another loss is given

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
        """Return an instance of each settings class, the loss, and the name of the preset.

        Raises:
            ParameterError: an option or the preset is unknown, or a value is invalid.
        """
        options = dict(given)
        name = options.pop("preset", None) or self.default
        if not isinstance(name, str) or name not in self.presets:
            reason = f"unknown preset {name!r}{meant(str(name), self.presets)}; see --list_presets"
            raise ParameterError("preset", reason)
        unknown = options.keys() - self.options.keys() - {"temp"}
        if unknown:
            named = ", ".join(f"{name}{meant(name, self.options)}" for name in sorted(unknown))
            raise ParameterError(named, "unknown option")
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
        groups = instances(self.groups, values)
        # last, so that help and errors of the command line come at once: it needs torch
        objective = _objective(wanted, tau, "loss" in given)
        groups = [
            replace(group, loss=str(objective)) if hasattr(group, "loss") else group
            for group in groups
        ]
        return groups, objective, name


def _objective(wanted: object, tau: float | None, named: bool) -> Objective:
    """Return the loss. ``tau`` (``--temp``) replaces the temperature in the preset's loss."""
    from dystress_text.losses.objectives import Objective, loss
    from dystress_text.losses.registry import LossError

    objective = wanted
    if isinstance(wanted, str):
        try:
            objective = loss(wanted, own_classes=True)
        except LossError as error:
            raise ParameterError("loss", str(error)) from error
    if not isinstance(objective, Objective):
        reason = f"expected a text or an objective, such as InfoNCELoss(0.05), got {wanted!r}"
        raise ParameterError("loss", reason)
    if tau is None:
        return objective
    if named:
        raise ParameterError("temp", "cannot be combined with --loss")
    try:
        return objective.replace(temperature=float(tau))
    except (TypeError, ValueError) as error:
        reason = f"expected a temperature above 0, for a loss that takes one; got {tau}"
        raise ParameterError("temp", reason) from error


class _Help(argparse.Action):
    """Print the help with the values of the preset as defaults; ``const`` is the program."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object
    ) -> None:
        program: Program = self.const
        name = getattr(namespace, "preset", program.default)
        preset = program.presets.get(name, Preset("", {})).settings
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
    elsewhere: str = "",
) -> dict[str, Any]:
    """Parse a command line; return the given options by name."""
    parser = SettingsParser(program.groups, prog, description, elsewhere=elsewhere, add_help=False)
    parser.usage = "%(prog)s [--preset NAME] [--OPTION VALUE ...]"
    add = parser.add_argument
    absent = argparse.SUPPRESS
    help = f"Named settings; default {program.default}."
    add("--preset", metavar="NAME", default=absent, help=help)
    help = "Show the presets, and exit."
    add("--list_presets", action="version", version=program.listing(), help=help)
    help = "A constant temperature for the preset's loss."
    add("--temp", type=float, metavar="X", default=absent, help=help)
    help = "Show the options with the preset's values, and exit."
    add("-h", "--help", action=_Help, nargs=0, const=program, default=absent, help=help)
    return vars(parser.parse_args(argv))
