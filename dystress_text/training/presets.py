"""Named configurations: settings that stand under the flags of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dystress_text.errors import UserError


@dataclass(frozen=True)
class Preset:
    """A configuration.

    Attributes:
        about: what it is, and which row of which table it stands for.
        settings: option names and values; options that are not named keep their defaults.
    """

    about: str
    settings: dict[str, Any]


def find_preset(name: str, presets: Mapping[str, Preset]) -> Preset:
    """The preset of that name.

    Raises:
        UserError: there is none; the message lists the names.
    """
    if name not in presets:
        raise UserError(f"--preset: unknown preset {name!r}; known are {', '.join(presets)}")
    return presets[name]


def listing(presets: Mapping[str, Preset]) -> str:
    """A line for each preset: its name and what it stands for."""
    width = max(len(name) for name in presets)
    return "\n".join(f"{name.ljust(width)}  {preset.about}" for name, preset in presets.items())
