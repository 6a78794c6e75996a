"""The study of temperature rules: the tables of the pages, from the records in docs/study.

It prints the rows of docs/laboratory/text.md and rules.md. Rules and constants are compared by seed
on the mean of STS12, STS-B test and SICK-R. ``dystress report SWEEP --format jsonl`` makes such
records; predictions.json holds what ``dystress audit`` said of one run of each rule with
--log_similarity, repeated.json the same of the rule that was repeated.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from dystress_text.analysis.tables import Comparisons
from dystress_text.analysis.text_runs import TRAINING, TextRun, read_text_runs
from dystress_text.evaluation.statistics import Difference, holm, paired, spread

STUDY = Path(__file__).resolve().parents[2] / "docs" / "study"
MARGIN, LEVEL = 0.25, 0.05  # points, equivalent within them; of each test
TEST_SETS = ("STS12", "STS-B", "SICK-R")
SIMCSE = "sts-constant-0.05"
DEV, UNIFORMITY = "sts_b_dev_spearman", "sts_b_dev_uniformity"
NAMES = {
    "sts-macl": "MACL", "rule-hardness": "hardness weights", "rule-robust": "robust, one temperature",
    "rule-adnce": "ADNCE", "rule-temo": "TeMo", "rule-focal": "Focal-InfoNCE", "rule-hcl": "HCL",
    "rule-siglip": "SigLIP", "rule-rince": "RINCE", SIMCSE: "constant 0.05 (SimCSE)",
    "sts-shifted-0.4-0.05-0.07": "shifted -0.4, 0.05/0.07 (default)", "sts-cosine-0.03-0.05": "cosine 0.03/0.05",
    "hardness-0.0715-20": "hardness weights, τ 0.0715, strength 20", "dcl(0.037)": "DCL, τ 0.037",
}  # fmt: skip
By_seed = Mapping[int, float]


@dataclass(frozen=True)
class Outcome:
    """A rule against its nearest constant: its prediction, the difference of the averages, the p of
    equivalence.
    """

    name: str
    prediction: Mapping[str, Any]
    average: Difference
    p: float

    @property
    def observed(self) -> str:
        """Equivalent, different, or not decided by these seeds."""
        if self.p < LEVEL:
            return "equivalent"
        return "different" if self.average.p is not None and self.average.p < LEVEL else "undecided"

    @property
    def held(self) -> bool:
        """Whether it is equivalent exactly where that was predicted."""
        return bool(self.prediction["equivalent"]) == (self.observed == "equivalent")


def figures(runs: Sequence[TextRun], configuration: str, column: str) -> dict[int, float]:
    """A configuration's figures by seed: of a set, or of the test sets the ``average`` or as
    printed, ``avg``.
    """
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
    """The p of two one-sided t tests, paired by seed, that the mean difference lies within the
    margin (Schuirmann).
    """
    differences = np.array(
        [ours[seed] - baseline[seed] for seed in sorted(set(ours) & set(baseline))]
    )
    above = stats.ttest_1samp(differences, -MARGIN, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, MARGIN, alternative="less").pvalue
    return float(max(above, below))


def outcomes() -> list[Outcome]:
    """The test of the predictions in docs/study: every rule beside its constant."""
    files = (
        json.loads((STUDY / name).read_text(encoding="utf-8"))
        for name in ("predictions.json", "repeated.json")
    )
    predictions = {name: prediction for file in files for name, prediction in file["rules"].items()}
    runs, found = read_text_runs([STUDY / "laboratory.jsonl"])[0], []
    for name, prediction in predictions.items():
        constant = f"grid-constant-temp={prediction['constant']:g}"
        ours, theirs = (figures(runs, each, "average") for each in (name, constant))
        difference = paired(ours, theirs)
        if difference is not None:
            found.append(Outcome(name, prediction, difference, equivalence(ours, theirs)))
    corrected = holm([one.average for one in found])
    return [replace(one, average=average) for one, average in zip(found, corrected, strict=True)]


def name_of(configuration: str) -> str:
    """What the pages call a configuration."""
    kind, _, rest = configuration.removeprefix("sts-").partition("-")
    if kind == "shifted" and configuration not in NAMES:
        return "shifted -{}, {}/{}".format(*rest.split("-"))
    return NAMES.get(configuration, f"constant {rest.removeprefix('constant-temp=')}")


def mean(runs: Sequence[TextRun], configuration: str, column: str) -> str:
    """A configuration's mean of a column over the seeds, ± the standard deviation."""
    return str(spread(list(figures(runs, configuration, column).values())))


