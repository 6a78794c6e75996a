"""The program that compares the paper's rows with presets and figures: every row is there, and a wrong one is seen."""

import copy

import paper_rows
import pytest

from vision.evaluation import paper


@pytest.fixture(scope="module")
def rows(paper_tables):
    return paper_rows.compare(paper_tables)


def test_every_row_has_a_preset_the_papers_hyper_parameters_and_its_figures(rows):
    assert [problem for row in rows for problem in row.problems()] == []
    lines = list(paper_rows.report(rows))
    assert [line.split() for line in lines if line.startswith("all")] == [["all", "97", "97", "96", "97"]]
    assert "97 of 97 rows have a preset or a written reason" in lines


def test_no_figure_of_ours_is_not_the_papers(paper_tables):
    """The other way round: the paper's tables have all that stands here."""
    ours = sum(value is not None for table in paper.TABLES.values() for row in table.rows.values() for value in row)
    theirs = sum(
        value is not None
        for key, table in paper_tables.items()
        if key in paper_rows.IMAGES
        for row in table["rows"]
        for column, value in zip(table["columns"], row["values"], strict=True)
        if column != "projection_dim"
    )
    assert ours == theirs == 219


@pytest.mark.parametrize(
    ("table", "row", "change", "said"),
    [("in1k", 1, {"values": [65.1, 86.3]}, "in1k, row DCL: top5 86.2 here, 86.3 in the paper"),
     ("range", 0, {"settings": {"tau_min": 0.08}}, "range, row 0.07/0.1: {'tau_min': 0.07} in"),
     ("stsresall/sts", 7, {"settings": {"shift": -0.3}}, "row DySTreSS* 0.05/0.07: {'shift': -0.4} in --preset"),
     ("transfer", 2, {"settings": {"positive_weight": 4.25, "lr": 1.0}}, "row ISIC2016: (50, 128, [30, 40], 1.0, ")],
)  # fmt: skip
def test_a_wrong_row_is_seen(table, row, change, said, paper_tables):
    other = copy.deepcopy(paper_tables)
    other[table]["rows"][row] |= change
    problems = [problem for found in paper_rows.compare(other) for problem in found.problems()]
    assert len(problems) == 1
    assert said in problems[0]
