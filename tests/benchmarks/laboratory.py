"""The study of temperature rules: what the audit predicts of each, and what trained runs say.

    python tests/benchmarks/laboratory.py predict LOGS --constants 0.05 0.07 --output PREDICTIONS
    python tests/benchmarks/laboratory.py test RUNS --predictions PREDICTIONS

``predict`` reads one run of each rule with --log_similarity, made by ``dystress sweep``, and writes the constant that
comes nearest and whether the rule is expected to train like it. ``test`` reads the runs of the rules and of their
constants, from the same sweep, and compares them by seed: STS-B dev, and the mean of STS12, STS-B test and SICK-R. It
prints a Markdown table and, on the last line, the counts as JSON. docs/laboratory.md has the commands of the sweeps.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dystress_text.errors import UserError
from dystress_text.files.whole import to_json
from dystress_text.report.audit import EQUIVALENT_MOVED, EQUIVALENT_PULL, windows_of
from dystress_text.report.comparison import Difference, equivalence, paired
from dystress_text.report.runs import RunFigures, read_finished, read_text_runs
from dystress_text.training.run_folder import SIMILARITY_LOG

MARGIN = 0.25  # points; equivalent within it
LEVEL = 0.05  # of each test
TEST_SETS = ("STS12", "STS-B", "SICK-R")
DEV = "sts_b_dev_spearman"
SEED_OF_LOGS = 1000


def predict(folder: Path, only: Sequence[str], constants: Sequence[float]) -> dict[str, Any]:
    """The prediction for each rule, by the name of its preset.

    Args:
        folder: of the logged runs.
        only: presets; empty for all.
        constants: that are trained; a rule is tested against the one that is nearest to its own.
    """
    rules = {}
    for run in read_finished([folder])[0]:
        name = run.folder.name.removesuffix(f"-seed-{SEED_OF_LOGS}")
        if only and name not in only:
            continue
        file = run.folder / SIMILARITY_LOG
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        windows, negatives = windows_of(lines, file)
        whole = windows["all"]
        constant = min(constants, key=lambda tau: abs(math.log(tau / whole.tau)))
        moved = np.interp(math.log(constant), np.log(whole.taus), whole.moved_by_constant)
        rules[name] = {
            "rule": f"{run.record['objective']}, {run.record['temperature']}",
            "nearest": round(whole.tau, 4),
            "moved": round(whole.moved, 4),
            "constant": constant,
            "moved_from_constant": round(float(moved), 4),
            "pull": round(whole.pull, 3),
            "equivalent": whole.equivalent,
            "first": {"nearest": round(windows["first"].tau, 4), "moved": round(windows["first"].moved, 4)},
            "last": {"nearest": round(windows["last"].tau, 4), "moved": round(windows["last"].moved, 4)},
            "negatives": negatives,
        }
    return {
        "seed_of_logs": SEED_OF_LOGS,
        "equivalent_below": {"moved": EQUIVALENT_MOVED, "pull": EQUIVALENT_PULL},
        "test": {
            "margin": MARGIN, "level": LEVEL, "sets": list(TEST_SETS), "seeds": [0, 1, 2, 3, 4],
            "equivalent": "two one-sided t tests on the average, paired by seed",
        },
        "rules": rules,
    }  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """A rule against its nearest constant.

    Attributes:
        name: of the preset.
        prediction: its entry.
        dev: difference on STS-B dev.
        average: difference of the mean over the test sets.
        p: of the equivalence of the average.
    """

    name: str
    prediction: Mapping[str, Any]
    dev: Difference
    average: Difference
    p: float

    @property
    def observed(self) -> str:
        """Equivalent, different, or not decided by these seeds."""
        if self.p < LEVEL:
            return "equivalent"
        low, high = self.average.low, self.average.high
        return "different" if low is not None and high is not None and not low <= 0 <= high else "undecided"

    @property
    def held(self) -> bool:
        """Whether it is equivalent exactly where that was predicted."""
        return bool(self.prediction["equivalent"]) == (self.observed == "equivalent")


def by_seed(runs: Sequence[RunFigures], configuration: str) -> tuple[dict[int, float], dict[int, float]]:
    """STS-B dev and the average of the test sets, by seed."""
    chosen = [run for run in runs if run.configuration == configuration]
    dev = {run.seed: float(run.figures["training"][DEV] or 0) for run in chosen}
    averages = {}
    for run in chosen:
        sets = run.figures.get("senteval/sts", {})
        if all(sets.get(name) is not None for name in TEST_SETS):
            averages[run.seed] = sum(float(sets[name] or 0) for name in TEST_SETS) / len(TEST_SETS)
    return dev, averages


def test(folder: Path, predictions: Mapping[str, Any]) -> list[Outcome]:
    """Every rule whose runs and whose constant's runs are there."""
    runs, _ = read_text_runs([folder])
    outcomes = []
    for name, prediction in predictions["rules"].items():
        ours, constant = by_seed(runs, name), by_seed(runs, f"grid-constant-temp={prediction['constant']:g}")
        dev, average = paired(ours[0], constant[0]), paired(ours[1], constant[1])
        p = equivalence(ours[1], constant[1], MARGIN)
        if dev is not None and average is not None and p is not None:
            outcomes.append(Outcome(name, prediction, dev, average, p))
        else:
            print(f"{name}: runs are missing", file=sys.stderr)
    return outcomes


