"""Options of a program as fields of a dataclass: default, help, interval, and the option that each one needs.

@dataclass(frozen=True)
class Settings:
    dropout: float = option(0.1, "Dropout rate.", interval="[0, 1)")
    alpha: float | None = option(None, "lora: scale.", interval="(0, inf)", needs="lora_rank")

    def __post_init__(self) -> None:
        check_options(self)
"""

from __future__ import annotations

import copy
import re
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import MISSING, Field, field, fields
from types import MappingProxyType
from typing import Any

from transformers import HfArgumentParser

from dystress_text.cli.command_line import OneLineErrors
from dystress_text.errors import ParameterError


def option(
    default: Any,
    help: str,
    *,
    interval: str | None = None,
    needs: str | None = None,
    choices: Sequence[str] | None = None,
    **more: Any,
) -> Any:
    """A field of a dataclass that is an option of a program.

    Args:
        default: the value if the option is not given.
        help: the text for ``--help``.
        interval: the interval of valid numbers, such as ``[0, 1)`` or ``(0, inf)``; None (not given) is always valid.
        needs: the option without which this one has no effect; without it, only the default is valid.
        choices: the valid words.
        **more: further arguments of argparse's ``add_argument``.
    """
    metadata = {"help": help, "interval": interval, "needs": needs, **more}
    if choices is not None:
        metadata["choices"] = list(choices)
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def reworded(settings: type, name: str, help: str, default: Any = MISSING) -> Any:
    """The option of another dataclass with another help text and, if given, another default; its interval stays."""
    entry: Field[Any] = settings.__dataclass_fields__[name]  # type: ignore[attr-defined]
    return field(
        default=default_of(entry) if default is MISSING else default, metadata={**entry.metadata, "help": help}
    )


def check_options(settings: Any) -> None:
    """Check that each option of a dataclass lies in its interval and has the option that it needs."""
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        interval, needs = entry.metadata.get("interval"), entry.metadata.get("needs")
        if interval and value is not None and not lies_in(value, interval):
            raise ParameterError(entry.name, f"must lie in {interval}, got {value}")
        if needs and value != default_of(entry) and getattr(settings, needs) in (None, False):
            raise ParameterError(entry.name, f"has no effect without {needs}")


def default_of(entry: Field[Any]) -> Any:
    """The default of a dataclass's field."""
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def lies_in(value: object, interval: str) -> bool:
    """Whether a number lies in an interval such as ``[0, 1)``; NaN lies in none, nor does what is not a number."""
    if not isinstance(value, int | float):  # argparse makes a list of ``--option=--``
        return False
    low, high = map(float, interval[1:-1].split(","))
    above = low <= value if interval[0] == "[" else low < value
    return above and (value <= high if interval[-1] == "]" else value < high)


class SettingsParser(OneLineErrors, HfArgumentParser):
    """A parser whose options are the fields of dataclasses; an error is one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # so that -1:0.03 is a value and not an option

    @staticmethod
    def _parse_dataclass_field(parser: ArgumentParser, field: Field[Any]) -> None:
        known = copy.copy(field)
        metadata = {key: value for key, value in field.metadata.items() if key not in ("interval", "needs")}
        known.metadata = MappingProxyType(metadata)
        HfArgumentParser._parse_dataclass_field(parser, known)
