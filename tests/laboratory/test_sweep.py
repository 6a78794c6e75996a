"""Sweeps: which runs are planned, refused, run, left alone, resumed and evaluated."""

import json
import os
import random
import re
import shlex
import signal
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from processes import finish, start
from sweep_runs import error_of, record_of, write_results
from trainer_cases import outcome

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import TASKS
from dystress_text.evaluation.results import results_in
from dystress_text.laboratory import sweep as program
from dystress_text.laboratory.sweep import PlannedRun, plan
from dystress_text.programs.sweep import main, make_parser
from dystress_text.programs.train import main as train
from dystress_text.simcse.presets import TABLES

# stands for train.py: fails for seed 9, is interrupted where a file says so, else trains in no time
TRAINER = """
    import json, os, signal, sys, time
    from pathlib import Path
    given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
    out, records = Path(given["output_dir"]), Path(os.environ["RECORDS"])
    assert given["resume_from_checkpoint"] == "auto"
    resumed = out.exists()
    out.mkdir(exist_ok=True)
    record = json.loads(records.read_text())[out.name] | {"resumed": resumed}
    (out / "run.json").write_text(json.dumps(record))
    if given["seed"] == "9":
        sys.exit("train.py: error: seed 9 is not liked")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("train.py: stopped by SIGTERM"))
    (out / "up").touch()
    time.sleep(60 if records.with_name("wait").exists() else 0.2)
    print("at once", len(list(out.parent.glob("*/up"))))
    (out / "up").unlink()
    (out / "run.json").write_text(json.dumps(record | {"trained": {"sts_b_dev_spearman": 1.0}}))
"""
EVALUATOR = """
    import json, sys
    from pathlib import Path
    words = sys.argv[1:]
    model, suite = (words[words.index(name) + 1] for name in ("--model", "--suite"))
    tasks, kinds = words[words.index("--tasks") + 1:], {"spearman": "sts", "accuracy": "transfer"}
    with (Path(model) / "calls.jsonl").open("a") as file:
        file.write(json.dumps(tasks) + chr(10))
    with (Path(model) / "results.jsonl").open("a") as file:
        for task in tasks:
            name = "spearman" if task.startswith(("STS", "SICK")) else "accuracy"
            line = {"model": model, "weights": "w", "group": f"{suite}/{kinds[name]}", "task": task, "data": "d",
                    "figures": {name: 70.0 + 2 * ("paper" in model)},
                    "settings": {"mode": "test", "dtype": "fp32", "pooler_type": None}}
            file.write(json.dumps(line) + chr(10))
"""
CONSTANT = "sts-constant-0.05"


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Programs that stand for the real ones, and a sweep of four runs as a function of more
    options.
    """
    for name, source in (("train", TRAINER), ("senteval", EVALUATOR)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.setattr(
        program, "_program", lambda name: [sys.executable, "-B", str(tmp_path / f"{name}.py"), name]
    )
    monkeypatch.setenv("RECORDS", str(tmp_path / "records.json"))

    def run(*more, seeds=(0, 1)):
        argv = [
            "--presets",
            CONSTANT,
            "paper",
            "--seeds",
            *map(str, seeds),
            f"--output_dir={run.folder}",
            *more,
        ]
        runs = plan(make_parser().parse_args(argv), ["--max_steps=3"])
        records = {each.folder.name: record_of(program.parse(each.options)) for each in runs}
        (tmp_path / "records.json").write_text(json.dumps(records))
        return main([*argv, "--", "--max_steps=3"])

    run.folder = tmp_path / "sweep"
    return run


def read(folder, name):
    return {file.parent.name: json.loads(file.read_text()) for file in folder.glob(f"*/{name}")}


def test_a_sweep_trains_and_evaluates_each_run_once_and_says_which_is_higher(stage, capsys):
    sts = [list(TASKS["sts"])]
    both = [*sts, list(TASKS["transfer"])]
    for options, calls in (
        ("--jobs=2", sts),
        ("--jobs=1", sts),
        ("--tasks=transfer", both),
        ("--tasks=all", both),
    ):
        assert stage(options) == 0
        found = {
            file.parent.name: [json.loads(line) for line in file.read_text().splitlines()]
            for file in stage.folder.glob("*/calls.jsonl")
        }
        assert found == {
            f"{name}-seed-{seed}": calls for seed in (0, 1) for name in (CONSTANT, "paper")
        }
        printed = capsys.readouterr().out
        assert "4 done" in printed
        difference = re.escape(f"avg (STS, Spearman x 100): paper - {CONSTANT} = +2.00 (95 % CI ")
        assert re.search(difference + r".*; 2 seeds; p = .*\): not significant\n", printed)
    logs = "".join(log.read_text() for log in (stage.folder / "logs").iterdir())
    assert set(re.findall(r"at once (\d)", logs)) <= {"1", "2"}


def test_a_failed_run_is_named_the_others_go_on_and_a_dry_run_says_what_is_left(stage, capsys):
    assert stage("--tasks=none", seeds=(9, 0)) == 1
    printed = capsys.readouterr()
    log = stage.folder / "logs" / "paper-seed-9.log"
    assert f"failed: paper-seed-9: exit code 1; log: {log}" in printed.err
    assert "2 done, 2 failed" in printed.out
    trained = {
        name for name, record in read(stage.folder, "run.json").items() if "trained" in record
    }
    assert trained == {f"{CONSTANT}-seed-0", "paper-seed-0"}
    assert stage("--dry_run", seeds=(0, 1)) == 0
    evaluated, _, trained, _ = map(shlex.split, capsys.readouterr().out.splitlines())
    assert evaluated[0] == f"{CONSTANT}-seed-0:"
    assert evaluated[5:7] == ["--model", str(stage.folder / f"{CONSTANT}-seed-0")]
    assert f"--output_dir={stage.folder / f'{CONSTANT}-seed-1'}" in trained
    assert stage("--tasks=none", "--dry_run", seeds=(0,)) == 0
    assert capsys.readouterr().out == f"{CONSTANT}-seed-0: done\npaper-seed-0: done\n"
    assert not (stage.folder / "paper-seed-1").exists()


def test_a_stopped_sweep_goes_on(stage, capsys, tmp_path):
    (tmp_path / "wait").touch()

    def stop():
        while not list(stage.folder.glob("*/up")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor() as threads:
        threads.submit(stop)
        assert stage("--tasks=none") == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; the same line goes on from there" in capsys.readouterr().err
    (tmp_path / "wait").unlink()
    assert stage("--tasks=none") == 0
    assert (
        "dystress senteval --model FOLDER" in capsys.readouterr().out
    )  # the dev set judges nothing
    resumed = [name for name, record in read(stage.folder, "run.json").items() if record["resumed"]]
    assert resumed == [f"{CONSTANT}-seed-0"]


def planned(words):
    """The options of each run by name."""
    runs = plan(make_parser().parse_args(words), ())
    return {run.folder.name: program.parse(run.options).options() for run in runs}


def test_a_table_has_every_row_with_every_seed():
    names = [*planned(["--table", "sts", "--seeds", "0", "1", "2", "1"])]
    assert names == [
        f"{row}-seed-{seed}" for seed in (0, 1, 2) for row in TABLES["sts"]
    ]  # a whole table, then another


def test_losses_are_on_top_of_the_preset_that_is_named_and_folders_have_their_names():
    losses = [
        "infonce(0.05)",
        "infonce(shifted_cosine(0.05,0.07,-0.4))",
        "infonce(shifted_cosine(0.05,0.07,0.4))",
    ]
    runs = planned(["--presets", "small", "--loss", *losses, "--seeds", "5"])
    names = (
        "infonce-0.05",
        *(f"infonce-shifted_cosine-0.05-0.07-shift={shift}" for shift in ("-0.4", "0.4")),
    )
    assert [*runs] == [f"{name}-seed-5" for name in names]
    first, second, third = runs.values()
    assert (first["loss"], third["loss"]) == (
        losses[0],
        "infonce(shifted_cosine(0.05, 0.07, shift=0.4))",
    )
    assert {name for name in first if first[name] != second[name]} == {"loss"}
    assert (first["preset"], first["pooler_type"]) == ("small", "avg")
    assert (
        len(planned(["--presets", "small", "paper", "--seeds", "0", "--different_settings"])) == 2
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [("", "nothing to run: name a --table, --presets, or a --loss"),
     ("--table sts --jobs 0", "--jobs: must be at least 1, got 0"),
     ("--table sts -- --seed=3", "--seed=3: not behind --, each run has its own"),
     ("--table sts -- --max_stepps=3", "unknown option --max_stepps (did you mean --max_steps?)"),
     ("--loss infonce(cosine(0.03))", "--loss: cosine(0.03): tau_max must be given"),
     ("--presets small paper --loss dcl(0.1)", "losses go on top of one preset, and 2 are named: small, paper"),
     ("--presets small paper", "small, paper differ in more than the loss (model_name_or_path, ")],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_runs(
    words, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert error_of(capsys, *words.split(), main=main).startswith(
        f"dystress sweep: error: {message}"
    )
    assert os.listdir(tmp_path) == []


def test_a_real_run_is_known_by_its_settings(flags, tmp_path):
    options = tuple(flag for flag in flags if not flag.startswith("--output_dir"))
    run = PlannedRun(tmp_path / "out", options, ("MiniSTS",), "mini", None)
    assert not run.is_trained()
    assert train(flags) == 0
    assert run.is_trained()
    (command,) = run.commands()
    assert command[-2:] == ["--tasks", "MiniSTS"]
    for pooler, left in (("avg", 1), (None, 0)):  # with another pooler it is not the run's
        sts = {"MiniSTS": {"spearman": 1.0}}
        write_results(tmp_path / "out", sts, "mini/sts", pooler_type=pooler)
        assert len(list(run.commands())) == left
    assert replace(run, options=(*options, "--logging_steps=7")).is_trained()
    changed = replace(run, options=(*options, "--seed=1"))
    with pytest.raises(
        UserError,
        match=r"finished run with other settings \(seed was 42, is 1\); name another folder",
    ):
        changed.is_trained()


def run_sweep(arguments, errors):
    """In a new process: a sweep with its output in a file."""
    sys.stdout = sys.stderr = Path(errors).open("a", buffering=1)  # noqa: SIM115  # for the life of the process
    sys.exit(main(arguments))


@pytest.mark.slow(90)
def test_a_sweep_that_is_killed_ends_as_if_nothing_had_happened(tiny_run, data_dir, tmp_path):
    """At random moments of training and of evaluating; the runs that it leaves behind are waited
    for.
    """
    given = [flag for flag in tiny_run if not flag.startswith("--data_dir")]
    errors, chance = tmp_path / "errors", random.Random(11)

    def words(folder):
        own = [
            "--presets",
            CONSTANT,
            "--seeds",
            "1",
            "2",
            "--suite=mini",
            "--tasks",
            "MiniSTS",
            "MiniSentiment",
        ]
        return [
            *own,
            f"--data_dir={data_dir}",
            f"--output_dir={folder}",
            "--",
            *given,
            "--save_steps=2",
        ]

    begun = time.monotonic()
    assert finish(start(words(tmp_path / "whole"), errors, run_sweep), 600) == 0, errors.read_text()
    seconds = time.monotonic() - begun
    for _ in range(int(os.environ.get("DYSTRESS_KILLS", "2"))):
        process = start(words(tmp_path / "killed"), errors, run_sweep)
        process.join(seconds * chance.random())
        process.kill()
        process.join()
    assert finish(start(words(tmp_path / "killed"), errors, run_sweep), 600) == 0, (
        errors.read_text()
    )
    for name in (f"{CONSTANT}-seed-1", f"{CONSTANT}-seed-2"):
        whole, killed = (tmp_path / each / name for each in ("whole", "killed"))
        assert outcome(whole) == outcome(killed)
        tasks, others = (
            {(each.task, tuple(each.figures.items())) for each in results_in(folder)}
            for folder in (whole, killed)
        )
        assert tasks == others
        assert not list(killed.glob(".*"))
