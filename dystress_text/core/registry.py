"""The base of all temperatures, the registry that knows them by name, and their options, found by inspection."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

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
        """The logits of negatives, whose logsumexps over each row :meth:`negatives` receives."""
        return (similarity / tau,)

    def positive_logit(self, similarity: Tensor, tau: Tensor) -> Tensor:
        """The logits of positives, (rows,)."""
        return similarity / tau

    def negatives(self, sums: Sequence[Tensor], positive: Tensor, count: int) -> Tensor:
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
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ValueError(f"{unknown[0]} is no parameter of temperature {name!r}, which takes {', '.join(known)}")
    missing = [key for key, p in known.items() if p.default is inspect.Parameter.empty and key not in parameters]
    if missing:
        raise ValueError(f"{missing[0]} is missing: temperature {name!r} needs it")
    return TEMPERATURES[name](**parameters)


@dataclass(frozen=True)
class ConstructorOption:
    """A number or text that constructors take.

    Attributes:
        kind: float, int, bool or str.
        help: from the docstrings, with the names of the classes that it is about where they differ.
        defaults: of each class that takes it, by the name of the class.
    """

    kind: type
    help: str
    defaults: Mapping[str, Any]


def constructor_options(classes: Mapping[str, Callable[..., Any]]) -> dict[str, ConstructorOption]:
    """The options of classes, given by name: the numbers and texts among their constructors' parameters.

    The help is what the docstrings' ``Args`` say, those of base classes too. ``constructor_options(TEMPERATURES)`` has
    the options of all temperatures.
    """
    kinds: dict[str, type] = {}
    texts: dict[str, dict[str, str]] = {}
    defaults: dict[str, dict[str, Any]] = {}
    for name, cls in classes.items():
        hints, about = get_type_hints(cls.__init__), _arguments(cls)  # type: ignore[misc]  # of the constructor
        for key, parameter in inspect.signature(cls).parameters.items():
            hint = hints.get(key)
            kind = [k for k in get_args(hint) or (hint,) if k is not NoneType]
            if len(kind) == 1 and kind[0] in (float, int, bool, str):
                kinds[key] = kind[0]
                texts.setdefault(key, {})[name] = about.get(key, "")
                defaults.setdefault(key, {})[name] = parameter.default
    return {key: ConstructorOption(kinds[key], _merged(texts[key]), defaults[key]) for key in kinds}


def _arguments(cls: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of a class and of its bases says about each argument."""
    found: dict[str, str] = {}
    for base in inspect.getmro(cls):
        _, _, args = inspect.cleandoc(base.__doc__ or "").partition("Args:\n")
        section = re.split(r"\n\S", args)[0]
        for key, text in re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", section, flags=re.S | re.M):
            found.setdefault(key, " ".join(text.split()))
    return found


def _merged(texts: Mapping[str, str]) -> str:
    by_text: dict[str, list[str]] = {}
    for name, text in texts.items():
        by_text.setdefault(text, []).append(name)
    return " ".join(f"{', '.join(names)}: {text}" for text, names in by_text.items())
