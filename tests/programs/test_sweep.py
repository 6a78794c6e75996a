"""Sweeps: planning, running, resuming and evaluating."""

import csv
import html
import json
import lzma
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from processes import start, wait_for
from sentence_transformers import SentenceTransformer
from sweep_runs import record_of, write_results

from dystress_text.analysis.finished_run import as_folder
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import SUITES, TASKS
from dystress_text.evaluation.results import results_in
from dystress_text.programs import planned_runs as program
from dystress_text.programs.planned_runs import EvaluationSet, PlannedRun, plan
from dystress_text.programs.sweep import main, make_parser
from dystress_text.programs.train import main as train

# a stand-in for train.py: fails for seed 9, waits if a file says so, else trains in no time
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
    record |= {"state": "finished", "trained": {"sts_b_dev_spearman": 1.0}}
    (out / "run.json").write_text(json.dumps(record))
"""
EVALUATOR = """
    import json, sys
    from pathlib import Path
    words = sys.argv[1:]
    model, suite = (words[words.index(name) + 1] for name in ("--model", "--suite"))
    name = model
    if "--output" in words:
        model = str(Path(words[words.index("--output") + 1]).parent)
        Path(model).mkdir(exist_ok=True)
    tasks, kinds = words[words.index("--tasks") + 1:], {"spearman": "sts", "accuracy": "transfer"}
    with (Path(model) / "calls.jsonl").open("a") as file:
        file.write(json.dumps(tasks) + chr(10))
    with (Path(model) / "results.jsonl").open("a") as file:
        for task in tasks:
            metric = "spearman" if task.startswith(("STS", "SICK")) else "accuracy"
            line = {"model": name, "weights": "w", "group": f"{suite}/{kinds[metric]}", "task": task, "data": "d",
                    "figures": {metric: 70.0 + 2 * ("paper" in model)},
                    "lexical": {metric: 69.0} if metric == "spearman" else {},
                    "settings": {"mode": "test", "dtype": "fp32", "pooler_type": None}}
            file.write(json.dumps(line) + chr(10))
