"""Temperatures and objectives from the options of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from dystress_text.core.gather import Gather
from dystress_text.core.learnable import LearnableTemperature
from dystress_text.core.objectives import (
    ContrastiveLoss,
    DCLLoss,
    DCLWLoss,
    InfoNCELoss,
    MACLLoss,
    NTXentLoss,
)
from dystress_text.core.registry import TEMPERATURES, Temperature, make_temperature, temperature_parameters
from dystress_text.core.rule import PairRule
from dystress_text.core.temperature import ProfileTemperature
from dystress_text.errors import UserError
from dystress_text.training.settings import OBJECTIVES, LossSettings


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


TEMPERATURE_OPTIONS = (
    "temp", "tau_min", "tau_max", "shift", "scale", "sharpness", "half_period", "unit", "tau_0", "alpha", "a_0",
)  # fmt: skip


def build_temperature(settings: LossSettings, defaults: LossDefaults) -> Temperature:
    """The temperature that the settings describe.

    Raises:
        UserError: the name is unknown, an option does not belong to this temperature, or a value is out of range.
    """
    name = settings.temperature
    if name is None:
        default = "alignment_adaptive" if settings.objective == "macl" else defaults.temperature
        name = default if settings.temp is None else "constant"
    given = {key: getattr(settings, key) for key in TEMPERATURE_OPTIONS if getattr(settings, key) is not None}
    try:
        known = temperature_parameters(name)
        options = {"temp" if key == "tau" else key: key for key in known}  # option -> constructor parameter
        for key in given:
            if key not in options:
                raise UserError(f"--{key}: temperature {name!r} takes {', '.join(f'--{o}' for o in options)} only")
        parameters = {options[key]: value for key, value in given.items()}
        fallback: dict[str, Any] = {}
        if issubclass(TEMPERATURES[name], ProfileTemperature):
            fallback = {**defaults.tau_range}
        elif name == "scheduled" and parameters.get("unit") in (None, defaults.schedule.get("unit")):
            fallback = {**defaults.tau_range, **defaults.schedule}
        elif name == "alignment_adaptive":
            fallback = {**defaults.alignment}
        parameters = {key: value for key, value in fallback.items() if key in known} | parameters
        temperature = make_temperature(name, **parameters)
    except ValueError as error:
        raise UserError(f"--temperature {name}: {_option_names(str(error))}") from error
    if not settings.learn_temperature:
        return temperature
    try:
        return LearnableTemperature(temperature, *settings.temperature_bounds)
    except ValueError as error:
        raise UserError(f"--learn_temperature: {error}") from error


def learned_group(objective: nn.Module, settings: LossSettings) -> dict[str, Any] | None:
    """The optimiser's parameter group of a learned temperature, without weight decay; None for another one."""
    if not settings.learn_temperature:
        return None
    parameters = list(objective.get_submodule("temperature").parameters())
    return {"params": parameters, "lr": settings.temperature_learning_rate, "weight_decay": 0.0}


def _option_names(message: str) -> str:
    """A constructor's message in which the parameter at its start is written as an option."""
    first, _, rest = message.partition(" ")
    option = "temp" if first == "tau" else first
    return f"--{option} {rest}" if option in TEMPERATURE_OPTIONS else message


def learned_end_points(temperature: PairRule | None) -> dict[str, dict[str, float]]:
    """Set a learned temperature to the best model's and return its entry in ``run.json``; {} for any other."""
    if not isinstance(temperature, LearnableTemperature):
        return {}
    temperature.go_back()
    return {"learned_temperature": temperature.end_points()}


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
        bidirectional: see :class:`InfoNCELoss`.

    Raises:
        UserError: the objective is unknown, or the options do not fit.
    """
    common: dict[str, Any] = {
        "detach_temperature": settings.detach_temperature,
        "gather": gather,
        "hard_negative_weight": hard_negative_weight,
    }
    if settings.sigma is not None and settings.objective != "dclw":
        raise UserError(f"--sigma: objective {settings.objective!r} has no sigma; dclw has")
    if bidirectional and settings.objective != "infonce":
        raise UserError(f"--bidirectional: objective {settings.objective!r} has its own directions; infonce takes it")
    if not math.isfinite(hard_negative_weight):
        raise UserError(f"--hard_negative_weight: must be a number, got {hard_negative_weight}")
    temperature = build_temperature(settings, defaults)
    match settings.objective:
        case "infonce":
            return InfoNCELoss(temperature, bidirectional=bidirectional, **common)
        case "ntxent":
            return NTXentLoss(temperature, **common)
        case "dcl":
            return DCLLoss(temperature, **common)
        case "dclw":
            try:
                return DCLWLoss(temperature, 0.5 if settings.sigma is None else settings.sigma, **common)
            except ValueError as error:
                raise UserError(f"--sigma: {error}") from error
        case "macl":
            return MACLLoss(temperature=temperature, both_views=settings.rows == "ntxent", **common)
    raise UserError(f"--objective: unknown objective {settings.objective!r}; known are {', '.join(OBJECTIVES)}")