def study() -> list[str]:
    """The paper's text table: the differences are paired by seed, and corrected for all rows."""
    runs = read_text_runs([STUDY / "runs.jsonl"])[0]
    compared = Comparisons(runs)
    less = {
        each.name: (str(each.difference), f"{min(1, each.difference.corrected):.3f}")
        for each in compared.comparisons
        if each.baseline == SIMCSE and each.difference.corrected is not None
    }
    return [
        _row(
            name_of(x),
            *(mean(runs, x, each) for each in (DEV, "avg", UNIFORMITY)),
            *less.get(x, ("", "")),
        )
        for x in compared.configurations
    ]


def rules() -> list[str]:
    """The audit of each rule, and the test beside its constant."""
    runs, rows = read_text_runs([STUDY / "laboratory.jsonl"])[0], []
    for one in outcomes():
        p, expected = (
            one.prediction,
            "equivalent" if one.prediction["equivalent"] else "not equivalent",
        )
        told = (f"{p['nearest']:.4f}", f"{100 * p['moved']:.1f} %", f"{p['pull']:.2f}")
        of_eleven = f"{min(1, one.average.corrected or 1):.2g}"
        average = mean(runs, one.name, "average")
        rows.append(
            _row("...", *told, expected, average, str(one.average), one.observed, of_eleven)
        )
    return rows


def candidates(search: Sequence[TextRun]) -> list[str]:
    """The search: of constants and DCL the best alone."""
    rows = []
    for name in dict.fromkeys(run.configuration for run in search):
        dev, is_dcl = figures(search, name, DEV), name.startswith("dcl")
        first, five = (
            [dev[seed] for seed in (10, 11)],
            [dev[seed] for seed in range(10, 15) if seed in dev],
        )
        over = f"{np.mean(five):.2f}" if len(five) == 5 else ""
        audits = [
            run.record.content["audit"]
            for run in search
            if run.configuration == name and "audit" in run.record.content
        ]
        audits = [] if is_dcl else audits  # the page does not compare DCL with itself
        audited = [
            (f"{a['nearest_constant']:.4f}", f"{100 * a['moved']:.1f} %", f"{a['pull']:.2f}")
            for a in audits
        ]
        if name == "dcl(0.037)" or audited or (over and not is_dcl):
            rows.append(
                _row(
                    "...", *(audited[0] if audited else ("", "", "")), f"{np.mean(first):.2f}", over
                )
            )
    return rows


def best(search: Sequence[TextRun]) -> list[str]:
    """The test of the best rule of the search, and its controls."""
    test = [
        run for run in (*read_text_runs([STUDY / "laboratory.jsonl"])[0], *search) if run.seed < 5
    ]
    control, rows = "grid-constant-temp=0.089", []
    for name in (
        "hardness-0.0715-20",
        "dcl(0.037)",
        "sts-macl",
        control,
        "grid-constant-temp=0.0715",
    ):
        less = paired(*(figures(test, each, "average") for each in (name, control)))
        label = name_of(name) + " (published)" * (name == "sts-macl")
        cells = (mean(test, name, DEV), mean(test, name, "average"))
        rows.append(_row(label, *cells, "" if name.startswith("grid") else str(less)))
    return rows


def tables() -> dict[str, list[str]]:
    """The rows that the records make, by the page and what they are of; those that begin with ...
    without names.
    """
    search = read_text_runs([STUDY / "search.jsonl"])[0]
    return {
        "text: the text table": study(),
        "rules: rules": rules(),
        "rules: candidates": candidates(search),
        "rules: the best": best(search),
    }


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the rows by page."""
    warnings.simplefilter("ignore")
    for title, rows in tables().items():
        print(f"{title}\n\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
