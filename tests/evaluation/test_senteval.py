"""The program: its figures against SciPy, its files, and every message."""

import itertools
import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import make_sentences
from datasets import Dataset
from huggingface_hub import ModelCard
from model_cases import build_model
from scipy import stats
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from sweep_runs import a_run

import dystress_text as dt
from dystress_text.analysis.text_page import leave_text_report
from dystress_text.errors import UserError
from dystress_text.evaluation import classifier
from dystress_text.evaluation import run as runner
from dystress_text.evaluation.readers import COLUMNS
from dystress_text.evaluation.results import read_results, results_in
from dystress_text.export.card import write_card
from dystress_text.io.paths import EMBEDDED
from dystress_text.models.loading import save_model
from dystress_text.programs.senteval import main
from dystress_text.programs.train import main as train
from dystress_text.training.run_record import RunRecord

MINI = ("MiniSTS", "MiniQuestions")


@pytest.fixture
def arguments(tiny_bert, tmp_path):
    return [f"--model={tiny_bert}", "--pooler_type=avg", f"--output={tmp_path / 'results.jsonl'}"]


@pytest.fixture
def sts_folder(tmp_path):
    """A data folder with a small STS-B and SICK of the right counts, and STS12 without one subset."""
    folder = tmp_path / "data" / "senteval"
    draw, sentence = np.random.default_rng(0), itertools.cycle(make_sentences(301)).__next__
    (folder / "STS" / "STSBenchmark").mkdir(parents=True)
    for split, count in (("dev", 50), ("test", 1379)):
        lines = [
            f"m\tx\t1\t{i}\t{draw.random() * 5:.2f}\t{sentence()}\t{sentence()}\n"
            for i in range(count)
        ]
        (folder / "STS" / "STSBenchmark" / f"sts-{split}.csv").write_text("".join(lines))
    (folder / "SICK").mkdir()
    lines = [
        "h\n",
        *(
            f"{i}\t{sentence()}\t{sentence()}\t{1 + 4 * draw.random():.1f}\tN\n"
            for i in range(4927)
        ),
    ]
    (folder / "SICK" / "SICK_test_annotated.txt").write_text("".join(lines))
    return folder


def test_the_mini_suite_runs_anywhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        classifier, "MAX_EPOCHS", 8
    )  # the slow loop of test_classifier.py has them all
    arguments = [
        f"--model={EMBEDDED / 'bert-mini-wiki'}",
        "--pooler_type=avg",
        f"--output={tmp_path / 'results.jsonl'}",
    ]
    assert main([*arguments, "--suite=mini", "--mode=fast", "--tasks", *MINI]) == 0
    results = read_results(tmp_path / "results.jsonl")
    assert [(result.group, result.task) for result in results] == [
        ("mini/sts", "MiniSTS"),
        ("mini/transfer", "MiniQuestions"),
        ("mini/geometry", "mini-STS"),
    ]
    sts, questions, geometry = results
    assert geometry.figures["spearman"] == pytest.approx(sts.figures["spearman"], abs=0.006)
    assert all(len(result.data) == len(result.weights) == 64 for result in results)
    assert set(questions.versions) >= {"python", "torch", "transformers", "scipy"}
    assert questions.settings["mode"] == "fast"
    written = datetime.fromisoformat(questions.time)
    assert abs(datetime.now(UTC) - written) < timedelta(minutes=5)
    assert f"{questions.figures['accuracy']:.2f}" in capsys.readouterr().out


def test_missing_tasks_are_marked_and_nothing_is_averaged(arguments, sts_folder, tmp_path, capsys):
    (sts_folder / "STS" / "STS13-en-test").mkdir()
    flags = [*arguments, f"--data_dir={sts_folder.parent}", "--tasks", "STS13", "STS-B", "SICK-R"]
    assert main([*flags, "--compare"]) == 1
    captured = capsys.readouterr()
    table = captured.out.partition("\n\n")[2]
    header, mine, lexical, simcse, *_ = (line.split() for line in table.split("\n"))
    assert header == ["STS13", "STS-B", "SICK-R", "avg", "of", "3"]
    assert mine[1] == "missing"
    assert mine[-1] == "-"
    assert lexical[:2] == ["lexical", "missing"]
    assert simcse == ["SimCSE", "(published)", "82.41", "76.85", "72.23", "77.16"]
    assert "STS13 left out: cannot read" in captured.err
    assert "STS-B dev uniformity" in captured.out
    assert captured.out.endswith("results.jsonl: results except STS13\n")
    results = read_results(tmp_path / "results.jsonl")
    assert [result.task for result in results] == ["STS-B", "SICK-R", "STS-B dev"]


