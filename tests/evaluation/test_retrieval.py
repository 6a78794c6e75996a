"""Search as a measure: its figures against scikit-learn and loops, the files it reads, and where figures go."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_sentences
from sklearn.metrics import ndcg_score

from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.evaluators import build_evaluation
from dystress_text.evaluation.retrieval import read_collection, read_collections
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.files.places import EMBEDDED
from dystress_text.report.text_runs import read_text_runs
from dystress_text.senteval import main
from dystress_text.train import main as train

CISI = Path(__file__).resolve().parents[3] / "shared" / "data" / "retrieval" / "cisi"


def make_collection(folder, documents=150, queries=12, seed=0):
    """Documents, queries, of which one has no judgement, and judgements of 0 and 1; BEIR's own place of the qrels."""
    draw, texts = np.random.default_rng(seed), make_sentences(documents + queries, seed=seed)
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{i}", "title": f"t{i}\u2028" * (i % 2), "text": x} for i, x in enumerate(texts[:documents])]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n\n" for row in rows))
    rows = [{"_id": f"q{i}", "text": text} for i, text in enumerate(texts[documents:])]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", "q0\td5\t0"]
    for i in range(queries - 1):
        lines += [f"q{i}\td{j}\t{1 + j % 2}" for j in draw.choice(documents, 1 + 4 * (i % 5), replace=False) if j != 5]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return folder


def embed(sentences):
    """Random vectors that only the text decides."""
    return torch.stack([torch.randn(8, generator=torch.Generator().manual_seed(hash(s) % 2**40)) for s in sentences])


def test_figures_are_those_of_scikit_learn_and_of_loops(tmp_path):
    found = read_collection(make_collection(tmp_path / "made"))
    assert found.summary() == "made: 150 documents, 11 queries; 1 queries without a relevant document are left out"
    assert next(iter(found.documents.values())) == make_sentences(162, seed=0)[0]
    assert list(found.documents.values())[1].startswith("t1\u2028 ")
    documents, queries = (
        torch.nn.functional.normalize(embed(list(x.values()))) for x in (found.documents, found.queries)
    )
    similarity = (queries @ documents.T).numpy()
    truth = np.array([[name in found.relevant[query] for name in found.documents] for query in found.queries])
    first, recall = [], []
    for scores, relevant in zip(similarity, truth, strict=True):
        ranked = relevant[np.argsort(-scores)]
        first.append(next((1 / (i + 1) for i in range(10) if ranked[i]), 0.0))
        recall.append(ranked[:100].sum() / relevant.sum())
    expected = {"nDCG@10": ndcg_score(truth, similarity, k=10), "MRR@10": np.mean(first), "recall@100": np.mean(recall)}
    assert found.scores(embed) == pytest.approx({name: 100 * value for name, value in expected.items()}, abs=1e-6)


@pytest.mark.parametrize(("file", "content", "message"), [
    ("corpus.jsonl", '{"_id": "d1"}\n', "line 1 of .*corpus.jsonl is not JSON with _id and text"),
    ("corpus.jsonl", '\n{"_id": "d1", "title": "a", "text": null}\n', "line 2 of .*corpus.jsonl is not JSON with _id"),
    ("corpus.jsonl", '{"_id": "d1", "text": "\\ud800"}\n', "line 1 of .*corpus.jsonl is not JSON with _id and text"),
    ("queries.jsonl", "[\n", "line 1 of .*queries.jsonl is not JSON"),
    ("queries.jsonl", '{"_id": 1, "text": "a"}\n{"_id": "1", "text": "b"}\n', "line 2 of .* repeats the _id '1'"),
    ("qrels/test.tsv", "q0\td1\t1\nq0\td2\tnan\n", "line 2 of .* is not a query, a document and a score"),
    ("qrels/test.tsv", "q0\t0\td2\t1\n" * 2, "line 1 of .* is not a query, a document and a score"),
    ("qrels/test.tsv", "q0\td999\t1\n", "line 1 of .* names the document 'd999', which the collection has not"),
    ("qrels/test.tsv", "q99\td1\t1\n", "names the query 'q99'"),
    ("qrels/test.tsv", "query\tdocument\tscore\nq0\td1\t0\n", "has no score above 0"),
    ("corpus.jsonl", None, "cannot read .*corpus.jsonl: No such file"),
    ("qrels/test.tsv", None, "has neither qrels.tsv nor qrels/test.tsv"),
])  # fmt: skip
def test_a_collection_that_does_not_fit_together_is_one_line(tmp_path, file, content, message):
    folder = make_collection(tmp_path / "made")
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_collection(folder)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"^eval_retrieval: "):
        build_evaluation(EvaluationSettings(eval_set=["none"], eval_retrieval=[str(folder)]))


