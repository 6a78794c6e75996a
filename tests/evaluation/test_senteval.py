"""The program: its figures against SciPy, its files, and every message."""

import itertools
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import make_sentences
from huggingface_hub import ModelCard
from sweep_runs import a_run

from dystress_text.encoders.loading import load_encoder
from dystress_text.evaluation import classifier
from dystress_text.evaluation import run as runner
from dystress_text.evaluation.run import Results, table
from dystress_text.export.card import write_card
from dystress_text.files.places import EMBEDDED
from dystress_text.report.text_page import leave_text_report
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
    draw, sentence = np.random.default_rng(0), itertools.cycle(make_sentences(301)).__next__
    (folder / "STS" / "STSBenchmark").mkdir(parents=True)
    for split, count in (("dev", 50), ("test", 1379)):
        lines = [f"m\tx\t1\t{i}\t{draw.random() * 5:.2f}\t{sentence()}\t{sentence()}\n" for i in range(count)]
        (folder / "STS" / "STSBenchmark" / f"sts-{split}.csv").write_text("".join(lines))
    (folder / "SICK").mkdir()
    lines = ["h\n", *(f"{i}\t{sentence()}\t{sentence()}\t{1 + 4 * draw.random():.1f}\tN\n" for i in range(4927))]
    (folder / "SICK" / "SICK_test_annotated.txt").write_text("".join(lines))
    return folder


