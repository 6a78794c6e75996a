"""Shared by several test modules."""

from __future__ import annotations

import json

from sweep_runs import write_run

PRESET = "sts-shifted-0.4-0.05-0.07"


HISTOGRAM = [0] * 50 + [3] * 30 + [0] * 20


NAMES = ("positive", "negative", "tau_positive", "tau_negative", "tau_effective", "high_share", "high_gradient")


def a_run(folder, seed=0, watched=True, similarities=True, name=PRESET, **more):
    """A finished run with all that a page shows."""
    kinds = dict.fromkeys(("alike", "others", "random"), HISTOGRAM)
    record = {"train_seconds": 12.5, "untrained": {"cls": {"sts_b_dev_spearman": 31.25}}, "versions": {"torch": "2.13"}}
    if similarities:
        record["similarities"] = {"set": "STS-B dev", "before": kinds, "after": kinds}
    run = write_run(folder, name, seed, 70.0, **record | more)
    metrics = [{"step": s, "loss": 1 / s, "sts_b_dev_spearman": 60.0 + s} for s in (10, 20)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    if watched:
        steps = [{"step": s, **dict.fromkeys(NAMES, 0.05 * s)} for s in (1, 2)]
        steps[-1]["histograms"] = dict.fromkeys(("positives", "negatives", "gradient"), HISTOGRAM)
        (run / "similarity.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    return run
