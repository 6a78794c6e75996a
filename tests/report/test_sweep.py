"""Sweeps: which runs are planned, refused, run, left alone, resumed and evaluated."""

import json
import os
import re
import shlex
import signal
import textwrap
import threading
import time
from dataclasses import replace

import pytest

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import TASKS
from dystress_text.report import sweep as program
from dystress_text.report.sweep import PlannedRun, plan
from dystress_text.simcse.presets import TABLES
from dystress_text.sweep import main, make_parser
from dystress_text.train import main as train

# stands for train.py: fails for seed 9, is interrupted where a file says so, else trains in no time
TRAINER = """
    import json, os, signal, sys, time
    from pathlib import Path
    given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
    out = Path(given["output_dir"])
    assert given["resume_from_checkpoint"] == "auto"
    resumed = (out / "run.json").exists()
    out.mkdir(parents=True, exist_ok=True)
    here = Path(os.environ["SETTINGS"]).with_name("here") / str(os.getpid())
    here.parent.mkdir(exist_ok=True)
    here.touch()
    time.sleep(0.2)
    print("at once", len(list(here.parent.iterdir())))
    here.unlink()
    settings = json.loads(Path(os.environ["SETTINGS"]).read_text())[out.name]
    record = {"program": "dystress_text/train.py", "settings": settings}
    (out / "run.json").write_text(json.dumps(record))
    if given["seed"] == "9":
        sys.exit("train.py: error: seed 9 is not liked")
    if Path(os.environ["SETTINGS"]).with_name("wait").exists() and not resumed:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("train.py: stopped by SIGTERM"))
        (out / "up").touch()
        time.sleep(60)
    (out / "run.json").write_text(json.dumps(record | {"trained": {"sts_b_dev_spearman": 1.0}, "resumed": resumed}))
"""
EVALUATOR = """
    import json, sys
    from pathlib import Path
    words = sys.argv[1:]
    model, suite = (words[words.index(name) + 1] for name in ("--model", "--suite"))
    tasks = words[words.index("--tasks") + 1:]
    with (Path(model) / "evaluations").open("a") as file:
        print(*tasks, file=file)
    results = Path(model) / f"senteval-{suite}-test.json"
    before = json.loads(results.read_text())["tasks"] if results.exists() else {}
    results.write_text(json.dumps({"tasks": before | dict.fromkeys(tasks)}))
"""


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Programs that stand for the real ones, and a sweep of four runs as a function of more options."""
    for name, source in (("TRAIN", TRAINER), ("EVALUATE", EVALUATOR)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        monkeypatch.setattr(program, name, tmp_path / f"{name}.py")
    monkeypatch.setenv("SETTINGS", str(tmp_path / "settings.json"))
    folder = tmp_path / "sweep"

    def run(*more, seeds=(0, 1), extra=("--max_steps=3",)):
        argv = ["--presets", "sts-macl", "paper", "--seeds", *map(str, seeds), f"--output_dir={folder}", *more]
        runs = plan(make_parser().parse_args(argv), extra)
        settings = {each.folder.name: program.parse(each.options).options() for each in runs}
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        return main([*argv, "--", *extra])

    run.folder = folder
    return run


def test_a_sweep_trains_and_evaluates_each_run_once(stage, capsys):
    assert stage("--jobs=2") == 0
    logs = [log.read_text() for log in (stage.folder / "logs").iterdir()]
    assert {number for log in logs for number in re.findall(r"at once (\d)", log)} <= {"1", "2"}
    names = [f"{name}-seed-{seed}" for seed in (0, 1) for name in ("sts-macl", "paper")]
    sts = " ".join(TASKS["sts"])
    assert sorted(os.listdir(stage.folder)) == sorted([*names, "logs"])
    assert [(stage.folder / name / "evaluations").read_text() for name in names] == [f"{sts}\n"] * 4
    assert "4 done" in capsys.readouterr().out
    assert stage() == 0
    assert [(stage.folder / name / "evaluations").read_text() for name in names] == [f"{sts}\n"] * 4
    for tasks in ("transfer", "sts", "all"):
        assert stage("--tasks", tasks) == 0
        assert (stage.folder / names[0] / "evaluations").read_text() == f"{sts}\n{' '.join(TASKS['transfer'])}\n"


def test_a_failed_run_is_named_and_the_others_go_on(stage, capsys):
    assert stage("--tasks=none", seeds=(9, 0)) == 1
    printed = capsys.readouterr()
    log = stage.folder / "logs" / "paper-seed-9.log"
    assert f"failed: paper-seed-9: exit code 1; log: {log}" in printed.err
    assert "2 done, 2 failed" in printed.out
    assert "trained" in json.loads((stage.folder / "paper-seed-0" / "run.json").read_text())
    assert not (stage.folder / "paper-seed-0" / "evaluations").exists()


def test_a_stopped_sweep_goes_on(stage, capsys, tmp_path):
    (tmp_path / "wait").touch()

    def stop():
        while not list(stage.folder.glob("*/up")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert stage("--tasks=none") == 128 + signal.SIGTERM
    stopper.join()
    printed = capsys.readouterr()
    assert "stopped by SIGTERM; the same line goes on from there" in printed.err
    (tmp_path / "wait").unlink()
    assert stage("--tasks=none") == 0
    resumed = {f.parent.name: json.loads(f.read_text())["resumed"] for f in stage.folder.glob("*/run.json")}
    assert resumed == {"sts-macl-seed-0": True, "paper-seed-0": False, "sts-macl-seed-1": False, "paper-seed-1": False}


def test_a_dry_run_says_what_would_be_done(stage, capsys):
    stage("--tasks=none", seeds=(0,))
    capsys.readouterr()
    assert stage("--dry_run", seeds=(0, 1)) == 0
    evaluated, _, trained, _ = map(shlex.split, capsys.readouterr().out.splitlines())
    assert evaluated[0] == "sts-macl-seed-0:"
    assert evaluated[3:5] == ["--model", str(stage.folder / "sts-macl-seed-0")]
    assert f"--output_dir={stage.folder / 'sts-macl-seed-1'}" in trained
    assert stage("--tasks=none", "--dry_run", seeds=(0,)) == 0
    assert capsys.readouterr().out == "sts-macl-seed-0: done\npaper-seed-0: done\n"
    assert not (stage.folder / "paper-seed-1").exists()


# ---- plans ---------------------------------------------------------------------------------------------------------


def planned(*argv, extra=()):
    return plan(make_parser().parse_args(argv), extra)


def test_a_table_has_every_row_with_every_seed():
    runs = planned("--table", "sts", "--seeds", "0", "1", "2", "1")
    assert len(runs) == len(TABLES["sts"]) * 3
    assert runs[0].folder.name == "sts-constant-0.05-seed-0"
    assert runs[len(TABLES["sts"])].folder.name == "sts-constant-0.05-seed-1"  # a whole table before the next seed
    assert "--preset=sts-macl" in runs[1].options


def test_a_grid_is_all_combinations_that_are_ranges():
    argv = ["--temperature", "shifted_cosine", "--shift", "-0.4", "--seeds", "5"]
    argv += ["--tau_min", "0.03", "0.05", "--tau_max", "0.04", "0.07"]
    names = [run.folder.name for run in planned(*argv)]
    assert names == [
        f"grid-shifted_cosine-tau_min={low}-tau_max={high}-shift=-0.4-seed-5"
        for low, high in ((0.03, 0.04), (0.03, 0.07), (0.05, 0.07))
    ]
    loss = program.parse(planned(*argv)[0].options).loss
    assert (loss.temperature, loss.tau_min, loss.tau_max, loss.shift) == ("shifted_cosine", 0.03, 0.04, -0.4)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "nothing to run: name a --table, --presets, or a --temperature with its values"),
        (["--table", "sts", "--jobs", "0"], "--jobs: must be at least 1, got 0"),
        (["--table", "sts", "--", "--seed=3"], "--seed=3: not behind --, the sweep sets it"),
        (["--table", "sts", "--", "--max_stepps=3"], "unknown option --max_stepps (did you mean --max_steps?)"),
        (
            ["--temperature", "cosine", "--shift", "-0.4"],
            "--shift: temperature 'cosine' takes tau_min, tau_max only",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"dystress sweep: error: {message}")
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == []


# ---- the real programs ---------------------------------------------------------------------------------------------


def test_a_real_run_is_known_by_its_settings(flags, tmp_path):
    options = tuple(flag for flag in flags if not flag.startswith("--output_dir"))
    run = PlannedRun(tmp_path / "out", options, ("MiniSTS",), "mini", None)
    assert not run.is_trained()
    assert train(flags) == 0
    assert run.is_trained()
    (command,) = run.commands()
    assert command[-2:] == ["--tasks", "MiniSTS"]
    assert replace(run, options=(*options, "--logging_steps=7")).is_trained()
    with pytest.raises(
        UserError, match=r"finished run with other settings \(seed was 42, is 1\): another --output_dir"
    ):
        replace(run, options=(*options, "--seed=1")).is_trained()
