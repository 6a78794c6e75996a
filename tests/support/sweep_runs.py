"""Shared by several test modules."""

from __future__ import annotations

import json
import warnings

from dystress_text.evaluation.catalogue import TASKS
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.settings import TEXT
from dystress_text.training.build_loss import build_objective


def write_run(folder, name, seed, figure, options=(), unfinished=False, tasks=TASKS["sts"], **more):
    place = folder / f"{name}-seed-{seed}"
    place.mkdir(parents=True)
    preset = [f"--preset={name}"] if name.startswith("sts-") else []
    settings = parse([*preset, f"--seed={seed}", f"--output_dir={place}", *options])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objective = build_objective(settings.loss, TEXT)
    record = {
        "program": "dystress_text/train.py", "settings": settings.options(), "objective": type(objective).__name__,
        "temperature": repr(objective.temperature), "temperature_parameters": objective.temperature.values(),
        "steps": 20, "device": "1 x cpu", "data_variants": {},
        "corpus": {"sentences": 3000, "sha256": "0123456789abcdef"},
    }  # fmt: skip
    if not unfinished:
        record["trained"] = {"sts_b_dev_spearman": figure + 5, "sts_b_dev_uniformity": -2.0}
    (place / "run.json").write_text(json.dumps(record | more))
    if tasks and not unfinished:
        found = {task: {"spearman": round(figure + i, 2)} for i, task in enumerate(tasks)}
        result = {"suite": "senteval", "tasks": found, "data_variant": None, "complete": True}
        (place / "senteval-senteval-test.json").write_text(json.dumps(result))
    return place
