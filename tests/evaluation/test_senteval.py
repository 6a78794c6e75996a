"""The program senteval: its figures against SciPy, its files and its errors."""

import itertools
import json
import re
import shutil
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

import dystress_text as dt
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
EMBEDDED_ENCODER = (f"--model={EMBEDDED / 'bert-mini-wiki'}", "--pooler_type=avg")


@pytest.fixture
def arguments(tiny_bert, tmp_path):
    return [f"--model={tiny_bert}", "--pooler_type=avg", f"--output={tmp_path / 'results.jsonl'}"]


@pytest.fixture
def sts_folder(tmp_path):
    """A data folder with a small STS-B and SICK of the right counts, and STS13 without files."""
    folder = tmp_path / "data" / "senteval"
    draw = np.random.default_rng(0)
    sentence = itertools.cycle(make_sentences(301)).__next__
    for name in ("STS/STSBenchmark", "SICK", "STS/STS13-en-test"):
        (folder / name).mkdir(parents=True)
    for split, count in (("dev", 50), ("test", 1379)):
        lines = [
            f"m\tx\t1\t{i}\t{draw.random() * 5:.2f}\t{sentence()}\t{sentence()}\n"
            for i in range(count)
        ]
        (folder / "STS" / "STSBenchmark" / f"sts-{split}.csv").write_text("".join(lines))
    lines = ["h\n"]
    for i in range(4927):
        lines.append(f"{i}\t{sentence()}\t{sentence()}\t{1 + 4 * draw.random():.1f}\tN\n")
    (folder / "SICK" / "SICK_test_annotated.txt").write_text("".join(lines))
    return folder


