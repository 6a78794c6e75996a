"""The adaptations of docs/results.md: the table is that of the records, and the records bear out each verdict."""

import json
import re
from pathlib import Path

import pytest
from scipy import stats

DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORDS = [json.loads(file.read_text()) for file in sorted((DOCS / "study" / "adaptation").glob("*.json"))]
SECTIONS = {text.split("\n")[0]: text for text in (DOCS / "results.md").read_text().split("\n## ")[1:]}
TABLE = SECTIONS["The verdict of an adaptation beside labels"]


def name(record):
    return f"{record['base']}-{record['text']}-{record['seed']}"


def gain(record, of="own"):
    return record["labels"]["adapted"][of] - record["labels"]["base"][of]


def rows():
    """The cells of the first table by its first three."""
    lines = [
        line.strip("| ").split(" | ") for line in TABLE.split("\n") if re.match(r"\| [\w-]+ \| [\w-]+ \| \d", line)
    ]
    return {"-".join(line[:3]): line[3:] for line in lines}


@pytest.mark.parametrize("record", RECORDS, ids=name)
def test_a_row_is_its_record(record):
    verdict, score, share, opening, own, own_change, general, right = rows()[name(record)]
    measures = {each["name"]: each["difference"] for each in record["measures"]}
    assert verdict == record["verdict"]
    assert float(score.split()[0]) == pytest.approx(record["score"]["figure"], abs=0.051)
    assert share == f"{record['chosen']['alpha']:.0%}"
    assert float(opening) == pytest.approx(-measures["uniformity"]["figure"], abs=0.51)
    assert float(own) == pytest.approx(record["labels"]["base"]["own"], abs=0.0051)
    assert float(own_change) == pytest.approx(gain(record), abs=0.0051)
    assert float(general) == pytest.approx(gain(record, "STS-B"), abs=0.0051)
    expected = {"WIN": gain(record) > 0, "TIE": abs(gain(record)) <= 0.5, "WORSE": gain(record) < 0}[verdict]
    assert right == ("yes" if expected else "no")


@pytest.mark.parametrize("record", RECORDS, ids=name)
def test_a_verdict_follows_from_its_measures(record):
    """The rules of docs/adapt.md, for the runs as they are."""
    measures = {each["name"]: each["difference"] for each in record["measures"]}
    score, bars = record["score"], record["bars"]
    opens = -measures["uniformity"]["high"] >= 20
    keeps = score["figure"] >= 0 and score["low"] >= -10 and record["agreement"]["figure"] >= 93
    keeps &= all(measures[guard]["figure"] >= -most for guard, most in bars["guarded"].items())
    if record["verdict"] != "WORSE":
        assert record["verdict"] == ("WIN" if opens and keeps else "TIE")
    else:
        assert score["high"] < 0
        assert score["figure"] <= -2


def test_the_correlations_are_scipys():
    """Of each measure's change with the labelled gain, over all runs."""
    lines = [line.strip("| ").split(" | ") for line in TABLE.split("\n") if re.match(r"\| [a-z ]+ \| [+-]\d", line)]
    assert len(lines) >= 10
    gains = [gain(record) for record in RECORDS]
    for measure, everything, *_ in lines:
        found = []
        for record in RECORDS:
            changes = {each["name"]: each["difference"]["figure"] for each in record["measures"]}
            changes |= {"score": record["score"]["figure"], "agreement": record["agreement"]["figure"]}
            found.append(changes[measure])
        assert float(everything.split()[0]) == pytest.approx(stats.spearmanr(found, gains).statistic, abs=0.0051)


def test_the_counts():
    for file, pattern in (("adapt.md", r"(\d+) of (\d+) verdicts"), ("../README.md", r"(\d+) of (\d+) verdicts")):
        right, runs = map(int, re.search(pattern, (DOCS / file).read_text()).groups())
        assert runs == len(RECORDS) == len(rows())
        assert right == sum(cells[-1] == "yes" for cells in rows().values())
