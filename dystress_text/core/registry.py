"""The parts of a loss by name, and a loss as text: ``infonce(shifted_cosine(0.05, 0.07, shift=-0.4))``.

A part is an objective, a rule or a temperature. Its text is a call of its registered name with literals and other
parts, a number standing for a constant temperature. The text is read, never evaluated as code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from torch import nn

from dystress_text.errors import meant

PARTS: dict[str, type[LossPart]] = {}  # the registry
LONGEST = 1_000  # characters of a text
_TEMPERATURES = ("temperature", "tau", "tau_0", "tau_min", "tau_max")  # arguments that stand by position

P = TypeVar("P", bound="LossPart")


class LossError(ValueError):
    """The text of a loss is wrong; the message begins with the place."""


class LossPart(nn.Module):
    """A part of a loss, which is a value: equal to another of its class with the same arguments.

    A constructor keeps each argument under its own name, as scikit-learn's estimators do. Those before the ``*`` of its
    signature are always written, those behind it where they differ from their defaults; ``gather`` is no part of the
    value.
    """

    def arguments(self) -> dict[str, Any]:
        """The arguments that are written, by name."""
        found = {}
        for name, parameter in parameters(type(self)).items():
            value = self.argument(name)
            if value is not None and (parameter.kind is not parameter.KEYWORD_ONLY or value != parameter.default):
                found[name] = value
        return found

    def argument(self, name: str) -> Any:
        """An argument of the constructor."""
        return getattr(self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LossPart) and type(self) is type(other) and self.arguments() == other.arguments()

    # by identity: torch keeps modules in sets, where two equal ones are two
    __hash__ = nn.Module.__hash__

    def __str__(self) -> str:
        return self._written(name_of(type(self)), str)

    def __repr__(self) -> str:
        return self._written(type(self).__name__, repr)

    def replace(self, **changes: Any) -> Self:
        """One with some other arguments."""
        return type(self)(**{**self.arguments(), **changes})

    def _written(self, name: str, write: Callable[[Any], str]) -> str:
        words, by_position, taken = [], True, parameters(type(self))
        for argument, value in self.arguments().items():
            keyword = taken[argument].kind is inspect.Parameter.KEYWORD_ONLY
            by_position = by_position and argument in _TEMPERATURES and not keyword
            whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
            text = repr(int(value)) if whole else write(value) if isinstance(value, LossPart) else repr(value)
            words.append(text if by_position else f"{argument}={text}")
        return f"{name}({', '.join(words)})"


def register(name: str) -> Callable[[type[P]], type[P]]:
    """Class decorator that makes a temperature, rule or objective known by ``name`` in the text of a loss."""

    def decorate(cls: type[P]) -> type[P]:
        known = PARTS.get(name, cls)  # a class defined again, as in a notebook, takes its own place
        ours = known.__module__.startswith(f"{__package__}.") and known.__module__ != cls.__module__
        if ours or known.__qualname__ != cls.__qualname__:
            raise ValueError(f"{name!r} is {known.__name__} already: register another name")
        PARTS[name] = cls
        return cls

    return decorate


def name_of(cls: type[LossPart]) -> str:
    """The name under which a class is registered; else module and class, which a command line may name too."""
    return next((name for name, known in PARTS.items() if known is cls), f"{cls.__module__}.{cls.__qualname__}")


def parameters(cls: type[LossPart]) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor that a text can give; ``**options`` are those behind the base class's ``*``."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not nn.Module:
            own = dict(list(inspect.signature(vars(base)["__init__"]).parameters.items())[1:])
            more = {name: each for name, each in own.items() if not found or each.kind is each.KEYWORD_ONLY}
            found |= {name: each for name, each in more.items() if name not in found}
            if not any(each.kind is each.VAR_KEYWORD for each in own.values()):
                break
    hidden = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: each for name, each in found.items() if each.kind not in hidden and name != "gather"}


def check_number(name: str, value: float, interval: str) -> None:
    """Refuse a parameter outside an interval such as ``[0, 1)``, and NaN; True was probably meant for another one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, got {value!r}")
    low, high = map(float, interval[1:-1].split(","))
    above = low <= value if interval[0] == "[" else low < value
    below = value <= high if interval[-1] == "]" else value < high
    if not (above and below):
        raise ValueError(f"{name} must lie in {interval}, got {value}")