def test_mini_suite_needs_no_data(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(classifier, "MAX_EPOCHS", 8)  # test_classifier.py has them all
    file = tmp_path / "results.jsonl"
    more = [f"--output={file}", "--suite=mini", "--mode=fast", "--tasks", *MINI]
    assert main([*EMBEDDED_ENCODER, *more]) == 0
    sts, questions, geometry = read_results(file)
    assert (sts.group, questions.task) == ("mini/sts", "MiniQuestions")
    assert geometry.figures["spearman"] == pytest.approx(sts.figures["spearman"], abs=0.006)
    assert len(sts.data) == len(sts.weights) == 64
    assert set(questions.versions) >= {"python", "torch", "transformers", "scipy"}
    assert questions.settings["mode"] == "fast"
    assert f"{questions.figures['accuracy']:.2f}" in capsys.readouterr().out


def test_missing_tasks_have_no_average(arguments, sts_folder, tmp_path, capsys):
    flags = [*arguments, f"--data_dir={sts_folder.parent}", "--tasks", "STS13", "STS-B", "SICK-R"]
    assert main(flags) == 1
    table = capsys.readouterr().out.partition("\n\n")[2]
    header, mine, lexical, *_ = (line.split() for line in table.split("\n"))
    assert header == ["STS13", "STS-B", "SICK-R", "avg", "of", "3"]
    assert (mine[1], mine[-1]) == ("missing", "-")
    assert lexical[:2] == ["lexical", "missing"]
    results = read_results(tmp_path / "results.jsonl")
    assert [result.task for result in results] == ["STS-B", "SICK-R", "STS-B dev"]


def test_card_shows_results_of_current_weights(sts_folder, tmp_path):
    out = tmp_path / "out"
    model = build_model("bert", "avg")
    save_model(model, out)
    write_card(out, RunRecord(), model)
    (out / "run.json").write_text("{}")
    arguments = [f"--model={out}", f"--data_dir={sts_folder.parent}", "--geometry=none"]

    def card_after(*tasks, more=()):
        assert main([*arguments, *more, "--tasks", *tasks]) == 0
        return {each.dataset_name for each in ModelCard.load(out / "README.md").data.eval_results}

    both = card_after("STS-B", "SICK-R")
    assert len(both) == 2
    assert card_after("STS-B", more=["--pooler_type=cls"]) == both
    model[0].model.get_input_embeddings().weight.data[5:] += 1
    save_model(model, out)
    assert card_after("STS-B") == {"MTEB STSBenchmark"}
    assert len(results_in(out)) == 4


def test_damaged_result_files_are_not_changed(arguments, tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    file.write_text('{"model": ')
    assert main([*arguments, "--suite=mini", "--tasks=MiniSTS"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{file}: line 1 " in line
    assert file.read_text() == '{"model": '


def test_interrupted_evaluations_keep_finished_tasks(arguments, tmp_path, monkeypatch):
    def stub(task, *rest, mode):
        if task.name == "MiniQuestions":
            raise KeyboardInterrupt
        return {"spearman": 50.0, "sha256": {}}

    monkeypatch.setattr(runner, "evaluate_task", stub)
    assert main([*arguments, "--suite=mini", "--tasks", *MINI]) == 130
    assert [each.task for each in read_results(tmp_path / "results.jsonl")] == ["MiniSTS"]


def test_several_models_make_one_table(tiny_bert, tmp_path, capsys):
    """A model of sentence-transformers keeps its own pooler."""
    save_model(build_model("bert", "avg"), tmp_path / "saved")
    shutil.copytree(tiny_bert, tmp_path / "base")
    models = [str(tmp_path / name) for name in ("base", "saved")]
    for model in models:
        (Path(model) / "run.json").write_text("{}")
    assert main(["--model", *models, "--pooler_type=cls", "--suite=mini", "--tasks=MiniSTS"]) == 0
    results = [results_in(Path(model))[0] for model in models]
    assert [result.settings["pooler_type"] for result in results] == ["cls", None]
    lines = [line.split() for line in capsys.readouterr().out.split("\n")]
    for model, result in zip(models, results, strict=True):
        figure = f"{result.figures['spearman']:.2f}"
        assert [model, figure, figure] in lines


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--tasks", "STS99"], "--tasks"),
        (["--data_dir", "/no"], "--data_dir"),
        (["--output=x.json"], "--output"),
        (["--engine", "original"], "--engine"),
        (["--model", "lexical"], "--pooler_type"),
        (["--model", "words"], "'lexical'"),  # the name in 0.2
    ],
)
def test_wrong_options_are_one_line(arguments, wrong, named, capsys):
    assert main([*arguments, *wrong]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dystress senteval: error: ")
    assert named in line


@pytest.fixture
def own_data(tmp_path):
    """Texts, scored pairs of them, their file, and a collection whose queries are the documents."""
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


def load(folder):
    modules = [Transformer(str(folder)), Pooling(16, "mean")]
    return SentenceTransformer(modules=modules, device="cpu")


def test_own_data_from_files(tiny_bert, own_data, tmp_path):
    texts, rows, pairs, folder = own_data
    vectors = load(tiny_bert).encode(texts)
    cosines = [
        a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.pairwise(vectors)
    ]
    expected = 100 * stats.spearmanr(cosines, [row[2] for row in rows]).statistic
    file = tmp_path / "one.jsonl"
    figures = dt.evaluate(tiny_bert, pairs, [folder], pooler_type="avg", output=file)
    mine = figures[str(tiny_bert)]
    assert mine["my_pairs"] == pytest.approx(expected, abs=0.02)
    assert mine["mine nDCG@10"] == 100
    columns = ["my_pairs", "mine nDCG@10", "mine MRR@10", "mine recall@100"]
    assert [*mine] == [*figures["lexical"]] == columns
    kept, search = read_results(file)
    assert (kept.group, kept.task, search.group) == ("pairs", "my_pairs", "retrieval")
    assert kept.figures["spearman"] == mine["my_pairs"]
    assert kept.lexical["spearman"] == figures["lexical"]["my_pairs"]


def test_data_in_memory_equal_files(tiny_bert, own_data, tmp_path):
    texts, rows, pairs, folder = own_data
    expected = dt.evaluate(tiny_bert, pairs, folder, pooler_type="avg").values()
    frame = pd.DataFrame(rows, columns=COLUMNS)
    by_id = [{f"{letter}{i}": text for i, text in enumerate(texts)} for letter in "qd"]
    graded = {f"q{i}": {f"d{i}": 1, "lost": 1} for i in range(len(texts))}
    lists = {i: [i] for i in range(len(texts))}
    model = load(tiny_bert).train()
    before = sorted(tmp_path.iterdir())
    for data, collection in (
        (rows, (*by_id, graded)),
        (frame, (texts, texts, lists)),
        (Dataset.from_pandas(frame), (pd.Series(texts), tuple(texts), list(lists.values()))),
    ):
        found = dt.evaluate(model, data, collection)
        assert [*found] == ["model", "lexical"]
        assert [[*of.values()] for of in found.values()] == [[*of.values()] for of in expected]
    assert model.training
    assert sorted(tmp_path.iterdir()) == before


SECRET = "the patient's name"
TEXTS = [SECRET, "b"]


@pytest.mark.parametrize(
    ("pairs", "retrieval", "named"),
    [
        ([(SECRET, "b", 1), (SECRET, 7, 2)], None, "item 1"),
        ([(SECRET, "b", 1), (SECRET, "b", SECRET)], None, "item 1"),
        ([SECRET, 7], None, "pairs"),
        ([(SECRET, "b", 1)], None, "pairs"),
        ([], None, "pairs"),
        (7, None, "pairs"),
        (pd.DataFrame({"a": [SECRET]}), None, "pairs"),
        (None, (TEXTS, [SECRET, 7]), "retrieval"),
        (None, (TEXTS, [SECRET, 7], {0: [0]}), "retrieval"),
        (None, (TEXTS, 7, {0: [0]}), "retrieval"),
        (None, (TEXTS, TEXTS, {0: {0: SECRET}}), "retrieval"),
        (None, (TEXTS, TEXTS, {0: [SECRET]}), "retrieval"),
    ],
)
def test_errors_do_not_show_data(pairs, retrieval, named, capsys):
    with pytest.raises(UserError, match=f"^[^\n]*{named}[^\n]*$") as caught:
        dt.evaluate("lexical", pairs, retrieval)
    assert "patient" not in str(caught.value) + "".join(capsys.readouterr())


def test_only_run_folders_are_written_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(build_model("bert", "avg"), tmp_path / "model")
    write_card(tmp_path / "model", RunRecord(), build_model("bert", "avg"))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    arguments = ["--model=model", "--suite=mini", "--tasks=MiniSTS"]
    assert main(arguments) == 0
    assert main([*arguments, "--output=mine.jsonl"]) == 0
    assert (tmp_path / "mine.jsonl").exists()
    (tmp_path / "mine.jsonl").unlink()
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert {name: after[name] for name in before} == before
    assert not (tmp_path / "model" / "results.jsonl").exists()


def test_pairs_need_distinct_names(tmp_path):
    files = [tmp_path / folder / "pairs.csv" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("sentence1,sentence2,score\nThe cat sat.,The cat sat.,5\nA bird.,No.,0\n")
    with pytest.raises(UserError, match=r"^pairs: .*'pairs'"):
        dt.evaluate("lexical", pairs=files)


def test_equal_similarities_have_no_figure(tmp_path, capsys):
    """The texts of a pair differ in case only, which the model does not see."""
    texts = make_sentences(12)
    for name, case in (("equal", str.upper), ("other", lambda text: text[:9])):
        rows = [f"{text},{case(text)},{i % 5}" for i, text in enumerate(texts)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["sentence1,sentence2,score", *rows]))
    file = tmp_path / "results.jsonl"
    pairs = ["--pairs", str(tmp_path / "equal.csv"), str(tmp_path / "other.csv")]
    assert main([*EMBEDDED_ENCODER, f"--output={file}", *pairs]) == 1
    assert [result.task for result in read_results(file)] == ["other"]
    out = capsys.readouterr().out
    assert re.search(r"^\S+ +missing +-?\d+\.\d\d$", out, re.MULTILINE)


def test_card_and_page_of_a_run_show_own_pairs(flags, tmp_path):
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