def test_the_mini_suite_runs_anywhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(classifier, "MAX_EPOCHS", 8)  # the slow loop of test_classifier.py has them all
    model = EMBEDDED / "bert-mini-wiki"
    arguments = [f"--model={model}", "--pooler_type=avg", f"--output={tmp_path / 'results.json'}"]
    assert main([*arguments, "--suite=mini", "--mode=fast", "--tasks", *MINI]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert tuple(results["tasks"]) == MINI
    assert (results["complete"], results["left_out"]) == (False, {})
    spearman = results["tasks"]["MiniSTS"]["spearman"]  # test_sts.py has SciPy's
    assert results["geometry"]["spearman"] == pytest.approx(spearman, abs=0.006)
    assert results["geometry"]["set"] == "mini-STS"
    assert len(results["tasks"]["MiniQuestions"]["sha256"]["MiniQuestions/train.label"]) == 64
    assert set(results["versions"]) >= {"python", "torch", "transformers", "scipy"}
    printed = capsys.readouterr().out
    assert f"{results['tasks']['MiniQuestions']['accuracy']:.2f}" in printed


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
    page = out / "report.html"
    assert leave_text_report(out) == f"{page} shows the run."
    assert "<th>STS-B</th>" not in page.read_text()
    write_card(out, {}, load[0], 40)
    assert main([f"--model={out}", f"--data_dir={sts_folder.parent}", "--tasks", "STS-B"]) == 0
    assert f"{page} shows the run.\n{out / 'README.md'} holds the results.\n" in capsys.readouterr().out
    (result,) = ModelCard.load(out / "README.md").data.eval_results
    figure = json.loads((out / "senteval-senteval-test.json").read_text())["tasks"]["STS-B"]["spearman"]
    assert "<th>STS-B</th>" in page.read_text()
    assert f"<td>{figure:.2f}</td>" in page.read_text()
    assert (result.dataset_name, result.metric_value) == ("MTEB STSBenchmark", figure)


def test_results_stand_side_by_side_and_are_replaced_task_by_task(arguments, tmp_path, monkeypatch, capsys):
    """An entry stays until its task is finished again; those of other weights or settings go with the first new one."""

    def evaluated(seconds, *more, stop_at=None):
        def stub(task, *rest):
            if task.name == stop_at:
                raise KeyboardInterrupt
            return {"figure": 50.0, "seconds": seconds, "sha256": {}}

        monkeypatch.setattr(runner, "evaluate_task", stub)
        assert main([*arguments, "--suite=mini", *more]) == (130 if stop_at else 0)
        content = json.loads((tmp_path / "results.json").read_text())
        return {name: entry["seconds"] for name, entry in content["tasks"].items()}, content

    assert evaluated(1, "--tasks", "MiniSTS", "MiniQuestions", stop_at="MiniQuestions")[0] == {"MiniSTS": 1}
    assert "interrupted" in capsys.readouterr().err
    found, content = evaluated(2, "--tasks", "MiniQuestions")
    assert found == {"MiniSTS": 1, "MiniQuestions": 2}
    assert (content["complete"], content["averages"]) == (False, {"sts": 50.0, "transfer": None})
    found, content = evaluated(3, "--tasks", "transfer")
    assert set(found.values()) == {1, 3}
    assert (content["complete"], content["averages"]) == (True, {"sts": 50.0, "transfer": 50.0})
    before = found, content
    assert evaluated(4, stop_at="MiniSTS") == evaluated(4, "--pooler_type=cls", stop_at="MiniSTS") == before
    assert evaluated(5, "--pooler_type=cls", "--tasks", "MiniSTS")[0] == {"MiniSTS": 5}


def test_several_models_are_rows_of_one_table_with_a_file_each(tiny_bert, tmp_path, capsys):
    """A model of sentence-transformers keeps its own pooler."""
    encoder, tokenizer = load_encoder(str(tiny_bert), "avg")
    encoder.save(tmp_path / "saved", tokenizer)
    shutil.copytree(tiny_bert, tmp_path / "base")
    models, suite = [str(tmp_path / name) for name in ("base", "saved")], ["--suite=mini", "--tasks", "MiniSTS"]
    assert main(["--model", *models, "--pooler_type=cls", *suite]) == 0
    file = "senteval-mini-test.json"
    found = [json.loads((Path(model) / file).read_text()) for model in models]
    figures = [f"{each['tasks']['MiniSTS']['spearman']:.2f}" for each in found]
    assert [each["pooler_type"] for each in found] == ["cls", None]
    *before, header, base, saved = capsys.readouterr().out.strip().split("\n")
    assert [header.split(), base.split(), saved.split()] == [
        ["MiniSTS", "avg"], [models[0], figures[0], figures[0]], [models[1], figures[1], figures[1]]
    ]  # fmt: skip
    assert all(f"{model}/{file}: all results" in before for model in models)
    assert main([f"--model={models[0]}", "--pooler_type=cls", "--geometry=none", *suite]) == 0
    assert capsys.readouterr().out.split("\n")[2].split()[1:] == [figures[0]] * 2
    for wrong, said in ((["--output=x.json"], "--output: is the file of one model"), ([], "--model: '")):
        assert main(["--model", *models, *suite, *wrong]) == 2
        assert capsys.readouterr().err.startswith(f"dystress senteval: error: {said}")


BAD = [
    (["--tasks", "STS99"], ["--tasks", "STS12", "transfer"]),
    (["--data_dir", "/no/such"], ["--data_dir", "/no/such", "suite mini"]),
    (["--suite", "mini", "--engine", "original"], ["--engine", "senteval"]),
]


@pytest.mark.parametrize(("wrong", "words"), BAD, ids=lambda x: " ".join(x) if x[0].startswith("--") else "")
def test_bad_input_is_one_line(arguments, wrong, words, capsys):
    assert main([*arguments, *wrong]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dystress senteval: error: ")
    assert all(word in line for word in words), line


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package senteval: its engine answers with what it was given."""
    folder = tmp_path / "packages" / "senteval"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from senteval.engine import SE\n")
    (folder / "engine.py").write_text("""
SPEARMAN = {"STSBenchmark": 0.25, "SICKRelatedness": 0.5}

class SE:
    def __init__(self, params, batcher):
        self.params, self.batcher = params, batcher

    def eval(self, name):
        vectors = self.batcher(self.params, [["one", "two"], ["three"]])
        assert self.params["kfold"] == 10
        return {"test": {"spearman": SPEARMAN[name] * len(vectors)}}
""")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    yield
    for name in ("senteval", "senteval.engine"):
        sys.modules.pop(name)


def test_the_package_gets_its_own_names_and_is_not_our_program_of_its_name(
    package, sts_folder, tmp_path, arguments, monkeypatch
):
    """A script's folder comes first on the path, and a program named senteval lies in it."""
    monkeypatch.syspath_prepend(str(ROOT / "eval"))
    flags = [*arguments, "--engine=original", f"--data_dir={sts_folder.parent}", "--geometry=none"]
    assert main([*flags, "--tasks", "SICKRelatedness", "STSBenchmark", "STS-B"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert {name: result["figure"] for name, result in results["tasks"].items()} == {"STS-B": 50.0, "SICK-R": 100.0}


def test_years_have_rows_for_the_other_aggregations():
    year = {"spearman": 10.0, "mean": 20.0, "weighted_mean": 30.0, "subsets": {"a": 1.0, "b": 2.0}}
    results = Results({"model": "mine"}, {"STS12": year, "STS-B": {"spearman": 40.0, "subsets": {"test": 40.0}}})
    rows = [line.split() for line in table([results], ["STS12", "STS-B"], "avg of 2", {}).split("\n")]
    assert rows == [
        ["STS12", "STS-B", "avg", "of", "2"], ["mine", "10.00", "40.00", "25.00"],
        ["mean", "of", "subsets", "20.00", "40.00", "30.00"], ["weighted", "mean", "30.00", "40.00", "35.00"],
    ]  # fmt: skip