def test_metrics_have_names_of_their_own(tmp_path):
    folders = [make_collection(tmp_path / name) for name in ("trec.a", "trec.b")]
    assert [collection.slug for collection in read_collections(folders)] == ["trec_a", "trec_b"]
    for name, message in (("Trec a", "two collections are named 'trec_a'"), ("---", "the name of a folder has no")):
        with pytest.raises(DataError, match=message):
            read_collections([*folders, make_collection(tmp_path / name)])


def test_it_chooses_the_best_model_while_training(tmp_path):
    folder = make_collection(tmp_path / "Made up")
    evaluation = build_evaluation(EvaluationSettings(eval_set=["none"], eval_retrieval=[str(folder)]))
    metrics = evaluation(embed)
    assert list(metrics) == ["made_up_ndcg@10", "made_up_mrr@10", "made_up_recall@100"]
    assert evaluation.best_metric(None) == "made_up_ndcg@10"
    assert evaluation.best_metric("Made_up_Recall@100") == "made_up_recall@100"
    before = evaluation.digest()
    (folder / "qrels" / "test.tsv").write_text("q0\td1\t1\n")
    assert build_evaluation(EvaluationSettings(eval_set=["none"], eval_retrieval=[str(folder)])).digest() != before


def test_the_program_writes_figures_beside_those_of_tasks(tmp_path, capsys):
    folder, file = make_collection(tmp_path / "made"), tmp_path / "senteval-mini-test.json"
    model = [f"--model={EMBEDDED / 'bert-mini-wiki'}", "--pooler_type=avg", f"--output={file}", "--suite=mini"]
    assert main([*model, "--tasks", "MiniSTS", "--geometry", "none"]) == 0
    assert main([*model, "--retrieval", str(folder)]) == 0
    content = json.loads(file.read_text())
    assert list(content["tasks"]) == ["MiniSTS"]
    made = content["retrieval"]["made"]
    assert made.items() >= read_collection(folder).about.items() >= {"documents": 150, "left_out": 1}.items()
    printed = capsys.readouterr().out
    assert "made nDCG@10" in printed
    assert f"{made['nDCG@10']:.2f}" in printed
    (model,) = read_text_runs([file])[2]
    assert model.figures["retrieval"]["made recall@100"] == made["recall@100"]
    assert main([f"--model={tmp_path}", "--retrieval", str(tmp_path / "none")]) == 2
    assert "--retrieval: no folder" in capsys.readouterr().err


def test_a_run_on_crops_says_what_it_reads_and_goes_on_to_the_same_bits(flags, tmp_path, capsys):
    folder, model = make_collection(tmp_path / "made"), tmp_path / "out" / "model.safetensors"
    more = ["--views=crop", "--crop_min_words=1", "--eval_set=none", f"--eval_retrieval={folder}", "--save_steps=4"]
    assert train([*flags, *more]) == 0
    assert f"0.2 to 0.6 of it in words\n{read_collection(folder).summary()}\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "run.json").read_text())["collections"]["made"]["left_out"] == 1
    before = model.read_bytes()
    assert train([*flags, *more, "--resume_from_checkpoint"]) == 0
    assert "going on after step 4" in capsys.readouterr().out
    assert model.read_bytes() == before


@pytest.mark.skipif(not CISI.is_dir(), reason="needs the shared data")
def test_a_real_collection_is_read():
    found = read_collection(CISI)
    assert (len(found.documents), len(found.queries), found.left_out) == (1460, 76, 0)
    assert sum(map(len, found.relevant.values())) == 3114
