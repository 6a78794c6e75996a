"""The program: its figures against SciPy, its files, and every message."""

import itertools
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import make_sentences
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import build_model
from scipy import stats
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from sweep_runs import a_run

import dystress_text as dt
from dystress_text.errors import UserError
from dystress_text.evaluation import classifier
from dystress_text.evaluation import run as runner
from dystress_text.evaluation.run import Results
from dystress_text.export.card import write_card
from dystress_text.files.places import EMBEDDED
from dystress_text.models.loading import save_model
from dystress_text.programs.senteval import main
from dystress_text.programs.train import main as train
from dystress_text.report.text_page import leave_text_report

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
        f"--output={tmp_path / 'results.json'}",
    ]
    assert main([*arguments, "--suite=mini", "--mode=fast", "--tasks", *MINI]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert (tuple(results["tasks"]), results["complete"], results["left_out"]) == (MINI, False, {})
    assert results["geometry"]["spearman"] == pytest.approx(
        results["tasks"]["MiniSTS"]["spearman"], abs=0.006
    )
    assert results["geometry"]["set"] == "mini-STS"
    assert len(results["tasks"]["MiniQuestions"]["sha256"]["MiniQuestions/train.label"]) == 64
    assert set(results["versions"]) >= {"python", "torch", "transformers", "scipy"}
    assert f"{results['tasks']['MiniQuestions']['accuracy']:.2f}" in capsys.readouterr().out


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


def test_page_and_card_of_a_run_take_the_results_up(tiny_bert, sts_folder, tmp_path, capsys):
    out = a_run(tmp_path, tasks=())
    model = build_model("bert", "avg")
    save_model(model, out)
    page = out / "report.html"
    assert leave_text_report(out) == f"{page} shows the run."
    assert "<th>STS-B</th>" not in page.read_text()
    write_card(out, {}, model)
    assert main([f"--model={out}", f"--data_dir={sts_folder.parent}", "--tasks", "STS-B"]) == 0
    assert (
        f"{page} shows the run.\n{out / 'README.md'} holds the results.\n"
        in capsys.readouterr().out
    )
    (result,) = ModelCard.load(out / "README.md").data.eval_results
    figure = json.loads((out / "senteval-senteval-test.json").read_text())["tasks"]["STS-B"][
        "spearman"
    ]
    assert "<th>STS-B</th>" in page.read_text()
    assert f"<td>{figure:.2f}</td>" in page.read_text()
    assert (result.dataset_name, result.metric_value) == ("MTEB STSBenchmark", figure)


def test_results_of_other_weights_go_those_of_other_settings_stay_and_a_damaged_file_is_left(
    tiny_bert, sts_folder, tmp_path, capsys
):
    out = tmp_path / "out"
    model = build_model("bert", "avg")
    save_model(model, out)
    write_card(out, {}, model)
    file, arguments = (
        out / "senteval-senteval-test.json",
        [f"--model={out}", f"--data_dir={sts_folder.parent}"],
    )

    def after(*tasks, more=()):
        assert main([*arguments, "--geometry=none", *more, "--tasks", *tasks]) == 0
        names = {
            result.dataset_name for result in ModelCard.load(out / "README.md").data.eval_results
        }
        return json.loads(file.read_text()), names

    content, card = after("STS-B", "SICK-R")
    others, again = after("STS-B", more=["--pooler_type=cls"])
    assert (others["others"][0]["tasks"], again) == (content["tasks"], card)
    capsys.readouterr()
    model[0].model.get_input_embeddings().weight.data[5:] += 1
    save_model(model, out)
    content, card = after("STS-B")
    assert (list(content["tasks"]), card) == (["STS-B"], {"MTEB STSBenchmark"})
    assert [other["pooler_type"] for other in content["others"]] == [
        "cls"
    ]  # whose weights are others in any case
    assert f"the results of other weights of {out} are replaced" in capsys.readouterr().err
    for damaged in ("", '{"tasks": 7}', '{"tasks": {"STS-B": {}}}', '{"a": 1}', "[]"):
        file.write_text(damaged)
        assert main([*arguments, "--tasks", "STS-B"]) == 2
        assert file.name in capsys.readouterr().err
        assert file.read_text() == damaged


EVALUATIONS = st.lists(
    st.tuples(st.sampled_from([None, "cls"]), st.sampled_from(["MiniSTS", "MiniQuestions", "cisi"]),
              st.sampled_from("ab"), st.booleans()),
    max_size=12,
)  # fmt: skip


@settings(max_examples=20)
@given(EVALUATIONS)
def test_in_any_order_the_newest_figure_of_each_setting_task_and_data_is_there_once(
    tmp_path_factory, evaluations
):
    """Two processes at the same time have each begun before the other's first result."""
    file, expected = tmp_path_factory.mktemp("evaluations") / "results.json", {}
    about = {"suite": "mini", "model": "m", "weights": "w", "data": "d", "data_variant": None}
    writers = {
        (pooler, which): Results({**about, "pooler_type": pooler})
        for pooler in (None, "cls", "avg")
        for which in (0, 1)
    }
    for writer in writers.values():
        writer.begin(file)
    for number, (pooler, name, data, which) in enumerate(evaluations):
        result = {"spearman": float(number), "sha256": data}
        writer = writers[pooler, which] = Results({**about, "pooler_type": pooler})
        (writer.tasks if name.startswith("Mini") else writer.retrieval)[name] = result
        writer.write(file, name)
        expected[pooler, name, data] = number
    content = json.loads(file.read_text())
    figures = [
        ((one["pooler_type"], name.partition(" ")[0], result["sha256"]), result["spearman"])
        for one in (content, *content["others"])
        for kind in ("tasks", "retrieval", "other_data")
        for name, result in one[kind].items()
    ]
    assert sorted(figures, key=str) == sorted(expected.items(), key=str)
    if evaluations:
        pooler, name, data, _ = evaluations[-1]
        assert (content["tasks"] | content["retrieval"])[name]["sha256"] == data


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    file = tmp_path / "results.json"

    def write(which):
        results = Results({"suite": "mini", "model": "m", "weights": "w"})
        results.begin(file)
        for i in range(12):
            results.retrieval[f"{which}{i}"] = {"sha256": "s"}
            results.write(file)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    assert len(json.loads(file.read_text())["retrieval"]) == 48


def test_an_entry_stays_until_its_task_is_finished_again(arguments, tmp_path, monkeypatch, capsys):
    def evaluated(seconds, *more, stop_at=None):
        def stub(task, *rest):
            if task.name == stop_at:
                raise KeyboardInterrupt
            return {"spearman": 50.0, "seconds": seconds, "sha256": {}}

        monkeypatch.setattr(runner, "evaluate_task", stub)
        assert main([*arguments, "--suite=mini", *more]) == (130 if stop_at else 0)
        content = json.loads((tmp_path / "results.json").read_text())
        return {name: entry["seconds"] for name, entry in content["tasks"].items()}, content

    assert evaluated(1, "--tasks", *MINI, stop_at="MiniQuestions")[0] == {"MiniSTS": 1}
    assert "interrupted" in capsys.readouterr().err
    seconds, content = evaluated(2, "--tasks", "MiniQuestions")
    assert seconds == {"MiniSTS": 1, "MiniQuestions": 2}
    assert (content["complete"], content["averages"]) == (False, {"sts": 50.0, "transfer": None})
    before = evaluated(3, "--tasks", "transfer")
    assert (before[1]["complete"], before[1]["averages"]) == (True, {"sts": 50.0, "transfer": 50.0})
    assert (
        evaluated(4, stop_at="MiniSTS")
        == evaluated(4, "--pooler_type=cls", stop_at="MiniSTS")
        == before
    )
    assert evaluated(5, "--pooler_type=cls", "--tasks", "MiniSTS")[0] == {"MiniSTS": 5}


def test_several_models_are_rows_of_one_table_with_a_file_each(tiny_bert, tmp_path, capsys):
    """A model of sentence-transformers keeps its own pooler."""
    save_model(build_model("bert", "avg"), tmp_path / "saved")
    shutil.copytree(tiny_bert, tmp_path / "base")
    models, suite = (
        [str(tmp_path / name) for name in ("base", "saved")],
        ["--suite=mini", "--tasks", "MiniSTS"],
    )
    assert main(["--model", *models, "--pooler_type=cls", *suite]) == 0
    contents = [
        json.loads((Path(model) / "senteval-mini-test.json").read_text()) for model in models
    ]
    assert [content["pooler_type"] for content in contents] == ["cls", None]
    figures = [f"{content['tasks']['MiniSTS']['spearman']:.2f}" for content in contents]
    lines = capsys.readouterr().out.strip().split("\n")
    assert [line.split() for line in lines[-2:]] == [
        [m, f, f] for m, f in zip(models, figures, strict=True)
    ]
    for wrong, said in (
        (["--output=x.json"], "--output: is the file of one model"),
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


def test_own_pairs_and_an_own_collection_from_the_command_line_and_from_python(
    tiny_bert, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # a model without a folder leaves its results here
    texts = list(dict.fromkeys(make_sentences(20)))
    scores = np.random.default_rng(0).random(len(texts) - 1)
    pairs = tmp_path / "my pairs.csv"
    rows = [f'"{a}","{b}",{score}\n' for a, b, score in zip(texts, texts[1:], scores, strict=False)]
    pairs.write_text("".join(["sentence1,sentence2,score\n", *rows]))
    folder = tmp_path / "mine"
    folder.mkdir()
    documents = [json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(documents))
    asked = [json.dumps({"_id": f"q{i}", "text": text}) for i, text in enumerate(texts)]
    (folder / "queries.jsonl").write_text("\n".join(asked))
    found = [f"q{i}\td{i}\t1" for i in range(len(texts))]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *found]))
    modules = [Transformer(str(tiny_bert)), Pooling(16, "mean")]
    vectors = SentenceTransformer(modules=modules, device="cpu").encode(texts)
    cosines = [
        a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.pairwise(vectors)
    ]
    expected = round(100 * stats.spearmanr(cosines, scores).statistic, 2)

    figures = dt.evaluate([tiny_bert, "words"], pooler_type="avg", pairs=pairs, retrieval=[folder])
    name, row = str(tiny_bert), figures["words"]
    assert figures[name]["my_pairs"] == pytest.approx(expected, abs=0.02)
    assert figures[name]["mine nDCG@10"] == 100
    assert (
        figures[name].keys()
        == row.keys()
        == {"my_pairs", "mine nDCG@10", "mine MRR@10", "mine recall@100"}
    )

    file = tmp_path / "one.json"
    capsys.readouterr()
    arguments = [f"--pairs={pairs}", f"--retrieval={folder}", f"--output={file}"]
    assert main([f"--model={tiny_bert}", "--pooler_type=avg", *arguments]) == 0
    assert f"{figures[name]['my_pairs']:.2f}" in capsys.readouterr().out
    kept = json.loads(file.read_text())
    (about,) = kept["pairs"].items()
    assert about[0] == "my_pairs"
    assert (about[1]["spearman"], about[1]["count"]) == (figures[name]["my_pairs"], len(scores))
    assert kept["tasks"] == {}
    with pytest.raises(UserError, match=r"pairs.*no table 'nope\.csv'"):
        dt.evaluate("words", pairs="nope.csv")
    with pytest.raises(UserError, match="no 'pair'"):
        dt.evaluate("words", pair="nope.csv")


