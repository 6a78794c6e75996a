"""The objective and the temperature of a text run, from its settings or from its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dystress_text.core.gather import Gather
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.registry import Temperature
from dystress_text.simcse.settings import RunSettings
from dystress_text.training.build_loss import LossDefaults, build_objective, build_rule
from dystress_text.training.settings import LossSettings

TEXT = LossDefaults(
    "shifted_cosine",
    {"tau_min": 0.05, "tau_max": 0.07},  # the paper's best STS row
    {"unit": "run", "half_period": 0.1},  # five swings a run: fine-tuning has one epoch, not hundreds
    {},
)


def objective_of(settings: RunSettings, gather: Gather | None = None) -> ContrastiveLoss:
    """The objective of a text run."""
    text = settings.text
    return build_objective(
        settings.loss, TEXT, gather, hard_negative_weight=text.hard_negative_weight, bidirectional=text.bidirectional
    )


def temperature_of_record(record: Mapping[str, Any]) -> Temperature:
    """The rule of a text run, from its ``run.json``; a learned temperature is a fixed one then."""
    options, learned = {**record["settings"]}, record.get("learned_temperature", {})
    if learned:  # as a fixed one: rounded end points may lie on the bounds, which LearnableTemperature refuses
        for name in ("learn_temperature", "temperature_bounds", "temperature_learning_rate"):
            options.pop(name, None)
        options |= {"temp" if name == "tau" else name: value for name, value in learned.items()}
    loss = LossSettings(**{f.name: options[f.name] for f in fields(LossSettings) if f.name in options})
    return build_rule(loss, TEXT)
