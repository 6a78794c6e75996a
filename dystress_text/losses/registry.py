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
from typing import Any, ClassVar, Self, TypeVar

from torch import nn

from dystress_text.errors import lies_in, meant, plain, reason_of

PARTS: dict[str, type[LossPart]] = {}  # the registry
LONGEST = 1_000  # characters of a string
# arguments written without their names
_TEMPERATURES = ("temperature", "tau", "tau_0", "tau_min", "tau_max")
_OF_0_2 = "; macl(0.05, alpha=2, a_0=0.8) is macl(alignment_adaptive(0.05, alpha=2, a_0=0.8))"

P = TypeVar("P", bound="LossPart")


class LossError(ValueError):
    """An invalid string of a loss; the message begins with the invalid part.

    Examples:
        >>> parse_loss("infonce(cosin(0.1, 0.2))")
        Traceback (most recent call last):
            ...
        dystress_text.losses.registry.LossError: cosin: unknown (did you mean cosine?); known ...
    """


class LossPart(nn.Module):
    """A part of a loss; parts of one class are equal if their arguments are.

    A constructor stores each argument unchanged under its own name, as scikit-learn's estimators
    do. The string has all positional arguments, and those keyword-only ones that differ from their
    defaults. ``gather`` is not an argument in this sense.

    Equal parts have equal hashes, so torch's ``children()`` and ``to()`` of one parent see them as
    one; ``parameters()`` has those of both.
    """

    source: ClassVar[str] = ""  # the paper, as a card cites it

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that the string contains, by name."""
        given = {}
        for name, parameter in parameters(type(self)).items():
            value = plain(self.argument(name))
            if isinstance(value, LossPart):
                value = value.as_argument()
            always = parameter.kind is not parameter.KEYWORD_ONLY
            if value is not None and (always or value != parameter.default):
                given[name] = value
        return given

    def argument(self, name: str) -> Any:
        """Return an argument of the constructor."""
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

    def __hash__(self) -> int:
        return hash(type(self))  # an argument may be a list

    def named_modules(
        self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        # torch keeps modules in a set, in which equal parts with parameters of their own are one
        memo = set() if memo is None else memo
        if not remove_duplicate or id(self) not in memo:
            memo.add(id(self))
            yield from super().named_modules(set(), prefix, remove_duplicate)

    def __str__(self) -> str:
        return self._written(name_of(type(self)), str)

    def __repr__(self) -> str:
        return self._written(type(self).__name__, repr)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some arguments changed."""
        return type(self)(**{**self.arguments(), **changes})

    def _written(self, name: str, write: Callable[[Any], str]) -> str:
        known = parameters(type(self))
        tokens = []
        by_position = True
        for argument, value in self.arguments().items():
            text = write(value) if isinstance(value, LossPart) else _literal(value)
            is_keyword = known[argument].kind is inspect.Parameter.KEYWORD_ONLY
            by_position = by_position and argument in _TEMPERATURES and not is_keyword
            if not by_position:
                text = f"{argument}={text}"
            tokens.append(text)
        return f"{name}({', '.join(tokens)})"


def _literal(value: object) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return repr(value)
    # 1 for 1.0, 0 for -0.0
    return repr(value + 0.0).removesuffix(".0")


def register(name: str) -> Callable[[type[P]], type[P]]:
    """Register a temperature, reweighting or objective, as a class decorator.

    Args:
        name: its name in the strings of losses.

    Raises:
        ValueError: another class has the name.

    Examples:
        >>> @register("quadratic")
        ... class Quadratic(ProfileTemperature):
        ...     def shape(self, similarity):
        ...         return similarity.square()
        >>> parse_loss("infonce(quadratic(0.05, 0.07))")
        InfoNCELoss(Quadratic(0.05, 0.07))
    """

    def decorate(cls: type[P]) -> type[P]:
        known = PARTS.get(name, cls)  # redefining a class, as in a notebook, is fine
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
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


