"""Presets: named settings that replace a program's defaults and that its flags override."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dystress_text.cli.command_line import near_or_all
from dystress_text.errors import UserError


@dataclass(frozen=True)
class Preset:
    """Settings with a description.

    Attributes:
        about: what the settings are for, and the row of the paper's table that they reproduce.
        settings: values by option name; other options keep their defaults.
        rows: of the paper's tables, such as ``Table stsresall, row MACL (repro.)``; the line is about the first.
    """

    about: str
    settings: dict[str, Any]
    rows: tuple[str, ...] = ()


def find_preset(name: str, presets: Mapping[str, Preset]) -> Preset:
    """The preset of that name.

    Raises:
        UserError: the name is unknown; the message lists the known ones.
    """
    if name not in presets:
        hint = near_or_all(name, presets, 3, "known are")
        raise UserError(f"--preset: unknown preset {name!r}; {hint} (--list_presets shows all)")
    return presets[name]


def listing(presets: Mapping[str, Preset]) -> str:
    """A line for each preset: its name and what it stands for."""
    width = max(len(name) for name in presets)
    return "\n".join(f"{name.ljust(width)}  {preset.about}" for name, preset in presets.items())
