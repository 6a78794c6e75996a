"""Sweeps: planning, running, resuming and evaluating."""

import json
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import stand_in_programs
from processes import wait_for
from sentence_transformers import SentenceTransformer
from sweep_runs import record_of, write_results

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import SUITES, TASKS
from dystress_text.programs import planned_runs
from dystress_text.programs.planned_runs import EvaluationSet, PlannedRun, plan
from dystress_text.programs.sweep import main, make_parser
from dystress_text.programs.train import main as train

CONSTANT = "sts-constant-0.05"


@pytest.fixture(autouse=True)
def prepared(tmp_path_factory, monkeypatch):
    """Prepare empty files in place of SentEval's."""
    folder = tmp_path_factory.mktemp("senteval")
    tasks = [task for group in SUITES["senteval"].values() for task in group]
    for name in (name for task in tasks for name in task.files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    real = planned_runs.suite_folder("mini")
    monkeypatch.setattr(
        planned_runs, "suite_folder", lambda suite, _: real if suite == "mini" else folder
    )
    return folder


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Return a function that sweeps two presets, by stand-ins for the real programs."""
    program = [sys.executable, "-B", stand_in_programs.__file__]
    monkeypatch.setattr(planned_runs, "_program", lambda name: [*program, name])
    monkeypatch.setattr(
        planned_runs, "save_untrained", lambda _, folder: folder.mkdir(exist_ok=True)
    )
    monkeypatch.setattr(planned_runs, "load_model", lambda *_: (None, {"weights": "w"}))

    def run(*more, seeds=(0, 1)):
        argv = ["--presets", CONSTANT, "paper", "--seeds", *map(str, seeds)]
        argv += [f"--output_dir={run.folder}", *more]
        runs = plan(make_parser().parse_args(argv), ["--max_steps=3"])
        records = {each.folder.name: record_of(planned_runs.parse(each.options)) for each in runs}
        (tmp_path / "records.json").write_text(json.dumps(records))
        return main([*argv, "--", "--max_steps=3"])

    run.folder = tmp_path / "sweep"
    return run


def test_each_run_once(sweep, capsys):
    sts = list(TASKS["sts"])
    transfer = list(TASKS["transfer"])
    names = [f"{name}-seed-{seed}" for seed in (0, 1) for name in (CONSTANT, "paper")]
    for options, calls in (([], [sts]), ([], [sts]), (["--tasks=all"], [sts, transfer])):
        assert sweep(*options) == 0
        for name in ("untrained", *names):
            lines = (sweep.folder / name / "calls.jsonl").read_text().splitlines()
            assert list(map(json.loads, lines)) == calls
        printed = capsys.readouterr().out
        assert "4 done, 0 failed" in printed
        answer = "Of the trained models paper scores highest on avg (STS, Spearman x 100): 72.0 ("
        assert f"\n{answer}" in printed
        for other, lead in ((CONSTANT, 2.0), ("untrained", 2.0), ("TF-IDF/BM25", 3.0)):
            assert f"paper - {other}: +{lead} (" in printed


def test_failed_run_and_dry_run(sweep, capsys):
    assert sweep("--tasks=none", seeds=(9, 0)) == 1
    printed = capsys.readouterr()
    log = sweep.folder / "logs" / "paper-seed-9.log"
    (line,) = [line for line in printed.err.splitlines() if str(log) in line]
    assert "seed 9 is not liked" in line
    assert "2 done, 2 failed" in printed.out
    assert sweep("--dry_run", seeds=(0, 1)) == 0
    evaluated, _, trained, _ = map(shlex.split, capsys.readouterr().out.splitlines())
    assert evaluated[0] == f"{CONSTANT}-seed-0:"
    assert evaluated[5:7] == ["--model", str(sweep.folder / f"{CONSTANT}-seed-0")]
    assert f"--output_dir={sweep.folder / f'{CONSTANT}-seed-1'}" in trained
    assert sweep("--tasks=none", "--dry_run", seeds=(0,)) == 0
    assert capsys.readouterr().out == f"{CONSTANT}-seed-0: done\npaper-seed-0: done\n"
    assert not (sweep.folder / "paper-seed-1").exists()


def test_interrupted_sweep_continues(sweep, capsys, tmp_path):
    (tmp_path / "wait").touch()

    def stop():
        wait_for(lambda: list(sweep.folder.glob("*/waiting")))
        os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor() as threads:
        threads.submit(stop)
        assert sweep("--tasks=none") == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in capsys.readouterr().err
    (tmp_path / "wait").unlink()
    assert sweep("--tasks=none") == 0
    assert "No comparison on a test set" in capsys.readouterr().out
    records = {
        file.parent.name: json.loads(file.read_text()) for file in sweep.folder.glob("*/run.json")
    }
    assert [name for name in records if records[name]["resumed"]] == [f"{CONSTANT}-seed-0"]


def test_losses_and_folders():
    losses = ["infonce(0.05)", "infonce(shifted_cosine(0.05,0.07,-0.4))"]
    argv = ["--presets", "small", "--seeds", "5", "5", "--loss", *losses]
    runs = plan(make_parser().parse_args(argv), ())
    first, second = (planned_runs.parse(run.options).options() for run in runs)
    names = [run.folder.name for run in runs]
    assert names == ["infonce-0.05-seed-5", "infonce-shifted_cosine-0.05-0.07-shift=-0.4-seed-5"]
    assert {name for name in first if first[name] != second[name]} == {"loss"}
    assert (first["preset"], first["seed"], first["loss"]) == ("small", 5, losses[0])


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("", "--table"),
        ("--table sts -- --seed=3", "--seed=3"),
        ("--presets small paper --loss dcl(0.1)", "--loss"),
        ("--presets own-text --pairs none.csv", "--pairs"),
        ("--presets own-text --loss dcl(0.1) --baseline dcl(9)", "--baseline"),
        ("--presets own-text --output_dir . -- --train_file none.txt", "--train_file"),
        ("--presets own-text --tasks MR", "--data_dir"),
    ],
)
def test_invalid_command_lines(argv, name, tmp_path, monkeypatch, capsys, prepared):
    monkeypatch.chdir(tmp_path)
    (prepared / "MR" / "rt-polarity.neg").unlink()
    assert main(argv.split()) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("dystress sweep: error: ")
    assert name in last
    assert not list(tmp_path.glob("*/run.json"))


def test_finished_run_with_other_settings(flags, tmp_path):
    options = tuple(flag for flag in flags if not flag.startswith("--output_dir"))
    sets = [EvaluationSet("--tasks", "MiniSTS", "MiniSTS")]
    run = PlannedRun(tmp_path / "out", sets, (), options)
    assert not run.is_trained()
    assert train([*flags, "--eval_set=none"]) == 0
    run = replace(run, options=(*options, "--eval_set=none"))
    assert run.is_trained()
    # figures of another pooler or in the fast mode do not count
    for other, left in (({"pooler_type": "avg"}, 1), ({"mode": "fast"}, 1), ({}, 0)):
        sts = {"MiniSTS": {"spearman": 1.0}}
        write_results(tmp_path / "out", sts, "mini/sts", **other)
        assert len(list(run.commands())) == left
    with pytest.raises(UserError, match="seed was 42, is 1"):
        replace(run, options=(*run.options, "--seed=1")).is_trained()


def test_figures_on_other_content_of_a_task_are_measured_again(tmp_path, monkeypatch):
    prepared = tmp_path / "senteval"
    shutil.copytree(planned_runs.suite_folder("mini", None), prepared)
    monkeypatch.setattr(planned_runs, "suite_folder", lambda *_: prepared)
    own = tmp_path / "own.csv"
    own.write_text("sentence1,sentence2,score\none,two,1\nthree,four,4.1\n")
    argv = ["--presets", CONSTANT, "--seeds", "0", f"--output_dir={tmp_path / 'out'}"]
    argv += ["--suite=mini", "--tasks", "MiniSTS", "--pairs", str(own)]
    parsed = make_parser().parse_args(argv)
    (run,) = plan(parsed, ())
    run.folder.mkdir(parents=True)
    for each, group in zip(run.sets, ("mini/sts", "pairs"), strict=True):
        entry = {"spearman": 1.0, "sha256": each.checksum}
        write_results(run.folder, {each.name: entry}, group, weights="w")
    everything = ["--tasks", "MiniSTS", "--pairs", str(own)]
    assert replace(run, weights="w")._missing() == []
    assert replace(run, weights="other")._missing() == everything
    for file in (prepared / "STS" / "MiniSTS" / "mini-sts.csv", own):
        file.write_text(file.read_text().replace("4.1", "0.1"))
    (run,) = plan(parsed, ())
    assert run._missing() == everything


class ShortRun:
    """A run whose process takes a moment, and locks no folder yet."""

    CODE = "import time; print('start', flush=True); time.sleep(1); print('end', flush=True)"

    def __init__(self, folder):
        self.folder = folder

    def commands(self):
        yield [sys.executable, "-c", self.CODE, "train"]


def test_waits_for_a_process_that_a_killed_sweep_left(tmp_path):
    pytest.importorskip("fcntl")
    run = ShortRun(tmp_path / "run")
    log = tmp_path / "run.log"
    killed = multiprocessing.get_context("fork").Process(
        target=planned_runs.run_all, args=([run], tmp_path)
    )
    killed.start()
    wait_for(lambda: log.is_file() and "start\n" in log.read_text(), killed)
    killed.kill()
    killed.join()
    assert planned_runs.run_all([run], tmp_path) == []
    lines = [line for line in log.read_text().splitlines() if line in ("start", "end")]
    assert lines == ["start", "end"] * 2


def test_the_untrained_model_has_the_names_of_every_saved_model(tiny_run, tmp_path):
    settings = planned_runs.parse([*tiny_run, "--mlp_only_train=no", "--eval_set=none"])
    planned_runs.save_untrained(settings, tmp_path)
    first, *_ = json.loads((tmp_path / "modules.json").read_text())
    assert first["type"] == "sentence_transformers.models.Transformer"


def test_the_untrained_model_of_own_text_has_its_first_vectors(text_file, tmp_path):
    options = ["--preset=own-text", f"--train_file={text_file}", "--dim=8"]
    planned_runs.save_untrained(planned_runs.parse(options), tmp_path)
    assert SentenceTransformer(str(tmp_path), device="cpu").encode("the cat").any()