"""
CONSTANT = "sts-constant-0.05"


@pytest.fixture(autouse=True)
def prepared(tmp_path_factory, monkeypatch):
    """Prepare empty files in place of SentEval's."""
    folder = tmp_path_factory.mktemp("senteval")
    for tasks in SUITES["senteval"].values():
        for file in (folder / name for task in tasks for name in task.files):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    real = program.suite_folder
    monkeypatch.setattr(
        program, "suite_folder", lambda suite, at: real(suite, at) if suite == "mini" else folder
    )
    return folder


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Return a function that sweeps four runs with stand-ins for the real programs."""
    for name, source in (("train", TRAINER), ("evaluate", EVALUATOR)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.setattr(
        program, "_program", lambda name: [sys.executable, "-B", str(tmp_path / f"{name}.py"), name]
    )
    monkeypatch.setenv("RECORDS", str(tmp_path / "records.json"))
    monkeypatch.setattr(
        program, "save_untrained", lambda settings, folder: folder.mkdir(exist_ok=True)
    )
    monkeypatch.setattr(program, "load_model", lambda folder, pooler: (None, {"weights": "w"}))

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


def test_each_run_once(stage, capsys):
    sts = [list(TASKS["sts"])]
    transfer = [list(TASKS["transfer"])]
    for options, calls in (([], sts), ([], sts), (["--tasks=all"], sts + transfer)):
        assert stage(*options) == 0
        found = {}
        for file in stage.folder.glob("*/calls.jsonl"):
            found[file.parent.name] = list(map(json.loads, file.read_text().splitlines()))
        names = [f"{name}-seed-{seed}" for seed in (0, 1) for name in (CONSTANT, "paper")]
        assert found == dict.fromkeys(["untrained", *names], calls)
        printed = capsys.readouterr().out
        assert "4 done, 0 failed" in printed
        where = "avg (STS, Spearman x 100)"
        answer = f"Of the trained models paper scores highest on {where}: 72.0 ("
        assert f"\n{answer}" in printed
        for other, lead in ((CONSTANT, 2.0), ("untrained", 2.0), ("TF-IDF/BM25", 3.0)):
            assert f"paper - {other}: +{lead} (" in printed
    logs = "".join(log.read_text() for log in (stage.folder / "logs").iterdir())
    assert set(re.findall(r"at once (\d)", logs)) == {"1"}


def test_failed_run_and_dry_run(stage, capsys):
    assert stage("--tasks=none", seeds=(9, 0)) == 1
    printed = capsys.readouterr()
    log = stage.folder / "logs" / "paper-seed-9.log"
    (line,) = [line for line in printed.err.splitlines() if str(log) in line]
    assert "seed 9 is not liked" in line
    assert "2 done, 2 failed" in printed.out
    assert stage("--dry_run", seeds=(0, 1)) == 0
    evaluated, _, trained, _ = map(shlex.split, capsys.readouterr().out.splitlines())
    assert evaluated[0] == f"{CONSTANT}-seed-0:"
    assert evaluated[5:7] == ["--model", str(stage.folder / f"{CONSTANT}-seed-0")]
    assert f"--output_dir={stage.folder / f'{CONSTANT}-seed-1'}" in trained
    assert stage("--tasks=none", "--dry_run", seeds=(0,)) == 0
    assert capsys.readouterr().out == f"{CONSTANT}-seed-0: done\npaper-seed-0: done\n"
    assert not (stage.folder / "paper-seed-1").exists()


def test_interrupted_sweep_continues(stage, capsys, tmp_path):
    (tmp_path / "wait").touch()

    def stop():
        while not list(stage.folder.glob("*/up")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor() as threads:
        threads.submit(stop)
        assert stage("--tasks=none") == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in capsys.readouterr().err
    (tmp_path / "wait").unlink()
    assert stage("--tasks=none") == 0
    assert "No comparison on a test set" in capsys.readouterr().out
    resumed = [name for name, record in read(stage.folder, "run.json").items() if record["resumed"]]
    assert resumed == [f"{CONSTANT}-seed-0"]


def test_losses_and_folders():
    losses = ["infonce(0.05)", "infonce(shifted_cosine(0.05,0.07,-0.4))"]
    argv = ["--presets", "small", "--seeds", "5", "5", "--loss", *losses]
    runs = plan(make_parser().parse_args(argv), ())
    first, second = (program.parse(run.options).options() for run in runs)
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
    shutil.copytree(program.suite_folder("mini", None), prepared)
    monkeypatch.setattr(program, "suite_folder", lambda *_: prepared)
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


def run_alone(run, logs):
    """In a new process: run the commands of one run."""
    program.run_all([run], Path(logs))


class Commands:
    """A run whose process takes a moment, and locks no folder yet."""

    CODE = "import sys, time; print('start', flush=True); time.sleep(1.5); print('end', flush=True)"

    def __init__(self, folder):
        self.folder = folder

    def commands(self):
        yield [sys.executable, "-c", self.CODE, "train"]


def test_waits_for_a_process_that_has_only_begun(tmp_path):
    pytest.importorskip("fcntl")
    run = Commands(tmp_path / "run")
    log = tmp_path / "run.log"
    killed = start(run, tmp_path, run_alone)
    wait_for(lambda: log.is_file() and "start\n" in log.read_text(), killed)
    killed.kill()
    killed.join()
    assert program.run_all([run], tmp_path) == []
    said = [line for line in log.read_text().splitlines() if line in ("start", "end")]
    assert said == ["start", "end"] * 2


def test_the_untrained_model_has_the_names_of_every_saved_model(tiny_run, tmp_path):
    settings = program.parse([*tiny_run, "--mlp_only_train=no", "--eval_set=none"])
    program.save_untrained(settings, tmp_path / "untrained")
    types = [each["type"] for each in json.loads((tmp_path / "untrained/modules.json").read_text())]
    assert types[0] == "sentence_transformers.models.Transformer"


def test_the_untrained_model_of_own_text_has_its_first_vectors(text_file, tmp_path):
    options = ["--preset=own-text", f"--train_file={text_file}", "--dim=8"]
    program.save_untrained(program.parse(options), tmp_path)
    assert SentenceTransformer(str(tmp_path), device="cpu").encode("the cat").any()


@pytest.mark.slow(120)
def test_three_temperatures_on_own_pairs(shared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = shared / "data"
    with lzma.open(data / "wiki_paragraphs.txt.xz", "rt", encoding="utf-8") as lines:
        Path("mine.txt").write_text("".join(islice(lines, 500)), encoding="utf-8")
    stsb = (data / "senteval/STS/STSBenchmark/sts-dev.csv").read_text(encoding="utf-8")
    with Path("pairs.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["sentence1", "sentence2", "score"])
        for line in stsb.splitlines()[:500]:
            cells = line.split("\t")
            table.writerow([cells[5], cells[6], cells[4]])
    losses = ["dcl(0.05)", "dcl(0.1)", "dcl(0.2)"]
    argv = ["--presets", "own-text", "--loss", *losses, "--pairs", "pairs.csv", "--seeds", "0"]
    argv += ["--output_dir", "compared", "--", "--train_file", "mine.txt", "--max_steps", "3"]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    figures = {}
    for loss in losses:
        (result,) = results_in(Path("compared") / f"{as_folder(loss)}-seed-0")
        assert result.details["pairs"] == 500
        figures[loss] = result.figures["spearman"]
    page = html.unescape(Path("compared/report.html").read_text())
    (answer,) = re.findall(r"</h1>\n<p>(.*?)</p>", page)
    assert answer in printed
    assert answer.count("; 500 pairs") == 2
    best = answer.split()[4]
    assert figures[best] == pytest.approx(max(figures.values()), abs=0.01)
    assert f"{best} scores highest on pairs (Own pairs, Spearman x 100)" in answer
    assert main(argv) == 0  # nothing is left to do
    assert "evaluate\n" not in capsys.readouterr().out
