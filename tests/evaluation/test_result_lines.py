"""Result lines: none is lost or changed, and damaged ones are refused."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dystress_text.errors import UserError
from dystress_text.evaluation.results import (
    RESULTS,
    Result,
    append,
    newest,
    open_results,
    read_results,
)

LINE = Result("m", "w", "mini/sts", "MiniSTS", "d", {"spearman": 50.0})


def line(**changes):
    return json.dumps({**vars(LINE), **changes})


def test_lines_are_read_as_written(tmp_path):
    file = tmp_path / "new" / RESULTS
    written = [replace(LINE, figures={"spearman": float(i)}, time=str(i)) for i in range(3)]
    for result in written:
        append(file, result)
    assert read_results(file) == written
    assert newest(written, lambda result: result.task) == written[-1:]
    file.write_text(line(later=1))  # of a later version
    assert read_results(file) == [LINE]


def test_concurrent_writers_lose_nothing(tmp_path):
    file = tmp_path / RESULTS

    def write(which):
        open_results(file)
        for i in range(6):
            append(file, replace(LINE, task=f"{which}{i}", details={"long": "x" * 10_000}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    found = {result.task for result in read_results(file)}
    assert found == {f"{which}{i}" for which in "abcd" for i in range(6)}
    assert {path.name for path in tmp_path.iterdir()} == {RESULTS}


@pytest.mark.parametrize("cut", [1, 40, None])
def test_a_line_that_was_cut_off_is_removed(tmp_path, cut):
    """All of a last line may be there, but for its line feed."""
    file = tmp_path / RESULTS
    append(file, LINE)
    second = replace(LINE, task="second")
    file.write_text(file.read_text() + line(task="second")[:cut])
    open_results(file)
    append(file, LINE)
    assert read_results(file) == ([LINE, LINE] if cut else [LINE, second, LINE])


def test_a_full_disk_costs_one_line(tmp_path):
    file = tmp_path / RESULTS
    append(file, LINE)
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(UserError):
            append(file, LINE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    open_results(file)
    append(file, LINE)
    assert read_results(file) == [LINE, LINE]


WRONG = ("model", "group", "task", "data", "figures", "settings", "details")
DAMAGED = [
    "{",
    "[]",
    "[" * 100_000,
    line(figures={}),
    line(each={"model": [0.5], "scores": [1, 2]}),
    *(line(**{name: 7}) for name in WRONG),
]


@pytest.mark.parametrize("damaged", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_lines_are_refused_with_their_number(tmp_path, damaged):
    file = tmp_path / RESULTS
    append(file, LINE)
    content = f"{file.read_text()}\n{damaged}\n"
    file.write_text(content)
    with pytest.raises(UserError, match=r"\A[^\n]*line 3 [^\n]*\Z"):
        open_results(file)
    assert file.read_text() == content


@pytest.mark.parametrize("content", [b"notes\nwithout a last line feed", b"\x08\xff{", b'{"a": 1}'])
def test_another_file_stays_as_it_is(tmp_path, content):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"notes\.txt"):
        open_results(file)
    assert file.read_bytes() == content
