"""docs/results.md and docs/laboratory.md: the tables of the study are those of its records."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.append(str(ROOT / "tests" / "benchmarks"))
import laboratory  # noqa: E402  # of tests/benchmarks
import recipe  # noqa: E402


def plain(text):
    return text.replace("| |", "|  |").replace("-0.00 to", "+0.00 to")  # the sign of a zero is the processor's


def test_every_row_of_the_study_is_on_its_page():
    tables = laboratory.tables()
    assert sum(map(len, tables.values())) == 70
    for title, rows in tables.items():
        page = plain((DOCS / f"{title.split(':')[0]}.md").read_text())
        assert [row for row in rows if plain(row).removeprefix("| ... ") not in page] == []


def test_every_row_of_the_recipes_study_is_on_its_page():
    page, tables = (DOCS / "own-text-encoder.md").read_text(), recipe.tables()
    assert [row for rows in tables.values() for row in rows if row not in page] == []
    assert len(tables) == 4


def test_the_records_are_small_and_the_audit_held_for_nine():
    assert sum(file.stat().st_size for file in laboratory.STUDY.iterdir()) < 400_000
    found = laboratory.outcomes()
    assert (len(found), sum(one.held for one in found)) == (11, 9)


def test_what_other_tables_take_from_the_study_is_in_its_records():
    page = (DOCS / "results.md").read_text()
    lines = [json.loads(line) for line in (laboratory.STUDY / "runs.jsonl").read_text().splitlines()]
    dev = {line["name"]: line["figures"]["training"]["sts_b_dev_spearman"] for line in lines}
    default = [dev[f"sts-shifted-0.4-0.05-0.07-seed-{seed}"] for seed in range(3)]
    cells = " | ".join(f"{value:.2f}" for value in (*default, sum(default) / 3))
    assert f"(the default's row above) | {cells} |" in page
    assert f"| default profile, fixed | {default[0]:.2f} |" in page
    (untrained,) = [line["untrained"] for line in lines if "untrained" in line]
    for row, pooler in (("cls", "cls"), ("avg", "avg"), ("avg_first_last (the best)", "avg_first_last")):
        found = untrained[pooler]
        assert f"| untrained, {row} | {found['sts_b_dev_spearman']:.2f} |" in page
        assert f"| {found['sts_b_dev_alignment']:.3f} | {found['sts_b_dev_uniformity']:.2f} |" in page


@pytest.mark.parametrize("mean", [0.0, -0.2, 0.24])
def test_equivalence_is_a_90_percent_interval_within_the_margin(mean):
    for seed in range(20):
        drawn = np.random.default_rng(seed).normal(mean, 0.15, 5)
        interval = stats.ttest_1samp(drawn, 0).confidence_interval(0.90)
        p = laboratory.equivalence(dict(enumerate(70 + drawn)), dict.fromkeys(range(5), 70.0))
        assert (p < 0.05) == (interval.low > -0.25 and interval.high < 0.25)
