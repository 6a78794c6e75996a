"""Temperatures and objectives from the options of a run."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from torch import nn

from dystress_text import core
from dystress_text.cli.options import check_names
from dystress_text.core.gather import Gather
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.other_losses import SigmoidRule
from dystress_text.core.registry import TEMPERATURES, Temperature, make_temperature
from dystress_text.core.run_temperatures import LearnableTemperature
from dystress_text.core.temperature import ProfileTemperature
from dystress_text.errors import ParameterError
from dystress_text.training.settings import OBJECTIVES, OWNERS, RULES, TEMPERATURE_OPTIONS, LossSettings

T = TypeVar("T")


def build_temperature(settings: LossSettings) -> Temperature:
    """The temperature that the settings describe; an option that it does not take is refused."""
    name = settings.temperature
    if name is None:
        default = "alignment_adaptive" if settings.objective == "macl" else settings.default_temperature
        name = default if settings.temp is None else "constant"
    check_names("temperature", [name], TEMPERATURES)
    parameters = inspect.signature(TEMPERATURES[name]).parameters
    known = {"temp" if parameter == "tau" else parameter: parameter for parameter in parameters}
    given = _given(settings, TEMPERATURE_OPTIONS)
    for option in given:
        if option not in known:
            raise ParameterError(option, f"temperature {name!r} takes {', '.join(known)} only")
    kind = "profile" if issubclass(TEMPERATURES[name], ProfileTemperature) else name
    options = settings.fallbacks.get(kind, {}) | given
    values = {known[option]: value for option, value in options.items() if option in known}
    temperature = _made("temperature", make_temperature, name=name, **values)
    if not settings.learn_temperature:
        return temperature
    low, high = settings.temperature_bounds
    return _made("learn_temperature", LearnableTemperature, temperature=temperature, low=low, high=high)


def build_rule(settings: LossSettings) -> Temperature:
    """The temperature, alone or in the rule that changes its negatives, or SigLIP's."""
    for name, owners in OWNERS.items():
        if getattr(settings, name) is not None and not {settings.objective, settings.rule} & set(owners):
            raise ParameterError(name, f"only {' and '.join(owners)} take{'s' * (len(owners) == 1)} it")
    if settings.rule == "adnce" and settings.objective == "dclw":
        raise ParameterError("rule", "adnce does not go with objective dclw, whose sigma is another one")
    if settings.weigh_positive and settings.objective not in ("infonce", "ntxent"):
        raise ParameterError("weigh_positive", f"infonce and ntxent take it, not {settings.objective!r}")
    if settings.objective == "siglip":
        for name in ("rule", "temperature", *TEMPERATURE_OPTIONS):
            if getattr(settings, name) is not None:
                raise ParameterError(name, "objective 'siglip' has a learned scale and bias of its own; leave it out")
        return _made("objective", SigmoidRule, **_options_of(SigmoidRule, settings))
    temperature = build_temperature(settings)
    if settings.rule is None:
        return temperature
    kind: type[Temperature] = getattr(core, RULES[settings.rule])
    return _made("rule", kind, temperature=temperature, **_options_of(kind, settings))


def temperature_of_record(record: Mapping[str, Any]) -> Temperature:
    """The rule of a text run, from its ``run.json``; a learned temperature is a fixed one then."""
    learned = {"temp" if name == "tau" else name: x for name, x in record.get("learned_temperature", {}).items()}
    # rounded end points may lie on the bounds, which LearnableTemperature refuses
    left = ("learn_temperature", "temperature_bounds", "temperature_learning_rate") if learned else ()
    known = {entry.name for entry in fields(LossSettings)}.difference(left)
    options = {name: value for name, value in (record["settings"] | learned).items() if name in known}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training has said that a logit falls
        return build_rule(LossSettings(**options))


def build_objective(
    settings: LossSettings, gather: Gather | None = None, hard_negative_weight: float = 0.0, bidirectional: bool = False
) -> ContrastiveLoss:
    """The objective that the settings describe, with its temperature; the rest is its constructor's."""
    kind: type[ContrastiveLoss] = getattr(core, OBJECTIVES[settings.objective])
    rule = build_rule(settings)
    more: dict[str, Any] = {"gather": gather, "hard_negative_weight": hard_negative_weight}
    if settings.objective != "siglip":  # which has its own
        more |= {"temperature": rule, "detach_temperature": settings.detach_temperature}
    if bidirectional and settings.objective != "infonce":
        raise ParameterError(
            "bidirectional", f"objective {settings.objective!r} has its own directions; infonce takes it"
        )
    if bidirectional:
        more["bidirectional"] = True
    if settings.rows == "ntxent":
        more["both_views"] = True
    return _made("objective", kind, **_options_of(kind, settings), **more)


def learned_group(objective: nn.Module, settings: LossSettings) -> dict[str, Any] | None:
    """The optimiser's parameter group of what an objective itself learns, without weight decay; None without one."""
    parameters = [p for p in objective.parameters() if p.requires_grad]
    if parameters:
        return {"params": parameters, "lr": settings.temperature_learning_rate, "weight_decay": 0.0}
    if settings.temperature_learning_rate != LossSettings.temperature_learning_rate:
        raise ParameterError("temperature_learning_rate", "has no effect without --learn_temperature or siglip")
    return None


def learned_values(objective: nn.Module) -> dict[str, float]:
    """What an objective has learned, by name; {} where it learns nothing."""
    if not isinstance(objective, ContrastiveLoss) or not any(p.requires_grad for p in objective.parameters()):
        return {}
    names = ("tau", "tau_min", "tau_max", "logit_scale", "logit_bias")
    return {name: value for name, value in objective.temperature.values().items() if name in names}


def _given(settings: LossSettings, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}


def _options_of(kind: Callable[..., object], settings: LossSettings) -> dict[str, Any]:
    """Those of the settings that a rule or an objective takes and that are given."""
    return _given(settings, OWNERS.keys() & inspect.signature(kind).parameters.keys())


def _made(option: str, make: Callable[..., T], **parameters: Any) -> T:
    """What is made of the parameters; an error, which names one of them, is one of the option."""
    try:
        return make(**parameters)
    except ValueError as error:
        raise ParameterError(option, str(error)) from error