def test_two_files_of_pairs_of_one_name_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = [tmp_path / folder / "pairs.csv" for folder in ("a", "b")]
    for file, scores in zip(files, ((5, 1, 0), (0, 1, 5)), strict=True):
        file.parent.mkdir()
        texts = "sentence1,sentence2,score\nThe cat sat.,The cat sat.,{}\nThe dog ran.,A dog swam.,{}\nA bird.,The man.,{}\n"
        file.write_text(texts.format(*scores))
    assert main(["--model=words", "--pairs", *map(str, files)]) == 2
    error = capsys.readouterr().err
    assert (
        error
        == "dystress senteval: error: --pairs: two sets would have the name 'pairs'; rename one\n"
    )
    assert not list(tmp_path.glob("*.json"))
    figures = [dt.evaluate("words", pairs=file)["words"]["pairs"] for file in files]
    assert figures == pytest.approx([100, -100])


def test_pairs_without_two_similarities_have_no_figure_and_the_rest_is_measured(tmp_path, capsys):
    """The texts of a pair differ in case alone, which the model does not see."""
    texts = make_sentences(12)
    for name, case in (("equal", str.upper), ("other", lambda text: text[:9])):
        rows = [f"{text},{case(text)},{i % 5}" for i, text in enumerate(texts)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["sentence1,sentence2,score", *rows]))
    file = tmp_path / "results.json"
    model = ["--model", EMBEDDED / "bert-mini-wiki", "--pooler_type=avg", f"--output={file}"]
    pairs = ["--pairs", tmp_path / "equal.csv", tmp_path / "other.csv"]
    assert main([*map(str, [*model, *pairs])]) == 1
    out, error = capsys.readouterr()
    assert "equal left out: all pairs have the same similarity" in error
    found = json.loads(file.read_text())
    assert found["pairs"].keys() == {"other"}
    assert found["left_out"].keys() == {"equal"}
    assert re.search(r"^\S+ +- +-?\d+\.\d\d$", out, re.MULTILINE)


def test_own_pairs_are_on_the_card_and_on_the_page_of_a_run(flags, tmp_path):
    assert train([*flags, "--eval_set=none", "--pooler_type=avg"]) == 0
    pairs = tmp_path / "mine.csv"
    pairs.write_text(
        "sentence1,sentence2,score\n"
        "The cat sat.,A cat sat.,5\nThe dog ran.,A fish swam.,1\nA bird flew.,The man ate.,0\n"
    )
    (figures,) = dt.evaluate(tmp_path / "out", pairs=pairs).values()
    assert (
        f"| mine | Spearman x 100 | {figures['mine']:.2f} |"
        in (tmp_path / "out" / "README.md").read_text()
    )
    assert f"<td>{figures['mine']:.2f}</td>" in (tmp_path / "out" / "report.html").read_text()