def test_page_and_card_of_a_run_take_the_results_up(tiny_bert, sts_folder, tmp_path, capsys):
    out = a_run(tmp_path, tasks=())
    model = build_model("bert", "avg")
    save_model(model, out)
    page = out / "report.html"
    assert leave_text_report(out) == f"{page} shows the run."
    assert "<th>STS-B</th>" not in page.read_text()
    write_card(out, RunRecord(), model)
    assert main([f"--model={out}", f"--data_dir={sts_folder.parent}", "--tasks", "STS-B"]) == 0
    assert (
        f"{page} shows the run.\n{out / 'README.md'} holds the results.\n"
        in capsys.readouterr().out
    )
    (result,) = ModelCard.load(out / "README.md").data.eval_results
    figure = results_in(out)[0].figures["spearman"]
    assert "<th>STS-B</th>" in page.read_text()
    assert f"<td>{figure:.2f}</td>" in page.read_text()
    assert (result.dataset_name, result.metric_value) == ("MTEB STSBenchmark", figure)


def test_the_card_has_the_newest_results_of_the_weights_as_they_are_loaded(
    tiny_bert, sts_folder, tmp_path, capsys
):
    out = tmp_path / "out"
    model = build_model("bert", "avg")
    save_model(model, out)
    write_card(out, RunRecord(), model)
    (out / "run.json").write_text("{}")
    arguments = [f"--model={out}", f"--data_dir={sts_folder.parent}", "--geometry=none"]

    def after(*tasks, more=()):
        assert main([*arguments, *more, "--tasks", *tasks]) == 0
        return {each.dataset_name for each in ModelCard.load(out / "README.md").data.eval_results}

    card = after("STS-B", "SICK-R")
    assert after("STS-B", more=["--pooler_type=cls"]) == card
    model[0].model.get_input_embeddings().weight.data[5:] += 1
    save_model(model, out)
    assert after("STS-B") == {"MTEB STSBenchmark"}
    found = [(each.task, each.settings["pooler_type"]) for each in results_in(out)]
    assert found == [("STS-B", None), ("SICK-R", None), ("STS-B", "cls"), ("STS-B", None)]
    capsys.readouterr()
    file = out / "results.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"model": ')
    assert main([*arguments, "--tasks", "STS-B"]) == 2
    error = capsys.readouterr().err
    assert (f"{file}: line 5 " in error, error.count("\n")) == (True, 1)
    assert file.read_text() == whole + '{"model": '