def interval(difference: Difference) -> str:
    """A mean with its interval."""
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.2f}"
    return f"{difference.mean:+.2f} ({difference.low:+.2f} to {difference.high:+.2f})"


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The Markdown table."""
    head = ("rule", "nearest", "moved", "pull", "against", "predicted", "average", "STS-B dev", "p of equivalence",
            "observed", "held", "seeds")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for one in outcomes:
        told = one.prediction
        cells = (
            one.name, f"{told['nearest']:.4f}", f"{100 * told['moved']:.1f} %", f"{told['pull']:.2f}",
            f"{told['constant']:g}",
            "equivalent" if told["equivalent"] else "not", interval(one.average), interval(one.dev), f"{one.p:.3f}",
            one.observed, "yes" if one.held else "no", str(one.average.seeds),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def draw(outcomes: Sequence[Outcome], file: Path) -> None:
    """Each rule's difference from its constant with its interval, and the margin, by what was predicted."""
    import matplotlib.pyplot as plt

    from dystress_text.report.drawings import WIDTH, style
    from dystress_text.report.plots import STYLES, dress_plain

    ordered = sorted(
        outcomes, key=lambda one: (not one.prediction["equivalent"], one.prediction["moved"]), reverse=True
    )
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.28 * len(ordered)), layout="constrained")
        axes.axvspan(-MARGIN, MARGIN, color="0.9", linewidth=0, label=f"the margin, {MARGIN:g} points")
        for predicted, words, (colour, _), filled in (
            (True, "predicted equivalent", STYLES[0], "full"),
            (False, "predicted not equivalent", STYLES[1], "none"),
        ):
            rows = [i for i, one in enumerate(ordered) if bool(one.prediction["equivalent"]) == predicted]
            chosen = [ordered[i].average for i in rows]
            ends = [[d.mean - (d.low or 0) for d in chosen], [(d.high or 0) - d.mean for d in chosen]]
            axes.errorbar(
                [d.mean for d in chosen], rows, xerr=ends, fmt="o", color=colour, fillstyle=filled, markersize=4.5,
                capsize=2, label=words,
            )  # fmt: skip
        names = [f"{one.name}, {one.prediction['constant']:g}" for one in ordered]
        axes.set_yticks(range(len(ordered)), names)
        for i, one in enumerate(ordered):
            axes.annotate(
                f"{100 * one.prediction['moved']:.1f} %, pull {one.prediction['pull']:.2f}", (1, i),
                xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7,
            )  # fmt: skip
        dress_plain(axes, "", "Rule less its nearest constant, average of three STS sets", 8)
        axes.set_xlabel("points, 95 % interval over five seeds")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("predict")
    one.add_argument("logs", type=Path)
    one.add_argument("--output", type=Path, required=True)
    one.add_argument("--constants", type=float, nargs="+", required=True, help="that are trained")
    one.add_argument("--only", nargs="*", default=[], help="presets; default all")
    two = commands.add_parser("test")
    two.add_argument("runs", type=Path)
    two.add_argument("--predictions", type=Path, required=True)
    two.add_argument("--figure", type=Path, help="a picture of the table")
    options = parser.parse_args()
    try:
        if options.command == "predict":
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(
                to_json(predict(options.logs, options.only, options.constants), indent=1) + "\n", encoding="utf-8"
            )
            return
        outcomes = test(options.runs, json.loads(options.predictions.read_text(encoding="utf-8")))
    except UserError as error:
        raise SystemExit(str(error)) from error
    print("\n".join(table(outcomes)))
    if options.figure is not None:
        draw(outcomes, options.figure)
    counts = {kind: sum(o.observed == kind for o in outcomes) for kind in ("equivalent", "different", "undecided")}
    print(json.dumps({"rules": len(outcomes), "held": sum(one.held for one in outcomes), **counts}))


if __name__ == "__main__":
    main()
