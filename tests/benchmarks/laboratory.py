"""The study of temperature rules: what the audit predicts of each, what trained runs say, and the tables of the pages.

    python tests/benchmarks/laboratory.py predict LOGS --constants 0.05 0.07 --output PREDICTIONS
    python tests/benchmarks/laboratory.py tables --figure docs/figures/laboratory.png

``predict`` reads one run of each rule with --log_similarity, made by ``dystress sweep``, and writes the constant that
comes nearest and whether the rule is expected to train like it. ``tables`` prints the rows of docs/results.md and
docs/laboratory.md that the records in docs/study make, and draws the figure: runs of rules and constants are compared
by seed on the mean of STS12, STS-B test and SICK-R. ``dystress report SWEEP --format jsonl`` makes such records.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from dystress_text.files.whole import to_json
from dystress_text.report.audit import EQUIVALENT_MOVED, EQUIVALENT_PULL, windows_of
from dystress_text.report.comparison import Difference, paired, spread
from dystress_text.report.runs import read_finished
from dystress_text.report.tables import Comparisons, sections
from dystress_text.report.text_runs import TRAINING, TextRun, read_text_runs
from dystress_text.training.run_folder import SIMILARITY_LOG, read_steps

STUDY = Path(__file__).resolve().parents[2] / "docs" / "study"
MARGIN, LEVEL = 0.25, 0.05  # points, equivalent within them; of each test
TEST_SETS = ("STS12", "STS-B", "SICK-R")
DEV, UNIFORMITY = "sts_b_dev_spearman", "sts_b_dev_uniformity"
SEED_OF_LOGS = 1000
NAMES = {
    "sts-macl": "MACL", "rule-hardness": "hardness weights", "rule-robust": "robust, one temperature",
    "rule-adnce": "ADNCE", "rule-temo": "TeMo", "rule-focal": "Focal-InfoNCE", "rule-hcl": "HCL",
    "rule-siglip": "SigLIP", "rule-rince": "RINCE", "sts-constant-0.05": "constant 0.05 (SimCSE)",
    "sts-shifted-0.4-0.05-0.07": "shifted -0.4, 0.05/0.07 (default)", "sts-cosine-0.03-0.05": "cosine 0.03/0.05",
    "hardness-0.0715-20": "hardness weights, τ 0.0715, strength 20", "dcl-0.037": "DCL, τ 0.037",
}  # fmt: skip
By_seed = Mapping[int, float]


def predict(folder: Path, constants: Sequence[float]) -> dict[str, Any]:
    """The prediction for each rule, by the name of its preset; it is tested against the nearest of the constants."""
    rules = {}
    for run in read_finished([folder])[0]:
        log = run.folder / SIMILARITY_LOG
        windows, negatives = windows_of(list(read_steps(log)), log)
        whole = windows["all"]
        constant = min(constants, key=lambda tau: abs(math.log(tau / whole.tau)))
        moved = np.interp(math.log(constant), np.log(whole.taus), whole.moved_by_constant)
        rules[run.folder.name.removesuffix(f"-seed-{SEED_OF_LOGS}")] = {
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
    bar = {"moved": EQUIVALENT_MOVED, "pull": EQUIVALENT_PULL}
    return {"seed_of_logs": SEED_OF_LOGS, "equivalent_below": bar, "rules": rules}


@dataclass(frozen=True)
class Outcome:
    """A rule against its nearest constant: its prediction, the difference of the averages, the p of equivalence."""

    name: str
    prediction: Mapping[str, Any]
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


def figures(runs: Sequence[TextRun], configuration: str, column: str) -> dict[int, float]:
    """A configuration's figures by seed: of a set, or of the test sets the ``average`` or as printed, ``avg``."""
    found = {}
    for run in runs:
        sets = {**run.figures[TRAINING], **run.figures.get("senteval/sts", {})}
        if all(name in sets for name in TEST_SETS):
            average = sum(float(sets[name] or 0) for name in TEST_SETS) / len(TEST_SETS)
            sets |= {"average": average, "avg": round(average, 2)}
        if run.configuration == configuration and column in sets:
            found[run.seed] = float(sets[column] or 0)
    return found


def equivalence(ours: By_seed, baseline: By_seed) -> float:
    """The p of two one-sided t tests, paired by seed, that the mean difference lies within the margin (Schuirmann)."""
    differences = np.array([ours[seed] - baseline[seed] for seed in sorted(set(ours) & set(baseline))])
    above = stats.ttest_1samp(differences, -MARGIN, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, MARGIN, alternative="less").pvalue
    return float(max(above, below))


def outcomes_of(runs: Sequence[TextRun], predictions: Mapping[str, Any]) -> list[Outcome]:
    """Every rule beside its constant."""
    found = []
    for name, prediction in predictions["rules"].items():
        ours, theirs = (figures(runs, each, "average") for each in (name, constant_of(prediction)))
        difference = paired(ours, theirs)
        if difference is not None:
            found.append(Outcome(name, prediction, difference, equivalence(ours, theirs)))
    return found


def constant_of(prediction: Mapping[str, Any]) -> str:
    """The configuration of a rule's nearest constant."""
    return f"grid-constant-temp={prediction['constant']:g}"


def name_of(configuration: str) -> str:
    """What the pages call a configuration."""
    kind, _, rest = configuration.removeprefix("sts-").partition("-")
    if kind == "shifted" and configuration not in NAMES:
        return "shifted -{}, {}/{}".format(*rest.split("-"))
    return NAMES.get(configuration, f"constant {rest.removeprefix('constant-temp=')}")


