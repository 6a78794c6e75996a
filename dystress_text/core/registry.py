"""The base of all temperatures, the registry that knows them by name, and their options, found by inspection."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from torch import Tensor, nn


class Temperature(nn.Module, ABC):
    """Base of all temperatures. Its call maps similarities (any shape) to temperatures (same shape).

    The other methods are those that only some temperatures need: what a rule of another paper makes of similarities
    (:mod:`dystress_text.core.rules`), and what changes during the run.
    """

    @abstractmethod
    def forward(self, similarity: Tensor) -> Tensor:
        """Temperature of each pair; the result has the shape, dtype and device of ``similarity``.

        Must be elementwise and deterministic: a large batch is computed block by block, and again in the backward.
        """

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        """The logits of negatives, whose logsumexps over each row :meth:`negatives_logsumexp` receives."""
        return (similarity / tau,)

    def positive_logit(self, similarity: Tensor, tau: Tensor) -> Tensor:
        """The logits of positives, (rows,)."""
        return similarity / tau

    def negatives_logsumexp(self, sums: Sequence[Tensor], positive: Tensor, count: int) -> Tensor:
        """The logarithm of what the negatives add to the softmax's denominator, (rows,).

        Args:
            sums: logsumexps of :meth:`logits` over each row's negatives, (rows,) each.
            positive: logits of the positives, (rows,).
            count: negatives in a row.
        """
        return sums[0]

    def observe(self, mean_positive: Tensor) -> None:
        """Receive the mean positive similarity of the global batch (a scalar). Losses call this every step."""

    def advance(self, epoch: float, run_fraction: float) -> None:
        """Receive the progress: epochs done, and the fraction of the run in [0, 1]. The training loop calls this."""

    @property
    def needs_mean_positive(self) -> bool:
        return type(self).observe is not Temperature.observe

    @property
    def needs_progress(self) -> bool:
        return type(self).advance is not Temperature.advance

    def values(self) -> dict[str, Any]:
        """Its present parameters by name, as ``run.json`` holds them."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters if hasattr(self, name)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.values().items())})"


TEMPERATURES: dict[str, type[Temperature]] = {}

T = TypeVar("T", bound=Temperature)


def register_temperature(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator that makes a temperature known by ``name`` to :func:`make_temperature` and ``--temperature``.

    A class of the same module and qualified name replaces the earlier one, as when a notebook's cell runs again; any
    other is refused with a ValueError.
    """

    def register(cls: type[T]) -> type[T]:
        holder = TEMPERATURES.get(name, cls)
        if (holder.__module__, holder.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"temperature {name!r} is registered already, by {holder.__module__}.{holder.__qualname__}"
            )
        TEMPERATURES[name] = cls
        return cls

    return register


def temperature_parameters(name: str) -> dict[str, inspect.Parameter]:
    """The constructor parameters of the temperature registered as ``name``, in order."""
    if name not in TEMPERATURES:
        raise ValueError(f"temperature {name!r} is unknown; known are {', '.join(sorted(TEMPERATURES))}")
    return dict(inspect.signature(TEMPERATURES[name]).parameters)


def make_temperature(name: str, **parameters: Any) -> Temperature:
    """Build a temperature from its registered name; ValueError for a name, parameter or value that does not fit."""
    known = temperature_parameters(name)
    try:
        inspect.signature(TEMPERATURES[name]).bind(**parameters)
    except TypeError as error:
        raise ValueError(f"temperature {name!r} takes {', '.join(known)}: {error}") from error
    return TEMPERATURES[name](**parameters)


class ConstructorOption(NamedTuple):
    """A number or text that constructors take."""

    kind: type  # float, int, bool or str
    help: str  # from the docstrings, with the names of the classes that it is about
    defaults: Mapping[str, Any]  # of each class that takes it, by the name of the class


def constructor_options(classes: Mapping[str, type]) -> dict[str, ConstructorOption]:
    """The options of classes, given by name: the numbers and texts among their constructors' parameters.

    The help is what the docstrings' ``Args`` say, those of base classes too. ``constructor_options(TEMPERATURES)`` has
    the options of all temperatures.
    """
    found: dict[str, ConstructorOption] = {}
    for name, cls in classes.items():
        hints, about = get_type_hints(cls.__init__), _arguments(cls)  # type: ignore[misc]  # of the constructor
        for key, parameter in inspect.signature(cls).parameters.items():
            kinds = [kind for kind in get_args(hints.get(key)) or (hints.get(key),) if kind is not NoneType]
            if len(kinds) == 1 and kinds[0] in (float, int, bool, str):
                _, text, defaults = found.get(key, ("", "", {}))
                said = f": {about[key]}"
                text = f"{text.removesuffix(said)}{', ' if text.endswith(said) else ' '}{name}{said}".lstrip()
                found[key] = ConstructorOption(kinds[0], text, {**defaults, name: parameter.default})
    return found


def _arguments(cls: type) -> dict[str, str]:
    """What the docstring of a class and of its bases says about each argument."""
    found: dict[str, str] = defaultdict(str)
    for base in cls.__mro__:
        _, _, args = inspect.cleandoc(base.__doc__ or "").partition("Args:\n")
        section = re.split(r"\n\S", args)[0]
        for key, text in re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", section, flags=re.S | re.M):
            found[key] = found[key] or " ".join(text.split())
    return found
