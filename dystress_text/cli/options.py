"""Define the options of a program as fields of a dataclass.

@dataclass(frozen=True)
class Settings:
    dropout: float = option(0.1, "Dropout rate.", interval="[0, 1)")
    weight: float = option(0.1, "mask: weight of that loss.", interval="[0, inf)", needs="mask")

    def __post_init__(self) -> None:
        check_options(self)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from functools import partial
from os import PathLike
from os.path import expanduser
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from dystress_text.cli.command_line import OneLineParser
from dystress_text.errors import (
    ParameterError,
    lies_in,
    meant,
    plain,
)


def option(
    default: Any, help: str, *, interval: str | None = None, needs: str | None = None, **more: Any
) -> Any:
    """Return a field of a dataclass that is an option of a program.

    Args:
        default: the value without the option; ``MISSING`` for an option that is required.
        help: the text for ``--help``.
        interval: the interval of valid numbers, such as ``[0, 1)``; None is always valid.
        needs: another option that this one requires, unless this one has its default value.
        **more: further arguments of argparse's ``add_argument``, such as ``choices``.
    """
    metadata = {"help": help, "interval": interval, "needs": needs, **more}
    if isinstance(default, list):
        return field(default_factory=partial(list, default), metadata=metadata)
    return field(default=default, metadata=metadata)


def check_options(settings: Any) -> None:
    """Convert the options to the types of their fields, and check them.

    Raises:
        ParameterError: an option is invalid or lacks the option it needs.
    """
    for entry in fields(settings):
        value = converted(entry, type(settings), getattr(settings, entry.name))
        object.__setattr__(settings, entry.name, value)
        interval = entry.metadata.get("interval")
        if interval and value is not None and not lies_in(value, interval):
            raise ParameterError(entry.name, f"must lie in {interval}, got {value}")
        choices = entry.metadata.get("choices")
        if choices and value is not None:
            check_names(entry.name, value if isinstance(value, list) else [value], choices)
        needs = entry.metadata.get("needs")
        if needs and value != default_of(entry) and getattr(settings, needs) in (None, False):
            raise ParameterError(entry.name, f"has no effect without `{needs}`")


def check_names(option: str, names: Iterable[str], known: Collection[str]) -> None:
    """Reject all unknown names in one error, which suggests a close name for each."""
    unknown = [f"{name!r}{meant(name, known)}" for name in names if name not in known]
    if unknown:
        raise ParameterError(option, f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")


def converted(entry: Field[Any], group: type, value: Any) -> Any:
    """Convert a value from Python code to the type of a field; reject a value of another type.

    Paths and strings are converted to each other, ``~`` to the home folder, scalars of NumPy or
    torch to numbers, and a single value to a list if the field is a list.
    """
    kind, optional = _kind(entry, group)
    if value is None and optional:
        return None
    if get_origin(kind) is not list:
        return _one(entry, kind, value)
    several = isinstance(value, Iterable) and not isinstance(value, str | PathLike)
    values = value if several else [value]
    return [_one(entry, get_args(kind)[0], each) for each in values]


def _one(entry: Field[Any], kind: Any, value: Any) -> Any:
    value = plain(value)
    if isinstance(value, str | PathLike):
        named = expanduser(value)
        value = Path(named) if kind is Path else named
    if isinstance(value, bool) and "yes" in entry.metadata.get("choices", ()):
        value = "yes" if value else "no"
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or isinstance(value, bool) != (kind is bool):
        reason = f"expected {kind.__name__}, got {type(value).__name__}"
        raise ParameterError(entry.name, reason)
    return value


def _kind(entry: Field[Any], group: type) -> tuple[Any, bool]:
    """Return the type of a field without None, and whether None is valid."""
    kind = get_type_hints(group)[entry.name]
    if not isinstance(kind, UnionType):
        return kind, False
    return next(each for each in get_args(kind) if each is not NoneType), True


def default_of(entry: Field[Any]) -> Any:
    """Return the default of a dataclass's field."""
    if entry.default_factory is not MISSING:
        return entry.default_factory()
    return entry.default


class SettingsParser(OneLineParser):
    """A parser whose options are the fields of dataclasses; each dataclass is a group of the help.

    The parsed namespace contains only options that the user gave.
    """

    def __init__(
        self, groups: Sequence[Any], prog: str, description: str | None = None, **more: Any
    ) -> None:
        super().__init__(prog, description, **more)
        self._groups = groups
        for group in groups:
            add = self.add_argument_group(getattr(group, "title", "options")).add_argument
            for entry in fields(group):
                _add_option(add, entry, _kind(entry, group)[0])

    def settings(self, argv: Sequence[str] | None = None) -> list[Any]:
        """Return one instance of each dataclass."""
        return instances(self._groups, vars(self.parse_args(argv)))


def instances(groups: Sequence[Any], given: Mapping[str, Any]) -> list[Any]:
    """Return an instance of each dataclass, made from the given values of its fields."""
    return [
        group(**{each.name: given[each.name] for each in fields(group) if each.name in given})
        for group in groups
    ]


_METAVARS = {int: "N", float: "X", bool: "yes|no"}


def _add_option(add: Callable[..., Any], entry: Field[Any], kind: Any) -> None:
    """Add the option of a field: a number, a text, a list of them, or yes or no."""
    more = dict(entry.metadata)
    more.pop("interval", None)
    more.pop("needs", None)
    if default_of(entry) is MISSING:
        more["required"] = True
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
        more["nargs"] = "+"
    if kind is bool:  # the name alone means yes
        more["nargs"] = "?"
        more["const"] = True
    if "choices" not in more:
        more.setdefault("metavar", _METAVARS.get(kind, "TEXT"))
    kind = _truth if kind is bool else kind
    add(f"--{entry.name}", type=kind, default=argparse.SUPPRESS, **more)


def _truth(value: str) -> bool:
    if value.lower() in ("yes", "true"):
        return True
    if value.lower() in ("no", "false"):
        return False
    raise argparse.ArgumentTypeError(f"expected yes or no, got {value!r}")
