"""The program: its figures against SciPy, its files, and every message."""

import csv
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import VOCABULARY
from page_cases import a_run
from scipy import stats

from dystress_text.encoders.loading import load_encoder
from dystress_text.evaluation import classifier
from dystress_text.evaluation import run as runner
from dystress_text.evaluation.original import import_senteval
from dystress_text.evaluation.run import SentEvalSettings, run
from dystress_text.files.places import EMBEDDED
from dystress_text.report.text_page import write_text_report
from dystress_text.senteval import main

ROOT = Path(__file__).resolve().parents[2]
MINI = ("MiniSTS", "MiniQuestions")


@pytest.fixture
def arguments(tiny_bert, tmp_path):
    return [f"--model={tiny_bert}", "--pooler_type=avg", f"--output={tmp_path / 'results.json'}"]


@pytest.fixture
def sts_folder(tmp_path):
    """A data folder with a small STS-B and SICK of the right counts, and STS12 without one subset."""
    folder = tmp_path / "data" / "senteval"
    draw = np.random.default_rng(0)
    words = VOCABULARY.split()

    def sentence():
        return " ".join(draw.choice(words, size=draw.integers(3, 9)))

    (folder / "STS" / "STSBenchmark").mkdir(parents=True)
    for split, count in (("dev", 50), ("test", 1379)):
        lines = [f"m\tx\t1\t{i}\t{draw.random() * 5:.2f}\t{sentence()}\t{sentence()}\n" for i in range(count)]
        (folder / "STS" / "STSBenchmark" / f"sts-{split}.csv").write_text("".join(lines))
    (folder / "SICK").mkdir()
    lines = ["h\n", *(f"{i}\t{sentence()}\t{sentence()}\t{1 + 4 * draw.random():.1f}\tN\n" for i in range(4927))]
    (folder / "SICK" / "SICK_test_annotated.txt").write_text("".join(lines))
    return folder


def literal_spearman(file, model):
    encoder, tokenizer = load_encoder(str(model), "avg")
    with open(file, newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    first, second = (encoder.encode([row[k] for row in rows], tokenizer).double().numpy() for k in (5, 6))
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    return 100 * stats.spearmanr(cosines, [float(row[4]) for row in rows]).statistic


def test_the_mini_suite_runs_anywhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(classifier, "MAX_EPOCHS", 8)  # the slow loop of test_classifier.py has them all
    states = np.random.get_state()[1].copy(), torch.get_rng_state()
    model = EMBEDDED / "bert-mini-wiki"
    arguments = [f"--model={model}", "--pooler_type=avg", f"--output={tmp_path / 'results.json'}"]
    assert main([*arguments, "--suite=mini", "--mode=fast", "--tasks", *MINI]) == 0
    assert np.array_equal(np.random.get_state()[1], states[0])
    assert torch.equal(torch.get_rng_state(), states[1])
    results = json.loads((tmp_path / "results.json").read_text())
    assert tuple(results["tasks"]) == MINI
    assert results["complete"]
    assert results["left_out"] == {}
    spearman = literal_spearman(EMBEDDED / "senteval/STS/MiniSTS/mini-sts.csv", model)
    assert results["tasks"]["MiniSTS"]["spearman"] == pytest.approx(spearman, abs=0.006)  # two decimals
    assert results["geometry"]["spearman"] == pytest.approx(spearman, abs=1e-3)
    assert results["geometry"]["set"] == "mini-STS"
    accuracies = [results["tasks"][name]["accuracy"] for name in MINI[1:]]
    assert results["averages"]["transfer"] == pytest.approx(np.mean(accuracies), abs=0.006)
    assert len(results["tasks"]["MiniQuestions"]["sha256"]["MiniQuestions/train.label"]) == 64
    assert set(results["versions"]) >= {"python", "torch", "transformers", "scipy"}
    printed = capsys.readouterr().out
    assert f"{accuracies[0]:.2f}" in printed


def test_missing_tasks_are_marked_and_nothing_is_averaged(arguments, sts_folder, tmp_path, capsys):
    (sts_folder / "STS" / "STS13-en-test").mkdir()
    flags = [*arguments, f"--data_dir={sts_folder.parent}", "--tasks", "STS13", "STS-B", "SICK-R"]
    assert main([*flags, "--compare"]) == 1
    captured = capsys.readouterr()
    header, mine, simcse, *_ = (line.split() for line in captured.out.strip().split("\n"))
    assert header == ["STS13", "STS-B", "SICK-R", "avg", "of", "3"]
    assert mine[1] == "missing"
    assert mine[-1] == "-"
    assert simcse == ["SimCSE", "(published)", "82.41", "76.85", "72.23", "77.16"]
    assert "STS13 left out: cannot read" in captured.err
    assert "STS-B dev, " in captured.out
    assert captured.out.endswith("results.json: results except STS13\n")
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["complete"], results["averages"]["sts"]) == (False, None)
    assert set(results["tasks"]) == {"STS-B", "SICK-R"}


