"""Temperatures and objectives from the options of a run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from dystress_text.core.gather import Gather
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.other_losses import SigmoidRule
from dystress_text.core.registry import TEMPERATURES, Temperature, make_temperature, temperature_parameters
from dystress_text.core.rules import NEGATIVE_RULES
from dystress_text.core.run_temperatures import LearnableTemperature
from dystress_text.core.temperature import ProfileTemperature
from dystress_text.errors import ParameterError
from dystress_text.training.settings import OBJECTIVES, OWNERS, TEMPERATURE_OPTIONS, LossSettings

T = TypeVar("T")


@dataclass(frozen=True)
class LossDefaults:
    """Defaults for options that are not given.

    Attributes:
        temperature: the temperature's name.
        tau_range: of the profiles, and of the scheduled temperature if ``schedule`` applies.
        schedule: of the scheduled temperature; applies if the unit is not given or is the one here.
        alignment: of the alignment-adaptive temperature; missing ones are the class's defaults.
    """

    temperature: str
    tau_range: Mapping[str, float]
    schedule: Mapping[str, Any]
    alignment: Mapping[str, float]


def build_temperature(settings: LossSettings, defaults: LossDefaults) -> Temperature:
    """The temperature that the settings describe; an option that it does not take is refused."""
    name = settings.temperature
    if name is None:
        default = "alignment_adaptive" if settings.objective == "macl" else defaults.temperature
        name = default if settings.temp is None else "constant"
    with _options_named("temperature"):
        known = ["temp" if key == "tau" else key for key in temperature_parameters(name)]
    given = _given(settings, TEMPERATURE_OPTIONS)
    for key in given:
        if key not in known:
            raise ParameterError(key, f"temperature {name!r} takes {', '.join(known)} only")
    fallback: Mapping[str, Any] = {}
    if issubclass(TEMPERATURES[name], ProfileTemperature):
        fallback = defaults.tau_range
    elif name == "scheduled" and given.get("unit") in (None, defaults.schedule.get("unit")):
        fallback = {**defaults.tau_range, **defaults.schedule}
    elif name == "alignment_adaptive":
        fallback = defaults.alignment
    parameters = {key: value for key, value in fallback.items() if key in known} | given
    with _options_named("temperature"):
        temperature = make_temperature(name, **{"tau" if k == "temp" else k: v for k, v in parameters.items()})
    if not settings.learn_temperature:
        return temperature
    with _options_named("learn_temperature"):
        return LearnableTemperature(temperature, *settings.temperature_bounds)


def build_rule(settings: LossSettings, defaults: LossDefaults) -> Temperature:
    """The temperature, alone or in the rule that changes its negatives, or SigLIP's."""
    for name, owners in OWNERS.items():
        if getattr(settings, name) is not None and not {settings.objective, settings.rule} & set(owners):
            raise ParameterError(name, f"only {' and '.join(owners)} take{'s' * (len(owners) == 1)} it")
    if settings.rule == "adnce" and settings.objective == "dclw":
        raise ParameterError("rule", "adnce does not go with objective dclw, whose sigma is another one")
    if settings.objective == "siglip":
        for name in ("rule", "temperature", *TEMPERATURE_OPTIONS):
            if getattr(settings, name) is not None:
                raise ParameterError(name, "objective 'siglip' has a learned scale and bias of its own; leave it out")
        return _built(SigmoidRule, settings)
    temperature = build_temperature(settings, defaults)
    return temperature if settings.rule is None else _built(NEGATIVE_RULES[settings.rule], settings, temperature)


def build_objective(
    settings: LossSettings,
    defaults: LossDefaults,
    gather: Gather | None = None,
    hard_negative_weight: float = 0.0,
    bidirectional: bool = False,
) -> ContrastiveLoss:
    """The objective that the settings describe, with its temperature.

    Args:
        settings: of the loss.
        defaults: for options that are not given.
        gather: the other processes; None for one process.
        hard_negative_weight: added to the logits of an anchor's own hard negatives.
        bidirectional: see :class:`~dystress_text.core.objectives.InfoNCELoss`.
    """
    if bidirectional and settings.objective != "infonce":
        raise ParameterError(
            "bidirectional", f"objective {settings.objective!r} has its own directions; infonce takes it"
        )
    if not math.isfinite(hard_negative_weight):
        raise ParameterError("hard_negative_weight", f"must be a number, got {hard_negative_weight}")
    if settings.objective not in OBJECTIVES:
        raise ParameterError(
            "objective", f"unknown objective {settings.objective!r}; known are {', '.join(OBJECTIVES)}"
        )
    more: dict[str, Any] = {"gather": gather, "hard_negative_weight": hard_negative_weight}
    rule = build_rule(settings, defaults)
    if settings.objective != "siglip":  # which has its own
        more |= {"temperature": rule, "detach_temperature": settings.detach_temperature}
    if bidirectional:
        more["bidirectional"] = True
    if settings.rows == "ntxent":
        more["both_views"] = True
    return _built(OBJECTIVES[settings.objective], settings, **more)


def learned_group(objective: nn.Module, settings: LossSettings) -> dict[str, Any] | None:
    """The optimiser's parameter group of what an objective itself learns, without weight decay; None without one."""
    parameters = list(objective.parameters())
    if parameters:
        return {"params": parameters, "lr": settings.temperature_learning_rate, "weight_decay": 0.0}
    if settings.temperature_learning_rate != LossSettings.temperature_learning_rate:
        raise ParameterError("temperature_learning_rate", "has no effect without learn_temperature or siglip")
    return None


def learned_values(state: nn.Module) -> dict[str, float]:
    """What the objective of a task's state has learned, by name; {} where it learns nothing."""
    names = ("tau", "tau_min", "tau_max", "logit_scale", "logit_bias")
    for objective in state.modules():
        if isinstance(objective, ContrastiveLoss) and list(objective.parameters()):
            return {name: value for name, value in objective.temperature.values().items() if name in names}
    return {}


def _given(settings: LossSettings, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}


def _built(kind: Callable[..., T], settings: LossSettings, *given: Any, **more: Any) -> T:
    """Build a rule or an objective with those of its options that are given."""
    known = inspect.signature(kind).parameters
    with _options_named("rule"):
        return kind(*given, **_given(settings, tuple(name for name in OWNERS if name in known)), **more)


@contextmanager
def _options_named(other: str) -> Iterator[None]:
    """Turn a constructor's error, whose first word is a parameter, into one that names the option; else ``other``."""
    try:
        yield
    except ValueError as error:
        first, _, rest = str(error).partition(" ")
        option = "temp" if first == "tau" else first
        if option in (*TEMPERATURE_OPTIONS, *OWNERS, "temperature", "hard_negative_weight"):
            raise ParameterError(option, rest) from error
        raise ParameterError(other, str(error)) from error
