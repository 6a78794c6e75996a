"""Options of a program as fields of a dataclass: default, help, interval, and the option that each
one needs.

@dataclass(frozen=True)
class Settings:
    dropout: float = option(0.1, "Dropout rate.", interval="[0, 1)")
    weight: float = option(0.1, "mask: weight of that loss.", interval="[0, inf)", needs="mask")

    def __post_init__(self) -> None:
        check_options(self)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import MISSING, Field, field, fields
from os import PathLike, fspath
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from dystress_text.cli.command_line import OneLineParser
from dystress_text.errors import ParameterError, lies_in, meant


def option(
    default: Any, help: str, *, interval: str | None = None, needs: str | None = None, **more: Any
) -> Any:
    """A field of a dataclass that is an option of a program.

    Args:
        default: the value if the option is not given; ``MISSING`` for one that must be given.
        help: the text for ``--help``.
        interval: of valid numbers, such as ``[0, 1)`` or ``(0, inf)``; None (not given) is always
            valid.
        needs: the option without which this one has no effect; without it, only the default is
            valid.
        **more: further arguments of argparse's ``add_argument``, such as ``choices``.
    """
    metadata = {"help": help, "interval": interval, "needs": needs, **more}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def reworded(settings: type, name: str, help: str) -> Any:
    """The option of another dataclass with another help text."""
    entry: Field[Any] = settings.__dataclass_fields__[name]  # type: ignore[attr-defined]
    return field(default=default_of(entry), metadata={**entry.metadata, "help": help})


def check_options(settings: Any) -> None:
    """Check that each option of a dataclass lies in its interval and has the option that it needs."""
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        interval, needs = entry.metadata.get("interval"), entry.metadata.get("needs")
        if interval and value is not None and not lies_in(value, interval):
            raise ParameterError(entry.name, f"must lie in {interval}, got {value}")
        choices = entry.metadata.get("choices")
        for word in value if isinstance(value, list) else [value]:
            if choices and word is not None and word not in choices:
                raise ParameterError(
                    entry.name, f"must be one of {', '.join(choices)}, got {word!r}"
                )
        if needs and value != default_of(entry) and getattr(settings, needs) in (None, False):
            raise ParameterError(entry.name, f"has no effect without --{needs}")


def check_names(option: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that are not known, with the nearest one that is."""
    for name in names:
        if name not in known:
            raise ParameterError(
                option, f"no {name!r}{meant(name, known)}; known are {', '.join(known)}"
            )


def converted(entry: Field[Any], group: type, value: Any) -> Any:
    """What Python code gives for a field: a path of the field's type, one text as a list; others
    are refused.
    """
    kind, optional = _kind(entry, group)
    if value is None and optional:
        return value
    of_list = get_origin(kind) is list
    one = get_args(kind)[0] if of_list else kind
    values = [value] if not of_list or isinstance(value, str | PathLike) else list(value)
    text_of: Callable[[Any], Any] = Path if one is Path else fspath
    texts: list[Any] = [
        text_of(each) if isinstance(each, str | PathLike) else each for each in values
    ]
    if one is str and "yes" in entry.metadata.get("choices", ()):
        texts = [{True: "yes", False: "no"}.get(each, each) for each in texts]
    for each in texts:
        fits = isinstance(each, (int, float) if one is float else one)
        if not fits or isinstance(each, bool) != (one is bool):
            kinds = {str: "a text", int: "a whole number", float: "a number", bool: "True or False"}
            raise ParameterError(
                entry.name, f"must be {kinds.get(one, one.__name__)}, got {each!r}"
            )
    return texts if of_list else texts[0]


def _kind(entry: Field[Any], group: type) -> tuple[Any, bool]:
    """The type of a field's values without None, and whether that is one too."""
    kind = get_type_hints(group)[entry.name]
    if not isinstance(kind, UnionType):
        return kind, False
    return next(each for each in get_args(kind) if each is not NoneType), True


def default_of(entry: Field[Any]) -> Any:
    """The default of a dataclass's field."""
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


class SettingsParser(OneLineParser):
    """A parser whose options are the fields of dataclasses, each a group under its ``title``.

    The result of parsing has the options that are given, and no others; an action's ``shown`` is
    the default for help.
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
        """One instance of each dataclass."""
        values = vars(self.parse_args(argv))
        return [
            group(
                **{
                    entry.name: values[entry.name]
                    for entry in fields(group)
                    if entry.name in values
                }
            )
            for group in self._groups
        ]


_METAVARS = {int: "N", float: "X", bool: "yes|no"}


def _add_option(add: Callable[..., Any], entry: Field[Any], kind: Any) -> None:
    """Add the option of a field: a number or text, a list of them, or yes or no."""
    more = {key: value for key, value in entry.metadata.items() if key not in ("interval", "needs")}
    needed = entry.default is entry.default_factory is MISSING
    default = None if needed else default_of(entry)
    more |= {"required": True} if needed else {"default": argparse.SUPPRESS}
    if get_origin(kind) is list:
        kind, more["nargs"] = get_args(kind)[0], "+"
    if kind is bool and default is not None:  # the name alone means yes
        more |= {"nargs": "?", "const": True}
    if "choices" not in more:
        more.setdefault("metavar", _METAVARS.get(kind, "TEXT"))
    if default is True:
        hidden = argparse.SUPPRESS
        add(
            f"--no_{entry.name}", dest=entry.name, action="store_false", default=hidden, help=hidden
        )
        more["help"] += f" --no_{entry.name} turns it off."
    add(f"--{entry.name}", type=_truth if kind is bool else kind, **more).shown = default


def _truth(word: str) -> bool:
    if word.lower() not in _TRUTH:
        raise argparse.ArgumentTypeError(f"yes or no is needed, got {word!r}")
    return _TRUTH[word.lower()]


_TRUTH = dict.fromkeys(("yes", "true", "t", "y", "1"), True) | dict.fromkeys(
    ("no", "false", "f", "n", "0"), False
)
