"""The kit for a machine with a GPU: its limits, what a bad item leaves, and its items small on the CPU."""

import json
import runpy
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import kit  # noqa: E402

sys.path.pop(0)


def test_an_item_that_fails_or_runs_out_of_time_is_recorded_and_the_others_go_on(tmp_path):
    programs = {
        "slow": "import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sleep', '60'])",
        "broken": "print('before')\nraise ValueError('what is wrong')",
        "good": "print('a table')\nprint('{\"ms\": 3}')",
    }
    for name, code in programs.items():
        (tmp_path / f"{name}.py").write_text(code)
    items = [kit.Item(name, 3, str(tmp_path / f"{name}.py")) for name in programs]
    assert kit.run_items(items, {"device": "none"}, tmp_path, tmp_path) == 1
    records = {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("*.json")}
    statuses = {name: record["status"] for name, record in records.items()}
    assert statuses == {"slow": "out of time", "broken": "failed", "good": "measured"}
    assert records["slow"]["seconds"] < 30  # the process that it had started is gone too
    assert records["broken"]["last_lines"][-1] == "ValueError: what is wrong"
    assert records["good"]["result"] == {"ms": 3}


def test_the_limits_of_a_part_fit_under_ten_minutes():
    for items in kit.PARTS.values():
        assert sum(item.limit for item in items) <= kit.PART_SECONDS < 600
        assert all(item.command.startswith("-m ") or (ROOT / item.command.split()[0]).is_file() for item in items)


ITEMS = {item.name: item for items in kit.PARTS.values() for item in items if item.small}


@pytest.mark.slow(20)
@pytest.mark.parametrize("name", ITEMS)
def test_an_item_runs_small_on_the_cpu(name, text_file, monkeypatch, capsys):
    """In this process, which has the imports behind it; that each is a program of its own is tested above."""
    program, *words = shlex.split(f"{ITEMS[name].command.format(corpus=text_file)} {ITEMS[name].small}")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.syspath_prepend((ROOT / program).parent)
    monkeypatch.setattr(sys, "argv", [program, *words])
    code = None
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        code = end.code
    assert not code, capsys.readouterr()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert name != "killed-text" or result["weights"]
