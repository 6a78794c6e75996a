"""Tables in three styles, averages, and the published rows."""

from dystress_text.evaluation.catalogue import STS_TASKS, TRANSFER_TASKS, average
from dystress_text.evaluation.tables import table
from dystress_text.simcse.paper import PUBLISHED


def test_the_average_is_over_rounded_figures_and_never_over_fewer():
    assert average({"a": 10.0, "b": 20.5}) == 15.25
    assert average({"a": 10.0, "b": None}) is None


ROWS = {"mine_1": {"STS12": 50.0, "STS13": None}, "theirs": {"STS12": 60.25, "STS13": 70.5, "STS14": 1.0}}


def test_text_marks_what_is_missing_and_how_many_are_averaged():
    lines = table(ROWS, ["STS12", "STS13"], whole=False).split("\n")
    assert [line.split() for line in lines] == [
        ["STS12", "STS13", "avg", "of", "2"],
        ["mine_1", "50.00", "missing", "-"],
        ["theirs", "60.25", "70.50", "65.38"],
    ]
    assert len({len(line) for line in lines}) == 1
    assert table(ROWS, ["STS12", "STS13"], whole=True).split("\n")[0].split()[-1] == "avg"


def test_markdown_and_latex():
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table(ROWS, ["STS12"], True, "markdown").split("\n")
    ]
    assert cells[0] == ["", "STS12", "avg"]
    assert [cell.strip("-") for cell in cells[1]] == [":", ":", ":"]
    assert all(cell.endswith(":") for cell in cells[1][1:])  # aligned right
    assert cells[2:] == [["mine_1", "50.00", "50.00"], ["theirs", "60.25", "60.25"]]
    latex = [" ".join(line.split()) for line in table(ROWS, ["STS12"], True, "latex").split("\n")]
    assert r"mine\_1 & 50.00 & 50.00 \\" in latex
    assert latex[0] == r"\begin{tabular}{lrr}"


def test_published_rows_have_the_tasks_columns():
    for group, tasks in (("sts", STS_TASKS), ("transfer", TRANSFER_TASKS)):
        assert all(tuple(row) == tuple(task.name for task in tasks) for row in PUBLISHED[group].values())
    assert len(PUBLISHED["sts"]) == len(PUBLISHED["transfer"]) + 1  # SimCSE's own figures


def test_published_averages():
    averages = {label: average(row) for label, row in PUBLISHED["sts"].items()}
    assert averages["SimCSE (published)"] == 76.25
    assert averages["DySTreSS* 0.05/0.07"] == 76.37
