"""The paper's figures, carried in the project, are those of its table."""

import pytest

from dystress_text.evaluation.catalogue import GROUPS, TASKS, average
from dystress_text.simcse.paper import ROWS

MISPRINTED = {"MACL (repro.)": 75.45, "DySTreSS 0.03/0.05": 75.46, "DySTreSS* 0.03/0.05": 75.97}


@pytest.mark.parametrize("group", GROUPS)
def test_every_figure_and_printed_average_is_the_papers(paper_tables, group):
    table = paper_tables[f"stsresall/{group}"]
    assert [name.replace("-", "") for name in TASKS[group]] == table["columns"][:7]
    half = list(GROUPS).index(group)
    ours = [(row.name, [*row.figures(group).values(), row.printed[half]]) for row in ROWS]
    assert ours == [(row["name"], row["values"]) for row in table["rows"]]


def test_the_rows_settings_are_the_papers(paper_tables):
    for row, paper in zip(ROWS, paper_tables["stsresall/sts"]["rows"], strict=True):
        said = {"temp" if name == "tau" else name: value for name, value in paper["settings"].items()}
        ours = {name: row.loss.get(name) for name in said}
        assert ours == said, row.name


def test_misprinted_averages_are_computed_and_said():
    for row in ROWS:
        wrong = row.name in MISPRINTED
        assert average(row.figures("sts")) == (MISPRINTED[row.name] if wrong else row.printed[0])
        assert average(row.figures("transfer")) == row.printed[1]
        assert ("printed" in row.about()) == wrong
    assert "75.45 (printed 74.84), transfer average 85.77" in ROWS[1].about()
