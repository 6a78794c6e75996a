"""The base of all temperatures, and the registry that knows them by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn


class Temperature(nn.Module, ABC):
    """Base of all temperatures: a module whose call maps similarities (any shape) to temperatures (same shape)."""

    @abstractmethod
    def forward(self, similarity: Tensor) -> Tensor:
        """Temperature of each pair; ``similarity`` and the result have the same shape, dtype and device.

        Must be elementwise and deterministic: the losses of a large batch call it block by block, and again in the
            backward.
        """

    def observe(self, mean_positive: Tensor) -> None:
        """Receive the mean positive similarity of the global batch (a scalar). Losses call this every step."""

    def advance(self, epoch: float, run_fraction: float) -> None:
        """Receive the progress: epochs done, and the fraction of the run in [0, 1]. The trainer calls this."""

    def keep(self) -> None:
        """Remember the present state as that of the best model. Tasks call this when they save the model."""

    def values(self) -> dict[str, Any]:
        """Its parameters by name, as ``run.json`` holds them."""
        return {}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.values().items())

    @property
    def needs_mean_positive(self) -> bool:
        """Whether :meth:`observe` is implemented; if not, losses skip the reduction."""
        return type(self).observe is not Temperature.observe

    @property
    def needs_progress(self) -> bool:
        """Whether :meth:`advance` is implemented, so that the training loop must call it."""
        return type(self).advance is not Temperature.advance


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
