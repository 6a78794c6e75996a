"""The base of all temperatures, and the registry that knows them by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from dystress_text.core.rule import PairRule, Pull


class Temperature(PairRule):
    """Base of all temperatures: rules whose logit is ``s / tau(s)``. Their call maps similarities to temperatures."""

    def pullback(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[list[Tensor], Pull]:
        if not detach or self.learned():
            return super().pullback(similarity, detach, tau)
        divisor = self(similarity) if tau is None else tau
        return [similarity / divisor], lambda gradients: (gradients[0].div_(divisor), [])


TEMPERATURES: dict[str, type[Temperature]] = {}

T = TypeVar("T", bound=Temperature)


def register_temperature(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator that makes a temperature known by ``name`` to :func:`make_temperature` and ``--temperature``.

    A class of the same module and qualified name replaces the earlier one, as when a notebook's cell runs again.

    Raises:
        ValueError: the name already belongs to another class.
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
    """The constructor parameters of the temperature registered as ``name``, in order.

    Raises:
        ValueError: the name is unknown; the message lists the known ones.
    """
    if name not in TEMPERATURES:
        raise ValueError(f"unknown temperature {name!r}; known are {', '.join(sorted(TEMPERATURES))}")
    return dict(inspect.signature(TEMPERATURES[name]).parameters)


def make_temperature(name: str, **parameters: Any) -> Temperature:
    """Build a temperature from its registered name.

    Raises:
        ValueError: unknown name, a parameter that this temperature does not take, or a value out of range.
    """
    known = temperature_parameters(name)
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ValueError(f"temperature {name!r} takes {', '.join(known)}; not {', '.join(unknown)}")
    missing = [key for key, p in known.items() if p.default is inspect.Parameter.empty and key not in parameters]
    if missing:
        raise ValueError(f"temperature {name!r} needs {', '.join(missing)}")
    return TEMPERATURES[name](**parameters)
