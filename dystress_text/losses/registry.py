"""The parts of a loss by name, and losses as strings.

A part is an objective, a reweighting or a temperature. Its string is a call of its registered name,
such as ``infonce(shifted_cosine(0.05, 0.07, shift=-0.4))``. Arguments are literals and other parts;
a number stands for a constant temperature. The string is parsed, never evaluated as code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self, TypeVar

from torch import nn

from dystress_text.errors import lies_in, meant

PARTS: dict[str, type[LossPart]] = {}  # the registry
LONGEST = 1_000  # characters of a string
# arguments written without their names
_TEMPERATURES = ("temperature", "tau", "tau_0", "tau_min", "tau_max")

P = TypeVar("P", bound="LossPart")


class LossError(ValueError):
    """The string of a loss is invalid; the message begins with the part that is.

    Examples:
        >>> loss("infonce(cosin(0.1, 0.2))")
        Traceback (most recent call last):
            ...
        dystress_text.losses.registry.LossError: cosin: unknown (did you mean cosine?); known ...
    """


class LossPart(nn.Module):
    """A part of a loss; parts of one class are equal if their arguments are.

    A constructor stores each argument unchanged under its own name, as scikit-learn's estimators
    do. The string has all positional arguments, and those keyword-only ones that differ from their
    defaults. ``gather`` is not an argument in this sense.
    """

    source: ClassVar[str] = ""  # the paper, as a card cites it

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the string, by name."""
        given = {}
        for name, parameter in parameters(type(self)).items():
            value = self.argument(name)
            if isinstance(value, LossPart):
                value = value.as_argument()
            always = parameter.kind is not parameter.KEYWORD_ONLY
            if value is not None and (always or value != parameter.default):
                given[name] = value
        return given

    def argument(self, name: str) -> Any:
        """Return an argument of the constructor."""
        if not hasattr(self, name):
            cls = type(self).__name__
            raise LossError(f"the constructor of {cls} must store {name} as self.{name}")
        return getattr(self, name)

    def as_argument(self) -> LossPart | float:
        """Return this part as the argument of another; a number for a constant temperature."""
        return self

    def learned(self) -> dict[str, float]:
        """Return the values of learned arguments, by name."""
        return {}

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, LossPart):
            return False
        return self.arguments() == other.arguments()

    # by identity: torch keeps modules in sets
    __hash__ = nn.Module.__hash__

    def __str__(self) -> str:
        return self._written(name_of(type(self)), str)

    def __repr__(self) -> str:
        return self._written(type(self).__name__, repr)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some arguments changed."""
        return type(self)(**{**self.arguments(), **changes})

    def _written(self, name: str, write: Callable[[Any], str]) -> str:
        arguments = self.arguments()
        tokens = []
        by_position = True
        for argument, parameter in parameters(type(self)).items():
            by_position &= argument in arguments and argument in _TEMPERATURES
            by_position &= parameter.kind is not parameter.KEYWORD_ONLY
            if argument in arguments:
                value = arguments[argument]
                text = write(value) if isinstance(value, LossPart) else _literal(value)
                tokens.append(text if by_position else f"{argument}={text}")
        return f"{name}({', '.join(tokens)})"


def _literal(value: object) -> str:
    if not isinstance(value, float):
        return repr(value)
    if value.is_integer() and abs(value) < 1e15:
        return repr(int(value))
    return repr(float(value))  # NumPy's scalars are floats with another repr


def register(name: str) -> Callable[[type[P]], type[P]]:
    """Register a temperature, reweighting or objective, as a class decorator.

    Args:
        name: its name in the strings of losses.

    Raises:
        ValueError: the name is not an identifier, or another class has it.
        TypeError: the class is not a part of a loss, or its constructor has unnamed parameters.

    Examples:
        >>> @register("quadratic")
        ... class Quadratic(ProfileTemperature):
        ...     def shape(self, similarity):
        ...         return similarity.square()
        >>> loss("infonce(quadratic(0.05, 0.07))")
        InfoNCELoss(Quadratic(0.05, 0.07))
    """
    if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        raise ValueError(f"register needs a name, as in @register('square'), got {name!r}")

    def decorate(cls: type[P]) -> type[P]:
        _check_class(cls)
        known = PARTS.get(name, cls)  # redefining a class, as in a notebook, is fine
        ours = known.__module__.startswith(f"{__package__}.") and known.__module__ != cls.__module__
        if ours or known.__qualname__ != cls.__qualname__:
            raise ValueError(f"{name!r} is already {known.__name__}: register another name")
        PARTS[name] = cls
        return cls

    return decorate


def name_of(cls: type[LossPart]) -> str:
    """Return the registered name of a class, else its module and class."""
    for name, known in PARTS.items():
        if known is cls:
            return name
    return f"{cls.__module__}.{cls.__qualname__}"


def _check_class(cls: object) -> None:
    if not (isinstance(cls, type) and issubclass(cls, LossPart)):
        raise TypeError("not a temperature, reweighting or objective")
    parameters(cls)


def parameters(cls: type[LossPart]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a constructor, ``gather`` excepted.

    ``**options`` stands for the base class's keyword-only parameters.
    """
    found: dict[str, inspect.Parameter] = {}
    positional = True  # only for the nearest constructor
    for base in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        if "__init__" not in vars(base):
            continue
        taken = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        for each in taken:
            if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL):
                raise TypeError(f"the constructor of {base.__name__} takes {each} without a name")
            by_position = positional and each.kind is each.POSITIONAL_OR_KEYWORD
            if by_position or each.kind is each.KEYWORD_ONLY:
                found.setdefault(each.name, each)
        if not any(each.kind is each.VAR_KEYWORD for each in taken):
            break
        positional = False
    found.pop("gather", None)
    return found


