"""Write finished runs, and read the error of a program."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace

import numpy as np
from scipy.stats import spearmanr

from dystress_text import __version__
from dystress_text.evaluation.catalogue import TASKS
from dystress_text.evaluation.results import RESULTS, Result, append
from dystress_text.finetuning.arguments import parse
from dystress_text.training.run_record import Metric

METRICS = (
    Metric("sts_b_dev", "spearman", "STS-B dev: Spearman x 100", lexical="TF-IDF"),
    Metric("sts_b_dev", "uniformity", "STS-B dev: uniformity", higher_is_better=False),
)
PRESET = "sts-shifted-0.4-0.05-0.07"
HISTOGRAM = [0] * 50 + [3] * 30 + [0] * 20
NAMES = (
    "positive",
    "negative",
    "tau_positive",
    "tau_negative",
    "tau_effective",
    "high_share",
    "high_gradient",
)


def record_of(settings):
    """Return the record of a run with these settings that has begun."""
    options = settings.options()
    return {
        "program": "dystress_text/train.py", "version": __version__, "settings": options,
        "steps": 20, "device": "1 x cpu", "data_variants": {},
        "corpus": {"sentences": 3000, "samples": 3000, "columns": 1, "sha256": "0123456789abcdef"},
    }  # fmt: skip


def write_run(folder, name, seed, figure, options=(), unfinished=False, tasks=TASKS["sts"], **more):
    place = folder / f"{name}-seed-{seed}"
    place.mkdir(parents=True)
    preset = [f"--preset={name}"] if name.startswith("sts-") else []
    record = record_of(parse([*preset, f"--seed={seed}", f"--output_dir={place}", *options]))
    if not unfinished:
        record["state"] = "finished"
        record["trained"] = {"sts_b_dev_spearman": figure + 5, "sts_b_dev_uniformity": -2.0}
    (place / "run.json").write_text(json.dumps(record | more))
    if tasks and not unfinished:
        figures = {task: {"spearman": round(figure + i, 2)} for i, task in enumerate(tasks)}
        write_results(place, figures)
    return place


def write_results(folder, entries, group="senteval/sts", **about):
    """Append the results of evaluators in a folder."""
    folder.mkdir(exist_ok=True)
    about = {"model": str(folder), "mode": "test", "dtype": "fp32", **about}
    for task, entry in entries.items():
        append(folder / RESULTS, Result.of_entry(entry, group, task, about))


def write_units(folder, values, scores=None, data="a", more_each=None, **more):
    """Append a result with the nDCG@10 of each query; or with the similarity and score of each pair."""
    folder.mkdir(exist_ok=True)
    each = {"model": values.tolist(), **(more_each or {})}
    metric, group, figure = "nDCG@10", "retrieval", np.mean(values)
    if scores is not None:
        each["scores"] = scores.tolist()
        metric, group, figure = "spearman", "pairs", spearmanr(values, scores).statistic
    entry = {metric: round(100 * figure, 2), "sha256": data}
    result = Result.of_entry(entry, group, "mine", {"model": str(folder)})
    append(folder / RESULTS, replace(result, each=each, **more))


def a_run(folder, seed=0, watched=True, similarities=True, name=PRESET, **more):
    """Write a finished run with all that a page shows."""
    kinds = dict.fromkeys(("alike", "others", "random"), HISTOGRAM)
    record = {
        "train_seconds": 12.5,
        "untrained": {"cls": {"sts_b_dev_spearman": 31.25}},
        "metrics": {each.name: asdict(each) for each in METRICS},
        "versions": {"torch": "2.13"},
    }
    if similarities:
        shown = {"set": "STS-B dev", "positive_above": 4.0}
        record["similarities"] = {**shown, "before": kinds, "after": kinds}
    run = write_run(folder, name, seed, 70.0, **record | more)
    metrics = [{"step": s, "loss": 1 / s, "sts_b_dev_spearman": 60.0 + s} for s in (10, 20)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    if watched:
        steps = [{"step": s, **dict.fromkeys(NAMES, 0.05 * s)} for s in (1, 2)]
        steps[-1]["histograms"] = dict.fromkeys(("positives", "negatives", "gradient"), HISTOGRAM)
        (run / "similarity.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    return run


def error_of(capsys, *arguments, main):
    """Return the error line of a program that ends with 2."""
    assert main([str(argument) for argument in arguments]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert re.match(r"dystress \w+: error: ", error)
    return error
