"""The program evaluate: its figures against SciPy, its files and its errors."""

import re

import numpy as np
import pytest
import torch
from conftest import make_sentences
from datasets import Dataset
from huggingface_hub import ModelCard
from model_cases import build_model, model_of
from safetensors.torch import load_file, save_file
from scipy import stats
from search_cases import make_collection, random_vectors
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import InformationRetrievalEvaluator

import dystress_text as dt
from dystress_text.errors import ParameterError
from dystress_text.evaluation import classifier
from dystress_text.evaluation.catalogue import StsTask
from dystress_text.evaluation.evaluators import TransferEvaluator
from dystress_text.evaluation.results import read_results, results_in
from dystress_text.evaluation.retrieval import read_collection
from dystress_text.evaluation.text_sets import COLUMNS, StsPairs
from dystress_text.export.card import write_card
from dystress_text.models.loading import save_model
from dystress_text.programs.evaluate import main
from dystress_text.programs.train import main as train
from dystress_text.training.run_record import RunRecord

ROWS = [("The cat sat", "A cat sat", 5), ("A dog ran", "A fish", 1), ("A bird", "The man", 0)]
MINI = ("--suite=mini", "--mode=fast", "--tasks", "MiniSTS", "MiniQuestions")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "results.jsonl"


@pytest.fixture
def arguments(tiny_bert, file):
    return [f"--model={tiny_bert}", "--pooler_type=avg", f"--output={file}"]


def write_pairs(file, rows):
    lines = [f"{first},{second},{score}" for first, second, score in rows]
    file.write_text("\n".join(["sentence1,sentence2,score", *lines]))
    return file


def test_mini_suite_needs_no_data(arguments, file, capsys, monkeypatch):
    monkeypatch.setattr(classifier, "MAX_EPOCHS", 8)  # test_classifier.py has them all
    assert main([*arguments, *MINI]) == 0
    sts, questions = read_results(file)
    assert sts.group == "mini/sts"
    assert questions.task == "MiniQuestions"
    assert len(sts.data) == len(sts.weights) == 64
    assert set(questions.versions) >= {"python", "torch", "transformers", "scipy"}
    assert questions.settings["mode"] == "fast"
    assert questions.details["texts"] == {"train": 228, "test": 66}
    out = capsys.readouterr().out
    assert f"{questions.figures['accuracy']:.2f}" in out
    assert "avg of 1" in out