def parse(text: str, own_classes: bool = False) -> LossPart:
    """The part that a text describes.

    Args:
        text: a name with its arguments, such as ``cosine(0.1, 0.2)``.
        own_classes: whether a dotted name may load a module, as on a command line; never for a record.

    Raises:
        LossError: something in it is unknown, missing or does not fit.
    """
    try:
        if len(text) > LONGEST:
            raise LossError(f"{_short(text)}: longer than {LONGEST} characters")
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call):
            raise LossError(f"{_short(text)}: a name with its arguments is needed, such as infonce(0.05)")
        return _part(node, own_classes)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise LossError(f"{_short(text)}: {getattr(error, 'msg', None) or 'nested too deeply'}") from None
    except ValueError as error:  # such as a null byte
        raise error if isinstance(error, LossError) else LossError(f"{_short(text)}: {error}") from None


def _short(place: str | ast.expr) -> str:
    text = (place if isinstance(place, str) else ast.unparse(place)).strip()
    return text if len(text) <= 100 else f"{text[:97]}..."


def _part(node: ast.Call, own_classes: bool) -> LossPart:
    cls = _class(node.func, own_classes)
    taken = parameters(cls)
    if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
        raise LossError(f"{_short(node)}: no stars")
    positional = [_value(each, own_classes) for each in node.args]
    named = [(str(each.arg), _value(each.value, own_classes)) for each in node.keywords]
    with _located(node):
        by_position = [name for name, each in taken.items() if each.kind is not each.KEYWORD_ONLY]
        if len(positional) > len(by_position):
            raise ValueError(f"at most {len(by_position)} arguments without a name; it takes {', '.join(taken)}")
        given = dict(zip(by_position, positional, strict=False))
        for name, value in named:
            if name not in taken:
                raise ValueError(f"no parameter {name}{meant(name, taken)}; it takes {', '.join(taken) or 'none'}")
            if name in given:
                raise ValueError(f"{name} is given twice")
            given[name] = value
        missing = [name for name, each in taken.items() if each.default is each.empty and name not in given]
        if missing:
            raise ValueError(f"{' and '.join(missing)} must be given; it takes {', '.join(taken)}")
        return cls(**given)


@contextmanager
def _located(node: ast.expr) -> Iterator[None]:
    """Name the place of an error."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise LossError(f"{_short(node)}: {' '.join(str(error).split())}") from error


def _value(node: ast.expr, own_classes: bool) -> object:
    if isinstance(node, ast.Call):
        return _part(node, own_classes)
    sign, number = 1, node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, number = -1, node.operand
    value = number.value if isinstance(number, ast.Constant) else ...
    if type(value) in (int, float):
        return sign * value  # type: ignore[operator]
    if number is node and (value is None or type(value) in (bool, str)):
        return value
    named = isinstance(node, ast.Name)
    raise LossError(f"{_short(node)}: {'a name needs its arguments' if named else 'not a number, text or part'}")


def _class(node: ast.expr, own_classes: bool) -> type[LossPart]:
    name = ast.unparse(node)
    if name in PARTS:
        return PARTS[name]
    module, _, inner = name.rpartition(".")
    if not all(word.isidentifier() for word in name.split(".")):
        raise LossError(f"{name}: not a name")
    if not module:
        raise LossError(f"{name}: unknown{meant(name, PARTS)}; known are {', '.join(sorted(PARTS))}")
    if not own_classes:
        raise LossError(f"{name}: a class of your own is not loaded here; import its module and register it")
    with _located(node), _here_first():
        try:
            cls = getattr(importlib.import_module(module), inner)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"cannot be loaded: {error}") from error
        if not (isinstance(cls, type) and issubclass(cls, LossPart)):
            raise ValueError("neither a temperature nor a rule nor an objective")
        return PARTS.setdefault(name_of(cls), cls)  # so that what the run writes can be read


@contextmanager
def _here_first() -> Iterator[None]:
    """Modules of the working directory can be loaded, as with ``python -m``."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")


def names_of(kind: type[LossPart]) -> list[str]:
    """The registered names of a kind of part, such as temperatures."""
    return [name for name, cls in PARTS.items() if issubclass(cls, kind)]
