"""The kit for a machine with a GPU: its limits, what a bad item leaves, and all items small on the CPU."""

import json
import os
import runpy
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from processes import in_new_process

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import kit  # noqa: E402

sys.path.pop(0)


def ran(monkeypatch, tmp_path, programs):
    """The records of items that run these programs, in a dry run of five seconds each."""
    items = []
    for name, code in programs.items():
        (tmp_path / f"{name}.py").write_text(code)
        items.append(kit.Item(name, 1, str(tmp_path / f"{name}.py"), ""))
    monkeypatch.setattr(kit, "PARTS", {1: tuple(items)})
    monkeypatch.setattr(kit, "DRY_SECONDS", 5)
    monkeypatch.setattr(kit, "MACHINE", "print('{}')")
    monkeypatch.setattr(
        sys, "argv", ["kit.py", "--dry_run", "--output", str(tmp_path / "out"), "--wheels", str(tmp_path)]
    )
    code = kit.main()
    return code, {name: json.loads((tmp_path / "out" / f"part1-{name}.json").read_text()) for name in programs}


def test_an_item_that_fails_or_runs_out_of_time_is_recorded_and_the_others_go_on(monkeypatch, tmp_path):
    sleeper = "import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sleep', '60'])"
    programs = {
        "slow": sleeper,
        "broken": "print('before')\nraise ValueError('what is wrong')",
        "silent": "print('no result')",
        "found": "print('{\"wrong\": 1}')\nraise SystemExit(1)",
        "good": "print('a table')\nprint('{\"ms\": 3}')",
    }
    code, records = ran(monkeypatch, tmp_path, programs)
    assert code == 1
    assert {name: record["status"] for name, record in records.items()} == {
        "slow": "out of time", "broken": "failed", "silent": "failed", "found": "failed", "good": "measured",
    }  # fmt: skip
    assert records["slow"]["last_lines"] == ["begun"]
    assert records["slow"]["seconds"] < 30  # the process that it had started is gone too
    assert records["broken"]["last_lines"][-1] == "ValueError: what is wrong"
    assert records["found"]["result"] == {"wrong": 1}
    assert records["good"]["result"] == {"ms": 3}
    assert records["good"]["last_lines"] == ["a table"]
    assert not list((tmp_path / "out").glob(".*"))


def test_the_limits_of_a_part_fit_under_ten_minutes():
    for items in kit.PARTS.values():
        assert sum(item.limit for item in items) <= kit.PART_SECONDS < 600
        assert all((ROOT / item.command.split()[0]).is_file() for item in items)
    names = [item.name for items in kit.PARTS.values() for item in items]
    assert len(names) == len(set(names))


def test_a_wheel_is_used_where_its_package_is_missing(tmp_path):
    for name in ("nowhere_else-1.0-py3-none-any.whl", "pytest-0.1-py3-none-any.whl"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(f"{name.split('-')[0]}.py", "answer = 42\n")
    env, used = kit.environment(tmp_path, tmp_path / "work", small=True)
    assert used == ["nowhere_else-1.0-py3-none-any.whl"]
    assert kit.output_of("import nowhere_else; print(nowhere_else.answer)", env) == "42"
    assert not (tmp_path / "work" / "site" / "pytest.py").exists()


def test_a_machine_without_a_gpu_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kit, "MACHINE", 'print(\'{"device": "cpu"}\')')
    monkeypatch.setattr(sys, "argv", ["kit.py", "--part", "1", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="no GPU here; --dry_run"):
        kit.main()


def run_program(words, env):
    """In a process of its own that has the imports behind it: the exit code and the output of a program."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    with tempfile.TemporaryFile("w+") as said:
        os.dup2(said.fileno(), 1)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        try:
            runpy.run_path(words[0], run_name="__main__")
            code = 0
        except SystemExit as ended:
            code = ended.code
        sys.stdout.flush()
        said.seek(0)
        return code, said.read()


def run_item(command, limit, env):
    """As the kit's, without an interpreter of its own."""
    code, said = in_new_process(run_program, command[1:], env)
    *lines, last = said.splitlines()
    return {"status": "failed" if code else "measured", "seconds": 0.0, "result": json.loads(last), "last_lines": lines}


LEFT_OUT = {"speed-base", "killed-images"}  # they run what speed-small and killed-text do


@pytest.mark.slow(60)
def test_all_parts_run_small_on_the_cpu(tmp_path, monkeypatch):
    items = {item.name: n for n, items in kit.PARTS.items() for item in items if item.name not in LEFT_OUT}
    monkeypatch.setattr(kit, "run_item", run_item)
    monkeypatch.setattr(sys, "argv", ["kit.py", "--dry_run", "--output", str(tmp_path), "--items", *items])
    assert kit.main() == 0
    records = {file.name: json.loads(file.read_text()) for file in tmp_path.iterdir()}
    assert sorted(records) == sorted(f"part{n}-{name}.json" for name, n in items.items())
    found = {record["item"]: record["result"] for record in records.values()}
    assert found["equal"]["text"]["right"]
    assert found["killed-text"]["equal"]
    assert found["suite"]["counts"]["passed"] > 0
    assert found["profile"]["longest"]
    split = found["run"]["seconds"]
    parts = sum(split[name] for name in ("training", "evaluation", "saving", "before and after"))
    assert parts == pytest.approx(split["whole"], rel=0.1)
    assert len(found["loss"]["rows"]) == 4
