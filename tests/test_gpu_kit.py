"""The kit for a machine with a GPU: its limits, what a bad item leaves, and its items small on the CPU."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import kit  # noqa: E402

sys.path.pop(0)


def run(monkeypatch, tmp_path, *words):
    monkeypatch.setattr(sys, "argv", ["kit.py", "--output", str(tmp_path / "out"), *words])
    code = kit.main()
    return code, {file.stem: json.loads(file.read_text()) for file in (tmp_path / "out").iterdir()}


def test_an_item_that_fails_or_runs_out_of_time_is_recorded_and_the_others_go_on(monkeypatch, tmp_path):
    programs = {
        "slow": "import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sleep', '60'])",
        "broken": "print('before')\nraise ValueError('what is wrong')",
        "good": "print('a table')\nprint('{\"ms\": 3}')",
    }
    for name, code in programs.items():
        (tmp_path / f"{name}.py").write_text(code)
    items = tuple(kit.Item(name, 1, str(tmp_path / f"{name}.py"), "") for name in programs)
    monkeypatch.setattr(kit, "PARTS", {1: items})
    monkeypatch.setattr(kit, "DRY_SECONDS", 3)
    code, records = run(monkeypatch, tmp_path, "--dry_run")
    assert code == 1
    statuses = {name: record["status"] for name, record in records.items()}
    assert statuses == {"part1-slow": "out of time", "part1-broken": "failed", "part1-good": "measured"}
    assert records["part1-slow"]["seconds"] < 30  # the process that it had started is gone too
    assert records["part1-broken"]["last_lines"][-1] == "ValueError: what is wrong"
    assert records["part1-good"]["result"] == {"ms": 3}


def test_the_limits_of_a_part_fit_under_ten_minutes():
    for items in kit.PARTS.values():
        assert sum(item.limit for item in items) <= kit.PART_SECONDS < 600
        assert all(item.command.startswith("-m ") or (ROOT / item.command.split()[0]).is_file() for item in items)


@pytest.mark.slow(90)
def test_the_items_run_small_on_the_cpu(tmp_path, monkeypatch):
    left_out = {"speed-base", "killed-images", "suite"}  # what the others do
    names = [item.name for items in kit.PARTS.values() for item in items if item.name not in left_out]
    code, records = run(monkeypatch, tmp_path, "--dry_run", "--items", *names)
    assert code == 0, {name: record["last_lines"] for name, record in records.items() if record["status"] != "measured"}
    assert len(records) == len(names)
    assert records["part1-killed-text"]["result"]["weights"]
