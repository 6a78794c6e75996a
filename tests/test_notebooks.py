"""The notebooks run from top to bottom, and what they keep is fit to be seen."""

import re

import nbformat
import notebook_runs
import pytest

each = pytest.mark.parametrize("file", notebook_runs.NOTEBOOKS, ids=lambda file: file.stem)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@each
def test_outputs_are_kept_and_name_no_machine(file):
    assert file.stat().st_size < 500_000
    cells = code_cells(nbformat.read(file, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [out for cell in cells for out in cell.outputs]
    assert any("image/png" in out.get("data", {}) for out in outputs)
    assert {out.get("name", "stdout") for out in outputs} == {"stdout"}  # no progress, no warnings
    text = "".join(out.get("text", "") for out in outputs)
    assert not re.search(r"(?<![\w.])/(?:\w+/)+|[A-Z]:\\|\r|Warning", text)


@pytest.mark.slow(60)
@each
def test_it_runs(file, tmp_path):
    cells = code_cells(notebook_runs.executed(file, tmp_path, short=True))
    kept = code_cells(nbformat.read(file, as_version=4))
    assert [bool(cell.outputs) for cell in kept] == [  # other numbers on another machine, the same cells with results
        any(out.get("name") != "stderr" for out in cell.outputs) for cell in cells
    ]