def test_interrupted_evaluations_keep_finished_tasks(arguments, file, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(TransferEvaluator, "figures", interrupt)
    assert main([*arguments, *MINI]) == 130
    assert [each.task for each in read_results(file)] == ["MiniSTS"]


def test_several_models_make_one_table(tiny_bert, tmp_path, file, capsys):
    """A model of sentence-transformers keeps its own pooler."""
    save_model(build_model("bert", "avg"), tmp_path / "saved")
    pairs = write_pairs(tmp_path / "mine.csv", ROWS)
    models = [str(tiny_bert), str(tmp_path / "saved")]
    more = [f"--output={file}", "--pooler_type=cls", f"--pairs={pairs}"]
    assert main(["--model", *models, *more]) == 0
    results = read_results(file)
    assert [result.settings["pooler_type"] for result in results] == ["cls", None]
    lines = [line.split() for line in capsys.readouterr().out.split("\n")]
    for model, result in zip(models, results, strict=True):
        assert [model, f"{result.figures['spearman']:.2f}"] in lines


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("--tasks=STS99", "--tasks"),
        ("--data_dir=/no", "--data_dir"),  # no files of any task
        ("--output=x.json", "--output"),
        ("--engine=original", "--engine"),
    ],
)
def test_wrong_options_are_one_line(arguments, file, wrong, named, capsys):
    assert main([*arguments, wrong]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dystress evaluate: error: ")
    assert named in line
    assert not file.exists()


def test_damaged_tasks_are_refused(arguments, file, tmp_path, capsys):
    folder = tmp_path / "data" / "senteval" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    (folder / "sts-test.csv").write_text("m\tx\t1\t0\t3.5\ta cat\ta dog\n")
    assert main([*arguments, f"--data_dir={tmp_path / 'data'}", "--tasks=STS-B"]) == 2
    assert "1,379" in capsys.readouterr().err
    assert not file.exists()


def test_figures_of_own_data_and_paired_differences(tmp_path, file, capsys):
    """Each query's nDCG@10 is that of sentence-transformers, each similarity the cosine."""
    collection = read_collection(make_collection(tmp_path / "mine", 60, 20))
    texts = list(collection.documents.values())[:41]
    scores = np.random.default_rng(0).random(40)
    pairs = write_pairs(tmp_path / "pairs.csv", zip(texts, texts[1:], scores, strict=False))
    models = []
    for pooler in ("avg", "cls"):
        save_model(build_model("bert", pooler), tmp_path / pooler)
        models.append(SentenceTransformer(str(tmp_path / pooler), device="cpu"))
    figures = dt.evaluate(models, pairs=pairs, retrieval=tmp_path / "mine", output=file)
    assert list(figures) == ["model 1", "model 2", "lexical"]
    mine = figures["model 1"]
    metrics = ["nDCG@10", "MRR@10", "recall@100", "nDCG@10 (graded)", "nDCG@10 with BM25"]
    assert list(mine) == ["pairs", *(f"mine {metric}" for metric in metrics)]
    printed = capsys.readouterr().out
    scored, search, *_ = read_results(file)
    assert scored.group == "pairs"
    assert search.group == "retrieval"
    assert {**search.details, "sha256": search.data}.items() >= collection.metadata.items()
    assert scored.figures == {"spearman": mine["pairs"]}
    assert scored.lexical == {"spearman": figures["lexical"]["pairs"]}
    vectors = models[0].encode(texts, normalize_embeddings=True)
    cosines = (vectors[:-1] * vectors[1:]).sum(1)
    assert scored.each["model"] == pytest.approx(cosines, abs=1e-5)
    assert scored.each["scores"] == pytest.approx(scores)
    assert len(scored.each["lexical"]) == 40
    expected = 100 * stats.spearmanr(cosines, scores).statistic
    assert mine["pairs"] == pytest.approx(expected, abs=0.02)
    for (query, text), ndcg in zip(collection.queries.items(), search.each["model"], strict=True):
        relevant = {query: set(collection.relevant[query])}
        evaluator = InformationRetrievalEvaluator(
            {query: text}, dict(collection.documents), relevant, name="one"
        )
        assert ndcg == pytest.approx(evaluator(models[0])["one_cosine_ndcg@10"], abs=1e-5)
    for kind, count in (("pairs", 40), ("queries", 19)):
        few = ", which are few" if count < 30 else ""
        (line,) = re.findall(rf"model 2 - model 1: .*; {count} {kind}{few}, paired\)", printed)
        assert re.search(rf"model 2 - TF-IDF.*; {count} {kind}{few}, paired", printed)
        assert re.search(rf"model 1: .*; {count} {kind}{few}\)", printed)
    expected = figures["model 2"]["mine nDCG@10"] - mine["mine nDCG@10"]
    assert float(line.split()[5]) == pytest.approx(expected, abs=0.07)


def test_result_lines_name_similarity_and_dimension(tmp_path, file, capsys):
    pairs = write_pairs(tmp_path / "mine.csv", ROWS)
    model = build_model("bert", similarity_fn_name="dot", truncate_dim=8)
    options = {"pairs": pairs, "suite": "mini", "tasks": ["MiniSTS"], "output": file}
    dt.evaluate(model, **options)
    assert "by dot" in capsys.readouterr().err
    sts, own = read_results(file)
    assert sts.details["similarity"] == "cosine"  # SentEval's protocol
    assert own.details["similarity"] == "dot"
    assert own.settings["truncate_dim"] == 8


def test_result_lines_of_a_year_have_its_subsets(file, monkeypatch):
    draw = np.random.default_rng(0)
    texts = tuple(make_sentences(96))
    sides = {
        "one": (texts[:24], texts[24:48]),
        "two": (texts[48:60], texts[60:72]),
        "three": (texts[72:84], texts[84:]),
    }
    subsets = {name: StsPairs(*side, draw.random(len(side[0]))) for name, side in sides.items()}
    monkeypatch.setattr(StsTask, "read", lambda *_, **__: subsets)
    dt.evaluate(model_of(random_vectors), tasks=["STS12"], output=file)
    (line,) = read_results(file)
    figures = {}
    cosines = []
    scores = []
    for name, pairs in subsets.items():
        vectors = map(random_vectors, sides[name])
        cosines += torch.cosine_similarity(*vectors).tolist()
        scores += pairs.scores.tolist()
        own = stats.spearmanr(cosines[-len(pairs) :], pairs.scores)
        figures[name] = 100 * own.statistic
    one, two, three = figures.values()
    together = 100 * stats.spearmanr(cosines, scores).statistic
    assert line.figures["spearman"] == pytest.approx(together, abs=0.006)
    assert line.details["subsets"] == pytest.approx(figures, abs=0.006)
    assert line.details["mean"] == pytest.approx((one + two + three) / 3, abs=0.006)
    weighted = (2 * one + two + three) / 4
    assert line.details["weighted_mean"] == pytest.approx(weighted, abs=0.006)
    assert list(line.figures) == list(line.lexical) == ["spearman"]


def test_only_run_folders_are_written_unasked(tmp_path, file):
    pairs = write_pairs(tmp_path / "mine.csv", ROWS)
    model = build_model("bert", "avg")
    save_model(model, tmp_path / "model")
    write_card(tmp_path / "model", RunRecord(), model)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main([f"--model={tmp_path / 'model'}", f"--pairs={pairs}"]) == 0
    assert main([f"--model={tmp_path / 'model'}", f"--pairs={pairs}", f"--output={file}"]) == 0
    dt.evaluate(model.train(), pairs=pairs)  # in memory
    assert model.training
    file.unlink()
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_equal_similarities_have_no_figure(arguments, tmp_path, file, capsys):
    """The texts of a pair differ in case only, which the model does not see."""
    rows = [(text, text.upper(), i % 5) for i, text in enumerate(make_sentences(12))]
    pairs = write_pairs(tmp_path / "equal.csv", rows)
    assert main([*arguments, f"--pairs={pairs}"]) == 0
    (result,) = read_results(file)
    assert result.figures == {"spearman": None}
    assert re.search(r"^\S+ +-$", capsys.readouterr().out, re.MULTILINE)


def test_card_and_page_of_a_run_show_results_of_its_weights(flags, tmp_path):
    assert train([*flags, "--eval_set=none", "--pooler_type=avg"]) == 0
    out = tmp_path / "out"
    pairs = write_pairs(tmp_path / "mine.csv", ROWS)

    def on_card(**options):
        dt.evaluate(out, **options)
        return {each.dataset_name for each in ModelCard.load(out / "README.md").data.eval_results}

    figures = next(iter(dt.evaluate(out, pairs=pairs).values()))
    (entry,) = ModelCard.load(out / "README.md").data.eval_results
    assert entry.metric_value == pytest.approx(figures["mine"], abs=0.01)
    assert f"<td>{figures['mine']:.2f}</td>" in (out / "report.html").read_text()
    other = write_pairs(tmp_path / "other.csv", ROWS[::-1])
    assert on_card(pairs=other) == {"mine", "other"}
    assert on_card(pairs=[pairs, other], pooler_type="cls") == {"mine", "other"}
    weights = load_file(out / "model.safetensors")
    for tensor in weights.values():
        tensor += 0.1
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    assert on_card(pairs=pairs) == {"mine"}
    assert len(results_in(out)) == 5


def test_data_in_memory_equals_files(tmp_path):
    columns = [list(column) for column in zip(*ROWS, strict=True)]
    table = Dataset.from_dict(dict(zip(COLUMNS, columns, strict=True)))
    table.to_json(tmp_path / "pairs.jsonl")
    folder = make_collection(tmp_path / "retrieval", 30, 4)
    made = read_collection(folder)
    search = (made.queries, list(made.documents.values()), {})
    for query, scores in made.relevant.items():
        search[2][query] = {name.removeprefix("d"): score for name, score in scores.items()}
    model = model_of(random_vectors)
    expected = dt.evaluate(model, str(tmp_path / "pairs.jsonl"), str(folder))
    for pairs in (ROWS, table):
        assert dt.evaluate(model, pairs, search) == expected
    assert len(expected.pop("model")) == 6
    assert dt.evaluate("lexical", ROWS, search) == expected


WRONG = {
    "no baseline": {"tasks": ["MiniQuestions"], "suite": "mini"},
    "no text": {"pairs": [("secret", 3, 1)]},
    "no document": {"retrieval": (["secret"], ["x"], {"9": ["0"]})},
    "equal ids": {"retrieval": (["secret"], {1: "a cat", "1": "a dog"}, {"0": ["1"]})},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors_show_no_data(wrong):
    name, *_ = WRONG[wrong]
    with pytest.raises(ParameterError) as caught:
        dt.evaluate("lexical", **WRONG[wrong])
    assert caught.value.parameter == name
    assert "secret" not in str(caught.value)
