"""Public tables of docs/ recomputed from the records in docs/study with SciPy."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LABORATORY = DOCS / "laboratory"


def records(name):
    lines = (DOCS / "study" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def joined(file):
    return " ".join(file.read_text().split())


def interval(ours, theirs):
    """Return the mean difference, paired by seed, and the ends of its 95 % interval."""
    differences = [ours[seed] - theirs[seed] for seed in sorted(set(ours) & set(theirs))]
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    return np.mean(differences), low, high


@pytest.mark.parametrize("name", ["STS-B", "MRPC", "SST2"])
def test_encoder_on_unseen_sets(name):
    found = {}
    for line in records("recipe"):
        if line["text"] == "paragraphs" and name in line["figures"]:
            by_seed = found.setdefault((line["arm"], line["steps"]), {})
            by_seed[line["seed"]] = line["figures"][name]
    preset = found["crop, first-last, DCL 0.03, rate 4e-4", 400]
    mean, low, high = interval(preset, found["simcse, first-last", 200])
    page = joined(LABORATORY / "own-text-encoder.md")
    assert f"{name} {mean:+.2f} ({low:+.2f} to {high:+.2f};" in page


def test_differences_of_the_recipe():
    figures = {}
    for line in records("own_text"):
        if line["text"] == "CISI":
            figures.setdefault(line["model"], {})[line["seed"]] = line["figures"]["CISI"]
    mean, low, high = interval(figures["own-text"], figures["own-text, untrained"])
    assert f"{mean:+.2f} ({low:+.2f} to {high:+.2f})" in joined(DOCS / "recipe.md")


@pytest.mark.parametrize("collection", ["cisi", "cacm"])
def test_rank_correlation_of_half_document_retrieval(collection):
    rows = [row for row in records("halves") if row["collection"] == collection]
    found = [row["found"] for row in rows]
    searched = [row["ndcg@10"] for row in rows]
    correlation = stats.spearmanr(found, searched).statistic
    assert f"{correlation:.2f} on {collection.upper()} (" in joined(DOCS / "evaluate.md")


@pytest.mark.parametrize(
    ("name", "title"),
    [("sts-macl", "MACL"), ("sts-shifted-0.4-0.05-0.07", "shifted -0.4, 0.05/0.07 (default)")],
)
def test_temperatures_of_the_text_table(name, title):
    averages = {}
    for line in records("runs"):
        configuration, _, seed = line["name"].rpartition("-seed-")
        if configuration:
            figures = line["figures"]["senteval/sts"].values()
            averages.setdefault(configuration, {})[int(seed)] = round(np.mean([*figures]), 2)
    mean, low, high = interval(averages[name], averages["sts-constant-0.05"])
    found = list(averages[name].values())
    (row,) = [
        line
        for line in (LABORATORY / "text.md").read_text().splitlines()
        if line.startswith(f"|{title}|")
    ]
    assert f"|{np.mean(found):.2f} ± {np.std(found, ddof=1):.2f}|" in row
    assert f"|{mean:+.2f} ({low:+.2f} to {high:+.2f})|" in row
