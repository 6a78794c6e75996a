"""The base of all temperatures, and the registry that knows them by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn


class Temperature(nn.Module, ABC):
    """Base of all temperatures. Its call maps similarities (any shape) to temperatures (same shape).

    It also says what becomes of similarities and temperatures: the logits are s / tau by default, and a rule of another
    paper (:mod:`dystress_text.core.rules`) overrides that. The other methods are for what changes during the run.
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

    def offset(self, sums: Sequence[Tensor], similarity: Tensor, count: int) -> Tensor:
        """What is added to the loss of each row without a gradient, (rows,): 0 but for a rule.

        The similarity is that of the positives, (rows,); the rest is as for :meth:`negatives_logsumexp`.
        """
        return similarity.new_zeros(similarity.shape)

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
        found = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters if hasattr(self, name)}
        return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in found.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.values().items())})"


TEMPERATURES: dict[str, type[Temperature]] = {}

T = TypeVar("T", bound=Temperature)


def register_temperature(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator that makes a temperature known by ``name`` to :func:`make_temperature` and ``--temperature``."""

    def register(cls: type[T]) -> type[T]:
        known = TEMPERATURES.get(name, cls)  # a class defined again, as in a notebook, takes its own place
        ours = known.__module__.startswith(f"{__package__}.") and known.__module__ != cls.__module__
        if ours or known.__qualname__ != cls.__qualname__:
            raise ValueError(f"temperature {name!r} is {known.__name__} already: register another name")
        TEMPERATURES[name] = cls
        return cls

    return register


def check_number(name: str, value: float, interval: str) -> None:
    """Refuse a parameter outside an interval such as ``[0, 1)``, and NaN; True was probably meant for another one."""
    low, high = map(float, interval[1:-1].split(","))
    above = low <= value if interval[0] == "[" else low < value
    below = value <= high if interval[-1] == "]" else value < high
    if isinstance(value, bool) or not (above and below):
        raise ValueError(f"{name} must lie in {interval}, got {value}")


def make_temperature(name: str, **parameters: Any) -> Temperature:
    """Build a temperature from its registered name; ValueError for a name, parameter or value that does not fit."""
    if name not in TEMPERATURES:
        raise ValueError(f"temperature {name!r} is unknown; known are {', '.join(sorted(TEMPERATURES))}")
    signature = inspect.signature(TEMPERATURES[name])
    try:
        signature.bind(**parameters)
    except TypeError as error:
        raise ValueError(f"temperature {name!r} takes {', '.join(signature.parameters)}: {error}") from error
    return TEMPERATURES[name](**parameters)
