"""docs/results.md: each table says where its records are, and the figures of the study are those of its records."""

import json
import re
import statistics
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
STUDY = DOCS / "study"
SECTIONS = {text.split("\n")[0]: text for text in (DOCS / "results.md").read_text().split("\n## ")[1:]}
ROWS = {
    "constant 0.03": "constant-0.03",
    "constant 0.05 (SimCSE)": "constant-0.05",
    "constant 0.07": "constant-0.07",
    "MACL": "macl",
    "cosine 0.03/0.05": "cosine-0.03-0.05",
    "shifted -0.2, 0.03/0.05": "shifted-0.2-0.03-0.05",
    "shifted -0.4, 0.03/0.05": "shifted-0.4-0.03-0.05",
    "shifted -0.6, 0.03/0.05": "shifted-0.6-0.03-0.05",
    "shifted -0.4, 0.02/0.05": "shifted-0.4-0.02-0.05",
    "shifted -0.4, 0.04/0.05": "shifted-0.4-0.04-0.05",
    "shifted -0.4, 0.05/0.07 (default)": "shifted-0.4-0.05-0.07",
}
LABORATORY = {
    "MACL": "sts-macl",
    "hardness weights": "rule-hardness",
    "robust, one temperature": "rule-robust",
    "cosine 0.03/0.05": "sts-cosine-0.03-0.05",
    "ADNCE": "rule-adnce",
    "shifted -0.4, 0.05/0.07 (default)": "sts-shifted-0.4-0.05-0.07",
    "TeMo": "rule-temo",
    "Focal-InfoNCE": "rule-focal",
    "HCL": "rule-hcl",
    "SigLIP": "rule-siglip",
    "RINCE": "rule-rince",
    **{f"constant {tau}": f"grid-constant-temp={tau}" for tau in (0.037, 0.051, 0.057, 0.0715, 0.089, 0.19)},
}
TABLES = [
    *(("The temperatures of the text table, five seeds", row, f"sts-{run}") for row, run in ROWS.items()),
    *(
        ("Temperature rules beside their nearest constants, five seeds", row, f"laboratory/{run}")
        for row, run in LABORATORY.items()
    ),
]


def cells(section, start):
    """The cells of the first line that starts so, without the first."""
    (line, *_) = [line for line in SECTIONS[section].split("\n") if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("| ").split("|")][1:]


def figures(run):
    """Of a run, as the columns of the study's table."""
    record = json.loads((run / "senteval-senteval-test.json").read_text())
    dev = json.loads((run / "metrics.jsonl").read_text().strip().split("\n")[-1])
    sts = [record["tasks"][name]["spearman"] for name in ("STS12", "STS-B", "SICK-R")]
    return [dev["sts_b_dev_spearman"], *sts, record["averages"]["sts"], dev["sts_b_dev_uniformity"]]


def test_each_section_with_a_table_says_where_its_records_are():
    without = [title for title, text in SECTIONS.items() if "\n|---" in text and "\nRecords: " not in text]
    assert without == []
    assert sum("\n|---" in text for text in SECTIONS.values()) >= 8


@pytest.mark.parametrize(("section", "row", "run"), TABLES)
def test_a_row_of_the_study_is_the_mean_of_its_records(section, row, run):
    runs = [figures(STUDY / f"{run}-seed-{seed}") for seed in range(5)]
    for cell, *values in zip(cells(section, row), *runs, strict=False):  # not every table has the last figures
        mean, deviation = (float(number) for number in re.split(" ± ", cell))
        assert mean == pytest.approx(statistics.mean(values), abs=0.0051)
        assert deviation == pytest.approx(statistics.stdev(values), abs=0.0051)


def test_what_other_tables_take_from_the_study_is_in_its_records():
    dev = [figures(STUDY / f"sts-shifted-0.4-0.05-0.07-seed-{seed}")[0] for seed in range(3)]
    supervised = cells("Supervised, on triplets of STS-B", "unsupervised, 200 steps (the default's row above)")
    assert supervised == [f"{value:.2f}" for value in (*dev, statistics.mean(dev))]
    assert cells("A learned temperature, and masked-language modelling beside", "default profile, fixed")[0] == (
        f"{dev[0]:.2f}"
    )
    untrained = json.loads((STUDY / "sts-macl-seed-0" / "run.json").read_text())["untrained"]
    for row, pooler in (("cls", "cls"), ("avg", "avg"), ("avg_first_last (the best)", "avg_first_last")):
        score, *_, alignment, uniformity = cells("Small encoder, 64,000 Wikipedia sentences", f"untrained, {row}")
        found = untrained[pooler]
        assert score == f"{found['sts_b_dev_spearman']:.2f}"
        assert alignment == f"{found['sts_b_dev_alignment']:.3f}"
        assert uniformity == f"{found['sts_b_dev_uniformity']:.2f}"