def test_the_page_of_a_run_takes_the_results_up(tiny_bert, sts_folder, tmp_path, capsys):
    out = a_run(tmp_path, tasks=())
    load = load_encoder(str(tiny_bert), "avg")
    load[0].save(out, load[1])
    page = write_text_report(out)
    assert "<th>STS-B</th>" not in page.read_text()
    assert main([f"--model={out}", f"--data_dir={sts_folder.parent}", "--tasks", "STS-B"]) == 0
    assert f"{page} shows the run." in capsys.readouterr().out
    figure = json.loads((out / "senteval-senteval-test.json").read_text())["tasks"]["STS-B"]["spearman"]
    assert "<th>STS-B</th>" in page.read_text()
    assert f"<td>{figure:.2f}</td>" in page.read_text()


def test_finished_tasks_are_kept_when_a_later_one_fails(arguments, sts_folder, tmp_path, monkeypatch, capsys):
    whole = runner.evaluate_task

    def interrupted(task, *rest):
        if task.name == "SICK-R":
            raise KeyboardInterrupt
        return whole(task, *rest)

    monkeypatch.setattr(runner, "evaluate_task", interrupted)
    assert main([*arguments, f"--data_dir={sts_folder.parent}", "--tasks", "STS-B", "SICK-R"]) == 130
    assert "interrupted" in capsys.readouterr().err
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["tasks"]) == ["STS-B"]
    assert not results["complete"]


BAD = [
    (["--tasks", "STS99"], ["--tasks", "STS12", "transfer"]),
    (["--suite", "tiny"], ["--suite", "mini"]),
    (["--suite", "mini", "--model", "/no/such"], ["/no/such"]),
    (["--data_dir", "/no/such"], ["--data_dir", "/no/such", "suite mini"]),
    (["--batch_size", "0"], ["--batch_size", "at least 1"]),
    (["--suite", "mini", "--output", "/proc/no/results.json"], ["--output", "/proc/no"]),
    (["--suite", "mini", "--engine", "original"], ["--engine", "senteval"]),
    (["--task_set", "full"], ["--tasks"]),
]


@pytest.mark.parametrize(("wrong", "words"), BAD, ids=lambda x: " ".join(x) if x[0].startswith("--") else "")
def test_bad_input_is_one_line(arguments, wrong, words, capsys):
    assert main([*arguments, *wrong]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dystress senteval: error: ")
    assert all(word in line for word in words), line


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package senteval laid out like the real one: submodules that import each other by their whole names."""
    files = {
        "__init__.py": "from senteval.engine import SE\n",
        "utils.py": "class dotdict(dict):\n    __getattr__ = dict.get\n",
        "tools/__init__.py": "",
        "tools/validation.py": "from senteval import utils\nimport senteval.engine\n",
        "engine.py": """
from senteval import utils

SPEARMAN = {"STSBenchmark": 0.25, "SICKRelatedness": 0.5}

class SE:
    def __init__(self, params, batcher):
        self.params, self.batcher = utils.dotdict(params), batcher

    def eval(self, name):
        from senteval.tools.validation import utils as the_same
        assert the_same is utils
        vectors = self.batcher(self.params, [["one", "two"], ["three"]])
        return {"acc": 100.0 * vectors.shape[0] + self.params.kfold, "test": {"spearman": SPEARMAN.get(name)}}
""",
    }
    for name, content in files.items():
        file = tmp_path / "packages" / "senteval" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    for name in [name for name in sys.modules if name.split(".")[0] == "senteval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "senteval"]:
        sys.modules.pop(name)


def test_the_package_is_imported_once_for_all_tasks(package, arguments, tmp_path, monkeypatch):
    """A script's folder comes first on the path, and a program named senteval lies in it and may be loaded."""
    monkeypatch.syspath_prepend(str(ROOT / "eval"))
    monkeypatch.setitem(sys.modules, "senteval", types.ModuleType("senteval"))
    tasks = ["--tasks", "MiniQuestions", "MiniParaphrase"]
    assert main([*arguments, "--suite=mini", "--engine=original", *tasks]) == 0
    found = json.loads((tmp_path / "results.json").read_text())["tasks"]
    assert {name: result["figure"] for name, result in found.items()} == dict.fromkeys(tasks[1:], 210.0)
    assert import_senteval() is import_senteval()


def test_the_packages_own_names_reach_it(package, sts_folder, tmp_path, arguments):
    flags = [*arguments, "--engine=original", f"--data_dir={sts_folder.parent}", "--geometry=none"]
    assert main([*flags, "--tasks", "SICKRelatedness", "STSBenchmark", "STS-B"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["asked"] == ["SICK-R", "STS-B"]
    assert {name: result["figure"] for name, result in results["tasks"].items()} == {"STS-B": 25.0, "SICK-R": 50.0}


def test_years_have_rows_for_the_other_aggregations(shared, tiny_bert, tmp_path, capsys):
    data = shared / "data"
    if not (data / "senteval" / "STS" / "STS12-en-test").is_dir():
        pytest.skip("no STS12")
    settings = SentEvalSettings(
        str(tiny_bert), "avg", ["STS12"], data_dir=str(data), geometry="none", output=tmp_path / "results.json"
    )
    result = run(settings).tasks["STS12"]
    rows = [line.split() for line in capsys.readouterr().out.strip().split("\n")]
    assert rows[2] == ["mean", "of", "subsets", f"{result.mean:.2f}", f"{result.mean:.2f}"]
    assert rows[3] == ["weighted", "mean", f"{result.weighted_mean:.2f}", f"{result.weighted_mean:.2f}"]