def tables() -> dict[str, list[str]]:
    """The rows that the records make, by the page and what they are of; those that begin with ... without names."""
    runs, laboratory, search = (read_text_runs([STUDY / f"{n}.jsonl"])[0] for n in ("runs", "laboratory", "search"))
    compared = Comparisons(runs)
    differences = dict(sections(compared))["STS, Spearman x 100: differences over seeds"][1:]
    both = [*laboratory, *search]

    def means(of: Sequence[TextRun], configuration: str, *more: str) -> list[str]:
        return [str(spread(list(figures(of, configuration, c).values()))) for c in (DEV, *TEST_SETS, *more)]

    best = []
    for name in (
        "hardness-0.0715-20",
        "dcl-0.037",
        "sts-macl",
        "grid-constant-temp=0.089",
        "grid-constant-temp=0.0715",
    ):
        test = [run for run in both if run.seed < 5]
        less = paired(*(figures(test, each, "average") for each in (name, "grid-constant-temp=0.089")))
        label = name_of(name) + " (published)" * (name == "sts-macl")
        best.append(_row(label, *means(test, name, "average"), "" if name.startswith("grid") else str(less)))
    rules = [
        _row("...", f"{p['nearest']:.4f}", f"{100 * p['moved']:.1f} %", f"{p['pull']:.2f}",
             "equivalent" if p["equivalent"] else "not equivalent", str(one.average), one.observed)
        for one in outcomes() for p in [one.prediction]
    ]  # fmt: skip
    candidates = []
    for name in dict.fromkeys(run.configuration for run in search):
        dev = figures(search, name, DEV)
        first, five = [dev[seed] for seed in (10, 11)], [dev[seed] for seed in range(10, 15) if seed in dev]
        over = f"{np.mean(five):.2f}" if len(five) == 5 else ""
        audits = [run.record["audit"] for run in search if run.configuration == name and "audit" in run.record]
        told = [f"{a['nearest_constant']:.4f} | {100 * a['moved']:.1f} % | {a['pull']:.2f}" for a in audits]
        of_rule = ["..." if not told or name.startswith("dcl") else f"... | {told[0]}"]
        candidates.append(_row(*of_rule, f"{np.mean(first):.2f}", over))
    return {
        "results: the text table": [
            _row(name_of(name), *means(runs, name, "avg", UNIFORMITY)) for name in compared.configurations
        ],
        "results: differences": [
            _row(*(name_of(each).partition(" (")[0] for each in row[:2]), *row[3:]) for row in differences
        ],
        "results: rules": [
            _row(name_of(name), *means(laboratory, name, "avg")) for name in Comparisons(laboratory).configurations
        ],
        "results: the best": best,
        "laboratory: rules": rules,
        "laboratory: candidates": candidates,
        "laboratory: the best": best,
    }


def outcomes() -> list[Outcome]:
    """The test of the predictions in docs/study."""
    predictions = json.loads((STUDY / "predictions.json").read_text(encoding="utf-8"))
    return outcomes_of(read_text_runs([STUDY / "laboratory.jsonl"])[0], predictions)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def draw(found: Sequence[Outcome], file: Path) -> None:
    """Each rule's difference from its constant with its interval, and the margin, by what was predicted."""
    import matplotlib.pyplot as plt

    from dystress_text.report.plots import STYLES, WIDTH, style

    ordered = sorted(found, key=lambda one: (not one.prediction["equivalent"], one.prediction["moved"]), reverse=True)
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.28 * len(ordered)))
        axes.axvspan(-MARGIN, MARGIN, color="0.9", linewidth=0, label=f"the margin, {MARGIN:g} points")
        for predicted, words, (colour, _), filled in (
            (True, "predicted equivalent", STYLES[0], "full"),
            (False, "predicted not equivalent", STYLES[1], "none"),
        ):
            rows = [i for i, one in enumerate(ordered) if bool(one.prediction["equivalent"]) == predicted]
            chosen = [ordered[i].average for i in rows]
            ends = [[d.mean - (d.low or 0) for d in chosen], [(d.high or 0) - d.mean for d in chosen]]
            means = [d.mean for d in chosen]
            axes.errorbar(means, rows, xerr=ends, fmt="o", color=colour, fillstyle=filled, capsize=2, label=words)
        axes.set_yticks(range(len(ordered)), [f"{one.name} - {one.prediction['constant']:g}" for one in ordered])
        for i, one in enumerate(ordered):
            words = f"{100 * one.prediction['moved']:.1f} %, pull {one.prediction['pull']:.2f}"
            at = ("axes fraction", "data")
            axes.annotate(
                words, (1, i), xycoords=at, xytext=(4, 0), textcoords="offset points", va="center", fontsize=7
            )
        axes.set_title("Rule less its nearest constant, average of three STS sets")
        axes.set_xlabel("points, 95 % interval over the seeds")
        axes.set_xscale("symlog", linthresh=1, linscale=1.5)  # even up to 1, then by factors
        ticks = (-8, -4, -2, -1, -0.5, 0, 0.5, 1, 2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        figure.legend(loc="outside lower center", ncols=2)
        figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("predict")
    one.add_argument("logs", type=Path)
    one.add_argument("--output", type=Path, required=True)
    one.add_argument("--constants", type=float, nargs="+", required=True, help="that are trained")
    commands.add_parser("tables").add_argument("--figure", type=Path, help="a picture of the test")
    options = parser.parse_args()
    if options.command == "predict":
        options.output.write_text(to_json(predict(options.logs, options.constants), indent=1) + "\n", encoding="utf-8")
        return
    warnings.simplefilter("ignore")
    for title, rows in tables().items():
        print(f"{title}\n\n" + "\n".join(rows) + "\n")
    if options.figure is not None:
        draw(outcomes(), options.figure)


if __name__ == "__main__":
    main()
