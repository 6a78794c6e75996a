"""Temperatures and objectives from the options of a run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

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
from dystress_text.core.other_losses import RINCELoss, SigLIPLoss, SigmoidRule
from dystress_text.core.registry import TEMPERATURES, Temperature, make_temperature, temperature_parameters
from dystress_text.core.rules import NEGATIVE_RULES
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
        options = {key: value for key, value in options.items() if key in TEMPERATURE_OPTIONS}
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


def build_rule(settings: LossSettings, defaults: LossDefaults) -> Temperature:
    """The rule that the settings describe: a temperature, alone or with what changes its negatives, or SigLIP's.

    Raises:
        UserError: see :func:`build_temperature`.
    """
    _check_owners(settings)
    if settings.objective == "siglip":
        for name in ("rule", "temperature", *TEMPERATURE_OPTIONS):
            if getattr(settings, name) is not None:
                raise UserError(f"--{name}: objective 'siglip' has a learned scale and bias of its own; leave it out")
        return _built(SigmoidRule, settings)
    temperature = build_temperature(settings, defaults)
    if settings.rule is None:
        return temperature
    if settings.rule not in NEGATIVE_RULES:
        raise UserError(f"--rule: unknown rule {settings.rule!r}; known are {', '.join(NEGATIVE_RULES)}")
    return _built(NEGATIVE_RULES[settings.rule], settings, temperature)


# of the objective or the rule that an option belongs to
OWNERS = {
    "sigma": ("dclw", "adnce"), "q": ("rince",), "lam": ("rince",), "logit_scale": ("siglip",),
    "logit_bias": ("siglip",), "tau_plus": ("debiased", "hcl"), "beta": ("hcl",), "margin": ("focal",),
    "mu": ("adnce",), "hardness_strength": ("hardness",),
}  # fmt: skip
T = TypeVar("T")


def _built(kind: Callable[..., T], settings: LossSettings, *given: Any, **more: Any) -> T:
    """Build a rule or an objective with those of its options that are given."""
    known = inspect.signature(kind).parameters
    options = {n: getattr(settings, n) for n in OWNERS if n in known and getattr(settings, n) is not None}
    try:
        return kind(*given, **options, **more)
    except ValueError as error:
        name = str(error).partition(" ")[0]
        raise UserError(f"--{name if name in OWNERS else 'rule'}: {error}") from error


def _check_owners(settings: LossSettings) -> None:
    for name, owners in OWNERS.items():
        if getattr(settings, name) is not None and not {settings.objective, settings.rule} & set(owners):
            raise UserError(f"--{name}: only {' and '.join(owners)} take{'s' * (len(owners) == 1)} it")
    if settings.rule == "adnce" and settings.objective == "dclw":
        raise UserError("--rule adnce: does not go with --objective dclw, whose --sigma is another one")


def learned_group(objective: nn.Module, settings: LossSettings) -> dict[str, Any] | None:
    """The optimiser's parameter group of what a rule learns, without weight decay; None where it learns nothing.

    Raises:
        UserError: a learning rate for nothing.
    """
    if not isinstance(objective, ContrastiveLoss):
        return None
    parameters = list(objective.temperature.parameters())
    if not parameters:
        if settings.temperature_learning_rate != LossSettings.temperature_learning_rate:
            raise UserError(
                "--temperature_learning_rate: has no effect without --learn_temperature, --temperature robust or "
                "--objective siglip"
            )
        return None
    return {"params": parameters, "lr": settings.temperature_learning_rate, "weight_decay": 0.0}


def _option_names(message: str) -> str:
    """A constructor's message in which the parameter at its start is written as an option."""
    first, _, rest = message.partition(" ")
    option = "temp" if first == "tau" else first
    return f"--{option} {rest}" if option in TEMPERATURE_OPTIONS else message


def learned_end_points(rule: Temperature | None) -> dict[str, dict[str, float]]:
    """What a rule learned by the last step, its entry in ``run.json``; {} where it learns nothing."""
    if rule is None or not any(parameter.requires_grad for parameter in rule.parameters()):
        return {}
    learned = ("tau", "tau_min", "tau_max", "logit_scale", "logit_bias")
    return {"learned_temperature": {name: value for name, value in rule.values().items() if name in learned}}


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
    if bidirectional and settings.objective != "infonce":
        raise UserError(f"--bidirectional: objective {settings.objective!r} has its own directions; infonce takes it")
    if not math.isfinite(hard_negative_weight):
        raise UserError(f"--hard_negative_weight: must be a number, got {hard_negative_weight}")
    if settings.objective == "siglip":
        build_rule(settings, defaults)  # it refuses a temperature
        return _built(SigLIPLoss, settings, gather=gather, hard_negative_weight=hard_negative_weight)
    rule = build_rule(settings, defaults)
    match settings.objective:
        case "infonce":
            return InfoNCELoss(rule, bidirectional=bidirectional, **common)
        case "ntxent":
            return NTXentLoss(rule, **common)
        case "dcl":
            return DCLLoss(rule, **common)
        case "dclw":
            return _built(DCLWLoss, settings, rule, **common)
        case "macl":
            return MACLLoss(temperature=rule, both_views=settings.rows == "ntxent", **common)
        case "rince":
            return _built(RINCELoss, settings, rule, **common)
    raise UserError(f"--objective: unknown objective {settings.objective!r}; known are {', '.join(OBJECTIVES)}")