def test_what_was_finished_stays_when_a_task_is_interrupted(
    arguments, tmp_path, monkeypatch, capsys
):
    def stub(task, *rest, mode):
        if task.name == "MiniQuestions":
            raise KeyboardInterrupt
        return {"spearman": 50.0, "sha256": {}}

    monkeypatch.setattr(runner, "evaluate_task", stub)
    assert main([*arguments, "--suite=mini", "--tasks", *MINI]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert [each.task for each in read_results(tmp_path / "results.jsonl")] == ["MiniSTS"]


def test_several_models_are_rows_of_one_table(tiny_bert, tmp_path, capsys):
    """A model of sentence-transformers keeps its own pooler."""
    save_model(build_model("bert", "avg"), tmp_path / "saved")
    shutil.copytree(tiny_bert, tmp_path / "base")
    for name in ("base", "saved"):
        (tmp_path / name / "run.json").write_text("{}")
    models, suite = (
        [str(tmp_path / name) for name in ("base", "saved")],
        ["--suite=mini", "--tasks", "MiniSTS"],
    )
    assert main(["--model", *models, "--pooler_type=cls", *suite]) == 0
    results = [results_in(Path(model))[0] for model in models]
    assert [result.settings["pooler_type"] for result in results] == ["cls", None]
    figures = [f"{result.figures['spearman']:.2f}" for result in results]
    lines = [line.split() for line in capsys.readouterr().out.split("\n")]
    assert all([m, f, f] in lines for m, f in zip(models, figures, strict=True))
    for wrong, said in (
        (["--output=x.json"], "--output: results are lines of JSON"),
        ([], "--model: '"),
    ):
        assert main(["--model", *models, *suite, *wrong]) == 2
        assert capsys.readouterr().err.startswith(f"dystress senteval: error: {said}")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(["--tasks", "STS99"], ["--tasks", "STS12", "transfer"]), (["--data_dir", "/no"], ["--data_dir", "/no", "mini"]),
     (["--engine", "original"], ["unknown option --engine"])],
)  # fmt: skip
def test_bad_input_is_one_line(arguments, wrong, words, capsys):
    assert main([*arguments, *wrong]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dystress senteval: error: ")
    assert all(word in line for word in words), line


@pytest.fixture
def own_data(tmp_path):
    """Texts, rows of scored pairs of them, the file of the pairs, and a collection that asks for
    each text.
    """
    texts = list(dict.fromkeys(make_sentences(20)))
    scores = np.random.default_rng(0).random(len(texts) - 1)
    rows = list(zip(texts, texts[1:], scores.tolist(), strict=False))
    pairs = tmp_path / "my pairs.csv"
    pd.DataFrame(rows, columns=COLUMNS).to_csv(pairs, index=False)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, letter in (("corpus", "d"), ("queries", "q")):
        lines = [json.dumps({"_id": f"{letter}{i}", "text": text}) for i, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "qrels.tsv").write_text("\n".join(f"q{i}\td{i}\t1" for i in range(len(texts))))
    return texts, rows, pairs, folder


def test_own_pairs_and_an_own_collection_from_the_command_line_and_from_python(
    tiny_bert, own_data, tmp_path, capsys
):
    texts, rows, pairs, folder = own_data
    modules = [Transformer(str(tiny_bert)), Pooling(16, "mean")]
    vectors = SentenceTransformer(modules=modules, device="cpu").encode(texts)
    cosines = [
        a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.pairwise(vectors)
    ]
    expected = round(100 * stats.spearmanr(cosines, [row[2] for row in rows]).statistic, 2)
    figures = dt.evaluate(tiny_bert, pairs, [folder], pooler_type="avg")
    name = str(tiny_bert)
    assert figures[name]["my_pairs"] == pytest.approx(expected, abs=0.02)
    assert figures[name]["mine nDCG@10"] == 100
    columns = ["my_pairs", "mine nDCG@10", "mine MRR@10", "mine recall@100"]
    assert [*figures[name]] == [*figures["lexical"]] == columns

    file = tmp_path / "one.jsonl"
    arguments = [f"--pairs={pairs}", f"--retrieval={folder}", f"--output={file}"]
    capsys.readouterr()
    assert main([f"--model={tiny_bert}", "--pooler_type=avg", *arguments]) == 0
    assert f"{figures[name]['my_pairs']:.2f}" in capsys.readouterr().out
    kept, search = read_results(file)
    assert (kept.group, kept.task, search.group) == ("pairs", "my_pairs", "retrieval")
    assert kept.figures["spearman"] == figures[name]["my_pairs"]
    assert kept.lexical["spearman"] == figures["lexical"]["my_pairs"]
    assert kept.details["count"] == len(rows)
    with pytest.raises(UserError, match=r"pairs.*no table 'nope\.csv'"):
        dt.evaluate("lexical", pairs="nope.csv")
    with pytest.raises(UserError, match="no 'pair'"):
        dt.evaluate("lexical", pair="nope.csv")


def test_a_model_and_data_in_memory_have_the_figures_of_their_files(
    tiny_bert, own_data, tmp_path, capsys
):
    texts, rows, pairs, folder = own_data
    expected = dt.evaluate(tiny_bert, pairs, folder, pooler_type="avg").values()
    frame = pd.DataFrame(rows, columns=COLUMNS)
    by_id = [{f"{letter}{i}": text for i, text in enumerate(texts)} for letter in "qd"]
    judged = {f"q{i}": {f"d{i}": 1, "lost": 1} for i in range(len(texts))}
    modules = [Transformer(str(tiny_bert)), Pooling(16, "mean")]
    model = SentenceTransformer(modules=modules, device="cpu").train()
    before = sorted(tmp_path.iterdir())
    for data, collection in (
        (rows, (*by_id, judged)),
        (frame, (texts, texts, {i: [i] for i in range(len(texts))})),
        (
            Dataset.from_pandas(frame),
            (pd.Series(texts), tuple(texts), [[i] for i in range(len(texts))]),
        ),
    ):
        found = dt.evaluate(model, data, collection)
        assert [*found] == ["model", "lexical"]
        assert [[*of.values()] for of in found.values()] == [[*of.values()] for of in expected]
    assert model.training
    note = f"{len(texts)} judgements of what the collection lacks are ignored"
    assert note in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
    file = tmp_path / "named.jsonl"
    dt.evaluate(model, rows, output=file)
    assert [(each.model, each.task) for each in read_results(file)] == [("model", "pairs")]


SECRET = "the patient's name"
TEXTS = [SECRET, "b"]


@pytest.mark.parametrize(
    ("pairs", "retrieval", "said"),
    [
        ([(SECRET, "b", 1), (SECRET, 7, 2)], None, "pairs: item 1: sentence2 is not a text"),
        ([(SECRET, "b", 1), (SECRET, "b", SECRET)], None, "pairs: item 1: the score is not a finite"),
        ([SECRET, 7], None, "pairs: item 0: expected two texts and a number"),
        ([(SECRET, "b", 1)], None, "pairs: the 1 pairs of the table have no two different scores"),
        ([], None, "pairs: the 0 pairs"),
        (7, None, "pairs: expected rows of two texts and a number"),
        (pd.DataFrame({"a": [SECRET]}), None, "expected the columns sentence1, sentence2, score"),
        (None, (TEXTS, [SECRET, 7]), "retrieval: expected queries, documents and judgements"),
        (None, (TEXTS, [SECRET, 7], {0: [0]}), "documents, item 1: expected a text, got int"),
        (None, (TEXTS, 7, {0: [0]}), "documents: expected a mapping from ids or a list, got int"),
        (None, (TEXTS, TEXTS, {0: 0}), "judgements, item 0: expected a mapping from ids or a list"),
        (None, (TEXTS, TEXTS, {0: {0: SECRET}}), "judgements, item 0: the score is not a finite"),
        (None, (TEXTS, TEXTS, {0: [SECRET]}), "1 judgements are of what it lacks"),
        (None, (TEXTS, TEXTS, {}), "the judgements: no score above 0"),
    ],
)  # fmt: skip
def test_bad_data_in_memory_are_one_line_without_the_data(pairs, retrieval, said, capsys):
    with pytest.raises(UserError) as caught:
        dt.evaluate("lexical", pairs, retrieval)
    message = str(caught.value)
    assert said in message
    assert "patient" not in message + "".join(capsys.readouterr())
    assert "\n" not in message


def test_results_go_into_a_runs_folder_and_nowhere_else_unasked(tmp_path, monkeypatch, capsys):
    """A model of sentence-transformers in site-packages is no run."""
    monkeypatch.chdir(tmp_path)
    save_model(build_model("bert", "avg"), tmp_path / "model")
    write_card(tmp_path / "model", RunRecord(), build_model("bert", "avg"))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    arguments = ["--suite=mini", "--tasks=MiniSTS"]
    assert main(["--model=model", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\nmodel: all results; not saved, --output FILE.jsonl saves them\n")
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert main(["--model=model", *arguments, "--output=mine.jsonl"]) == 0
    assert capsys.readouterr().out.endswith("\nmine.jsonl: all results\n")
    assert not (tmp_path / "model" / "results.jsonl").exists()


def test_two_files_of_pairs_of_one_name_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = [tmp_path / folder / "pairs.csv" for folder in ("a", "b")]
    for file, scores in zip(files, ((5, 1, 0), (0, 1, 5)), strict=True):
        file.parent.mkdir()
        texts = "sentence1,sentence2,score\nThe cat sat.,The cat sat.,{}\nThe dog ran.,A dog swam.,{}\nA bird.,The man.,{}\n"
        file.write_text(texts.format(*scores))
    assert main(["--model=lexical", "--pairs", *map(str, files)]) == 2
    error = capsys.readouterr().err
    assert (
        error
        == "dystress senteval: error: --pairs: two sets would have the name 'pairs'; rename one\n"
    )
    assert not list(tmp_path.glob("*.json*"))
    figures = [dt.evaluate("lexical", pairs=file)["lexical"]["pairs"] for file in files]
    assert figures == pytest.approx([100, -100])


def test_pairs_without_two_similarities_have_no_figure_and_the_rest_is_measured(tmp_path, capsys):
    """The texts of a pair differ in case alone, which the model does not see."""
    texts = make_sentences(12)
    for name, case in (("equal", str.upper), ("other", lambda text: text[:9])):
        rows = [f"{text},{case(text)},{i % 5}" for i, text in enumerate(texts)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["sentence1,sentence2,score", *rows]))
    file = tmp_path / "results.jsonl"
    model = ["--model", EMBEDDED / "bert-mini-wiki", "--pooler_type=avg", f"--output={file}"]
    pairs = ["--pairs", tmp_path / "equal.csv", tmp_path / "other.csv"]
    assert main([*map(str, [*model, *pairs])]) == 1
    out, error = capsys.readouterr()
    assert "equal left out: all pairs have the same similarity" in error
    assert [result.task for result in read_results(file)] == ["other"]
    assert re.search(r"^\S+ +missing +-?\d+\.\d\d$", out, re.MULTILINE)


def test_own_pairs_are_on_the_card_and_on_the_page_of_a_run(flags, tmp_path):
    assert train([*flags, "--eval_set=none", "--pooler_type=avg"]) == 0
    pairs = tmp_path / "mine.csv"
    pairs.write_text(
        "sentence1,sentence2,score\n"
        "The cat sat.,A cat sat.,5\nThe dog ran.,A fish swam.,1\nA bird flew.,The man ate.,0\n"
    )
    figures, lexical = dt.evaluate(tmp_path / "out", pairs=pairs).values()
    row = f"| mine | Spearman x 100 | {figures['mine']:.2f} | {lexical['mine']:.2f} |"
    assert row in (tmp_path / "out" / "README.md").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    for name, row in (("out, 1 seed", figures), ("TF-IDF/BM25", lexical)):
        assert re.search(rf"<td>{name}</td>\s*<td>{row['mine']:.2f}</td>", page)