def parameters(cls: type[LossPart]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a constructor, ``gather`` excepted.

    ``**options`` stands for the base class's keyword-only parameters.
    """
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        if "__init__" not in vars(base):
            continue
        taken = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        named = [each for each in taken if each.kind is each.KEYWORD_ONLY]
        if not found:  # the nearest constructor
            named += [each for each in taken if each.kind is each.POSITIONAL_OR_KEYWORD]
        # positional ones first, as in a signature
        for each in sorted(named, key=lambda each: each.kind):
            found.setdefault(each.name, each)
        if not any(each.kind is each.VAR_KEYWORD for each in taken):
            break
    found.pop("gather", None)
    return found


def check_number(name: str, value: float, interval: str) -> float:
    """Return a parameter as Python's number, which may be a scalar of NumPy or torch.

    Raises:
        ValueError: it is no number in an interval such as ``[0, 1)``.
    """
    number: float = plain(value)
    if isinstance(number, bool) or not lies_in(number, interval):
        raise ValueError(f"{name} must be a number in {interval}, got {value!r}")
    return number


def check_count(name: str, value: int, interval: str) -> int:
    """Return a parameter as Python's integer; raise a ValueError unless it is in an interval."""
    count = check_number(name, value, interval)
    if not isinstance(count, int):
        raise ValueError(f"{name} must be an integer, got {value}")
    return count


def parse(text: str, own_classes: bool = False) -> LossPart:
    """Return the part that a string describes.

    Args:
        text: a name with its arguments, such as ``cosine(0.1, 0.2)``.
        own_classes: whether a dotted name may import a module, as on a command line; never for a
            record.

    Raises:
        LossError: a part is unknown, incomplete or invalid.
    """
    if len(text) > LONGEST:
        raise LossError(f"{_short(text)}: longer than {LONGEST} characters")
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if own_classes:
            _register_own(node)
        return _part(node)
    except LossError:
        raise
    except (SyntaxError, ValueError) as error:
        raise LossError(f"{_short(text)}: {getattr(error, 'msg', error)}") from None
    except (RecursionError, MemoryError):
        raise LossError(f"{_short(text)}: nested too deeply") from None


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 100 else f"{text[:97]}..."


def _part(node: ast.expr) -> LossPart:
    place = _short(ast.unparse(node))
    if not isinstance(node, ast.Call):
        raise LossError(f"{place}: expected a call, such as infonce(0.05)")
    name = ast.unparse(node.func)
    if name not in PARTS:
        known = ", ".join(sorted(PARTS))
        raise LossError(f"{name}: unknown{meant(name, PARTS)}; known are {known}")
    positional = [_value(each) for each in node.args]
    named = {str(each.arg): _value(each.value) for each in node.keywords}
    try:
        if len(named) < len(node.keywords):
            raise ValueError("an argument is given twice")
        signature = inspect.Signature(list(parameters(PARTS[name]).values()))
        return PARTS[name](**signature.bind(*positional, **named).arguments)
    except Exception as error:  # a constructor may be the user's
        hint = _OF_0_2 if name == "macl" and isinstance(error, TypeError) else ""
        raise LossError(f"{place}: {reason_of(error)}{hint}") from error


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Call):
        return _part(node)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise LossError(f"{_short(ast.unparse(node))}: expected a call or a literal") from None


def _register_own(tree: ast.expr) -> None:
    """Import the classes with dotted names, from the working directory too."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [ast.unparse(node) for node in calls if isinstance(node, ast.Attribute)]
    for name in names:
        module, _, inner = name.rpartition(".")
        sys.path.insert(0, "")  # as ``python -m`` does
        try:
            cls = getattr(importlib.import_module(module), inner)
        except Exception as error:  # the module is the user's
            raise LossError(f"{name}: cannot be loaded: {reason_of(error)}") from error
        finally:
            sys.path.remove("")
        if not (isinstance(cls, type) and issubclass(cls, LossPart)):
            raise LossError(f"{name}: not a temperature, reweighting or objective")
        PARTS[name] = cls  # so that records of the run can be read