def check_number(name: str, value: float, interval: str) -> None:
    """Raise a ValueError unless a parameter is a number in an interval such as ``[0, 1)``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if not lies_in(value, interval):
        raise ValueError(f"{name} must lie in {interval}, got {value}")


def check_count(name: str, value: int, interval: str) -> None:
    """Raise a ValueError unless a parameter is an integer in an interval."""
    check_number(name, value, interval)
    if not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {value}")


def check_flag(name: str, value: bool) -> None:
    """Raise a ValueError unless a parameter is a bool: a number was meant for another one."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def parse(text: str, own_classes: bool = False) -> LossPart:
    """Return the part that a string describes.

    Args:
        text: a name with its arguments, such as ``cosine(0.1, 0.2)``.
        own_classes: whether a dotted name may import a module, as on a command line; never for a
            record.

    Raises:
        LossError: a part is unknown, incomplete or invalid.
    """
    try:
        if len(text) > LONGEST:
            raise LossError(f"{_short(text)}: longer than {LONGEST} characters")
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call):
            raise LossError(f"{_short(text)}: expected a call, such as infonce(0.05)")
        return _part(node, own_classes)
    except LossError:
        raise
    except (SyntaxError, ValueError) as error:
        raise LossError(f"{_short(text)}: {getattr(error, 'msg', error)}") from None
    except (RecursionError, MemoryError):
        raise LossError(f"{_short(text)}: nested too deeply") from None


def _short(place: str | ast.expr) -> str:
    text = (place if isinstance(place, str) else ast.unparse(place)).strip()
    return text if len(text) <= 100 else f"{text[:97]}..."


def _part(node: ast.Call, own_classes: bool) -> LossPart:
    cls = _class(node.func, own_classes)
    positional = [_value(each, own_classes) for each in node.args]
    named = {str(each.arg): _value(each.value, own_classes) for each in node.keywords}
    with _located(node):
        known = parameters(cls)
        if len(named) < len(node.keywords):
            raise ValueError("an argument is given twice")
        for name in named:
            if name not in known:
                takes = ", ".join(known) or "no arguments"
                raise ValueError(f"no parameter {name}{meant(name, known)}; it takes {takes}")
        bound = inspect.Signature(list(known.values())).bind(*positional, **named)
        part = cls(**bound.arguments)
        ours = __name__.partition(".")[0] == cls.__module__.partition(".")[0]
        if not ours and part != part.replace():
            raise ValueError(f"the constructor of {cls.__name__} must not change its arguments")
        return part


@contextmanager
def _located(node: ast.expr) -> Iterator[None]:
    """Prefix an error with the part that caused it."""
    try:
        yield
    except Exception as error:  # a constructor may be the user's
        kind = "" if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: "
        raise LossError(f"{_short(node)}: {kind}{' '.join(str(error).split())}") from error


def _value(node: ast.expr, own_classes: bool) -> object:
    if isinstance(node, ast.Call):
        return _part(node, own_classes)
    if isinstance(node, ast.Name):
        raise LossError(f"{_short(node)}: expected a call or a literal")
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = ...
    if value is None or type(value) in (bool, str):
        return value
    if type(value) not in (int, float):
        raise LossError(f"{_short(node)}: not a number, string or part")
    if not abs(value) <= sys.float_info.max:
        raise LossError(f"{_short(node)}: too large a number")
    return value


def _class(node: ast.expr, own_classes: bool) -> type[LossPart]:
    name = ast.unparse(node)
    if name in PARTS:
        return PARTS[name]
    module, _, inner = name.rpartition(".")
    if not all(word.isidentifier() for word in name.split(".")):
        raise LossError(f"{name}: not a name")
    if not module:
        raise LossError(
            f"{name}: unknown{meant(name, PARTS)}; known are {', '.join(sorted(PARTS))}"
        )
    if not own_classes:
        raise LossError(f"{name}: not registered; import its module and register the class")
    with _located(node), _here_first():
        try:
            cls = getattr(importlib.import_module(module), inner)
        except Exception as error:  # the module is the user's
            raise ValueError(f"cannot be loaded: {type(error).__name__}: {error}") from error
        _check_class(cls)
        return PARTS.setdefault(name_of(cls), cls)  # so that records of the run can be read


@contextmanager
def _here_first() -> Iterator[None]:
    """Import from the working directory too, as ``python -m`` does."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")
