"""Search as a measure: its figures against scikit-learn and loops, the files it reads, and where
figures go.
"""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, make_sentences
from model_cases import model_of
from search_cases import make_collection
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from sentence_transformers.models import Router, StaticEmbedding
from trainer_cases import interrupt

from dystress_text.analysis.text_runs import read_text_runs
from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.embedder import TextEncoder, load_model, with_pooler
from dystress_text.evaluation.evaluators import build_evaluators
from dystress_text.evaluation.results import read_results
from dystress_text.evaluation.retrieval import read_collection, read_collections
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.io.paths import EMBEDDED
from dystress_text.models.loading import load_encoder, save_model
from dystress_text.programs.senteval import main
from dystress_text.programs.train import main as train


def embed(sentences):
    """Random vectors that only the text decides."""
    return torch.stack(
        [
            torch.randn(8, generator=torch.Generator().manual_seed(hash(s) % 2**40))
            for s in sentences
        ]
    )


def test_figures_are_those_of_loops_and_what_beir_ignores_is_ignored_and_counted(tmp_path):
    """q0 to q4 are documents too, of which one has another end."""
    folder = make_collection(tmp_path / "made")
    plain = read_collection(folder)
    assert (
        plain.summary()
        == "made: 150 documents, 11 queries; 1 queries without a relevant document are left out"
    )
    assert list(plain.documents.values())[1].startswith("t1\u2028 ")
    with (
        (folder / "queries.jsonl").open() as queries,
        (folder / "corpus.jsonl").open("a") as corpus,
    ):
        rows = [json.loads(line) for line in list(queries)[:5]]
        rows[4]["text"] += " and so on"
        corpus.writelines(
            json.dumps({**row, "title": None if i % 2 else "title"}) + "\n"
            for i, row in enumerate(rows)
        )
    with (folder / "qrels" / "test.tsv").open("a") as qrels:
        qrels.write("q0\tq0\t1\n q1 \tlost\t1\nlost\td1\t2\n q1\tq2 \t3\n")
    collection = read_collection(folder)
    assert collection.own == {"q1", "q2", "q3", "q4"}  # q0 is judged relevant to itself
    assert collection.summary().endswith(
        "; 2 judgements of what the collection lacks are ignored; 4 queries are documents, which do not find themselves"
    )
    judged: dict = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, score = line.split()
        judged.setdefault(query, {})[document] = int(score)
    units = {
        name: torch.nn.functional.normalize(embed([x])[0], dim=0)
        for name, x in collection.documents.items()
    }
    expected: dict = {"nDCG@10": [], "MRR@10": [], "recall@100": [], "nDCG@10 (graded)": []}
    for query, text in collection.queries.items():
        vector = torch.nn.functional.normalize(embed([text])[0], dim=0)
        ranked = sorted(
            (name for name in units if name != query or query == "q0"),
            key=lambda name: -float(units[name] @ vector),
        )
        scores = {name: score for name, score in judged[query].items() if score and name in units}
        for gain, metric in ((lambda s: s, "nDCG@10 (graded)"), (lambda s: int(s > 0), "nDCG@10")):
            top, best = (
                [gain(scores.get(n, 0)) for n in ranked[:10]],
                sorted(map(gain, scores.values()))[::-1][:10],
            )
            dcg = [sum(g / np.log2(i + 2) for i, g in enumerate(gains)) for gains in (top, best)]
            expected[metric].append(dcg[0] / dcg[1])
        expected["MRR@10"].append(
            next((1 / (i + 1) for i in range(10) if ranked[i] in scores), 0.0)
        )
        expected["recall@100"].append(sum(name in scores for name in ranked[:100]) / len(scores))
    means = {metric: 100 * np.mean(values) for metric, values in expected.items()}
    assert collection.scores(TextEncoder(model_of(embed))) == pytest.approx(means, abs=1e-6)


def test_queries_and_documents_that_are_only_numbered_alike_stay(tmp_path):
    folder = make_collection(tmp_path / "made")
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        text = re.sub(r'"_id": "[dq](\d+)"', r'"_id": \1', (folder / file).read_text())
        (folder / file).write_text(re.sub(r"^q(\d+)\td", r"\1\t", text, flags=re.MULTILINE))
    found = read_collection(folder)
    assert (len(found.queries), found.own) == (11, frozenset())
    assert found.queries.keys() < found.documents.keys()


def test_a_document_judged_relevant_is_found_though_a_query_of_its_number_ends_it(tmp_path):
    texts = {str(i): f"{make_sentences(40)[i]} number {i}" for i in range(30)}
    queries = {name: " ".join(text.split()[-4:]) for name, text in texts.items()}
    (folder := tmp_path / "numbered").mkdir()
    for file, rows in (("corpus", texts), ("queries", queries)):
        lines = [json.dumps({"_id": name, "text": text}) for name, text in rows.items()]
        (folder / f"{file}.jsonl").write_text("\n".join(lines))
    judged = {name: {name} for name in texts}
    (folder / "qrels.tsv").write_text("\n".join(f"{name}\t{name}\t1" for name in texts))
    model = SentenceTransformer(modules=[static(3)], device="cpu")
    expected = InformationRetrievalEvaluator(queries, texts, judged)(model)
    found = read_collection(folder).scores(TextEncoder(model))
    assert found["nDCG@10"] == pytest.approx(100 * expected["cosine_ndcg@10"], abs=1e-4)
    assert found["MRR@10"] == pytest.approx(100 * expected["cosine_mrr@10"], abs=1e-4)
    assert found["MRR@10"] > 0


def test_documents_of_equal_similarity_rank_by_their_id(tmp_path):
    """Their vectors differ as those of one text in two batches do."""
    folder = make_collection(tmp_path / "made", documents=60)
    plain, draw = read_collection(folder), np.random.default_rng(0)
    units = draw.normal(size=(2, 64))
    units[1] -= units[1] @ units[0] / (units[0] @ units[0]) * units[0] * 0.7  # at another angle

    def noisy(sentences):
        is_query = [sentence in plain.queries.values() for sentence in sentences]
        vectors = units[np.array(is_query, int)]
        return torch.tensor(vectors * (1 + 1e-7 * draw.normal(size=vectors.shape))).float()

    relevant = {query: {"d0": 1.0} for query in plain.queries}
    collection = replace(plain, relevant=relevant, graded=False)
    first = sorted(plain.documents).index("d0") + 1
    assert collection.scores(TextEncoder(model_of(noisy)))["MRR@10"] == pytest.approx(100 / first)


PROMPTS = {"query": "the cat saw ", "document": "small old ", "other": "red house "}


def bert_with(folder, **more):
    save_model(with_pooler(load_encoder(str(EMBEDDED / "bert-mini-wiki")), "avg"), folder)
    return SentenceTransformer(str(folder), device="cpu", **more)


def static(seed):
    torch.manual_seed(seed)
    return StaticEmbedding(build_tokenizer().backend_tokenizer, embedding_dim=8)


MODELS = {
    "prompts": lambda folder: bert_with(folder, prompts=PROMPTS, similarity_fn_name="euclidean"),
    "default": lambda folder: bert_with(folder, prompts={"other": PROMPTS["other"]}, default_prompt_name="other"),
    "dot": lambda folder: SentenceTransformer(modules=[static(0)], similarity_fn_name="dot", device="cpu"),
    "routes": lambda folder: SentenceTransformer(
        modules=[Router.for_query_document([static(0)], [static(1)], default_route=None, allow_empty_key=False)],
        device="cpu", prompts=PROMPTS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_figures_are_those_of_sentence_transformers_for_prompts_routes_and_similarities(
    tmp_path, kind, capsys
):
    collection = read_collection(make_collection(tmp_path / "made", documents=60))
    texts = [*collection.documents.values()]
    queries = {
        **collection.queries,
        "q1": texts[7],
        "q2": "",
    }  # one text as a query and as a document, and none
    collection = replace(collection, queries=queries, documents={**collection.documents, "d9": ""}, relevant={
        query: {**found, "d9": 1} for query, found in collection.relevant.items()
    })  # fmt: skip
    model = MODELS[kind](tmp_path / "plain")
    model.save(str(tmp_path / kind), create_model_card=False)
    ks = {
        "ndcg_at_k": [10],
        "mrr_at_k": [10],
        "precision_recall_at_k": [100],
        "accuracy_at_k": [1],
        "map_at_k": [1],
    }
    relevant = {query: set(found) for query, found in collection.relevant.items()}
    expected = InformationRetrievalEvaluator(queries, dict(collection.documents), relevant, **ks)(
        model
    )
    embed, about = load_model(str(tmp_path / kind), None)
    figures = collection.scores(embed)
    name = f"{model.similarity_fn_name}_{{}}".format
    assert figures["nDCG@10"] == pytest.approx(100 * expected[name("ndcg@10")], abs=1e-4)
    assert figures["MRR@10"] == pytest.approx(100 * expected[name("mrr@10")], abs=1e-4)
    assert figures["recall@100"] == pytest.approx(100 * expected[name("recall@100")], abs=1e-4)
    assert about["max_seq_length"] == (None if kind in ("dot", "routes") else model.max_seq_length)
    tasks = main([f"--model={tmp_path / kind}", "--suite=mini", "--tasks=MiniSTS"])
    assert tasks == (2 if kind == "routes" else 0)  # without a route for other texts
    if kind == "routes":
        assert "cannot encode with" in capsys.readouterr().err


@pytest.mark.parametrize(("file", "content", "message"), [
    ("corpus.jsonl", '{"_id": "d1"}\n', "line 1 of .*corpus.jsonl is not JSON with _id and text"),
    ("corpus.jsonl", '{"_id": "d1", "text": "\\ud800"}\n', "line 1 of .*corpus.jsonl is not JSON with _id and text"),
    ("queries.jsonl", "[\n", "line 1 of .*queries.jsonl is not JSON"),
    ("queries.jsonl", '{"_id": 1, "text": "a"}\n{"_id": "1", "text": "b"}\n', "line 2 of .* repeats the _id '1'"),
    ("qrels/test.tsv", "q0\td1\tx\nq0\td2\t1\n", "line 1 of .* is not a query, a document and a score"),
    ("qrels/test.tsv", "q0\td1\t1\nq0\td2\tnan\n", "line 2 of .* is not a query, a document and a score"),
    ("qrels/test.tsv", "q0\t0\td2\t1\n" * 2, "line 1 of .* is not a query, a document and a score .*TREC's four"),
    ("qrels/test.tsv", "query-id corpus-id score\nq0 d2 1\n", "line 1 of .* with tabs between them, BEIR's layout"),
    ("qrels/test.tsv", "q0\td999\t1\nq99\td1\t1\n", "no score above 0 for what .*; 2 judgements are of what it lacks"),
    ("corpus.jsonl", None, "cannot read .*corpus.jsonl: No such file"),
    ("qrels/test.tsv", None, "has no qrels.tsv and no qrels/test.tsv"),
])  # fmt: skip
def test_a_collection_that_does_not_fit_together_is_one_line(tmp_path, file, content, message):
    folder = make_collection(tmp_path / "made")
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_collection(folder)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"^eval_retrieval: "):
        build_evaluators(EvaluationSettings(eval_set=["none"], eval_retrieval=[str(folder)]))


def test_metrics_have_names_of_their_own(tmp_path):
    folders = [make_collection(tmp_path / name) for name in ("trec.a", "trec.b")]
    assert [collection.slug for collection in read_collections("retrieval", folders)] == [
        "trec_a",
        "trec_b",
    ]
    for name, message in (
        ("Trec a", "two sets would have the name 'trec_a'"),
        ("---", "the name of a folder has no"),
    ):
        with pytest.raises(UserError, match=message):
            read_collections("retrieval", [*folders, make_collection(tmp_path / name)])


def test_it_chooses_the_best_model_while_training(tmp_path):
    folder = make_collection(tmp_path / "Made up")
    settings = EvaluationSettings(eval_set=["none"], eval_retrieval=[str(folder)])
    evaluation = build_evaluators(settings)
    metrics = evaluation(model_of(embed))
    assert list(metrics) == [
        "made_up_ndcg@10",
        "made_up_mrr@10",
        "made_up_recall@100",
        "made_up_ndcg@10_graded",
    ]
    assert evaluation.best_metric(None) == "made_up_ndcg@10"
    assert evaluation.best_metric("Made_up_Recall@100") == "made_up_recall@100"
    before = evaluation.digest()
    (folder / "qrels" / "test.tsv").write_text("q0\td1\t1\n")
    assert build_evaluators(settings).digest() != before


def test_the_program_writes_figures_beside_those_of_tasks(tmp_path, capsys):
    folder, file = make_collection(tmp_path / "made"), tmp_path / "results.jsonl"
    (folder / "qrels" / "dev.tsv").write_text("q0\td1\t1\n")
    model = [
        f"--model={EMBEDDED / 'bert-mini-wiki'}",
        "--pooler_type=avg",
        f"--output={file}",
        "--suite=mini",
    ]
    search = [*model, "--retrieval", str(folder)]
    assert main([*model, "--tasks", "MiniSTS", "--geometry", "none"]) == 0
    dev_file = folder / "qrels" / "dev.tsv"
    assert main(search) == main([*model, "--retrieval", str(dev_file)]) == 0
    results = read_results(file)
    assert [each.task for each in results] == ["MiniSTS", "made", "made dev"]
    _, made, dev = results
    about = read_collection(folder).about
    assert {**made.details, "sha256": made.data}.items() >= about.items()
    assert about.items() >= {"documents": 150, "left_out": 1}.items()
    assert (dev.details["queries"], "nDCG@10 (graded)" in dev.figures) == (1, False)
    assert (
        f"{made.figures['nDCG@10 (graded)']:.2f}\n"
        in capsys.readouterr().out.split("made nDCG@10 (graded)")[1]
    )
    (evaluated,) = read_text_runs([file])[2]
    expected = {
        f"{one.task} {metric}": figure
        for one in (made, dev)
        for metric, figure in one.figures.items()
    }
    assert evaluated.figures["retrieval"] == expected
    for wrong, said in (
        ([*search, "--split=dev"], "unknown option --split"),
        ([*model, f"--retrieval={folder / 'qrels' / 'train.tsv'}"], "--retrieval: cannot read"),
        ([f"--model={tmp_path}", "--retrieval", str(tmp_path / "none")], "--retrieval: no folder"),
    ):
        assert main(wrong) == 2
        assert said in capsys.readouterr().err


def test_a_run_on_crops_says_what_it_reads_and_goes_on_to_the_same_bits(flags, tmp_path, capsys):
    folder, model = make_collection(tmp_path / "made"), tmp_path / "out" / "model.safetensors"
    more = ["--views=crop", "--eval_set=none", f"--eval_retrieval={folder}", "--save_steps=4"]
    assert train([*flags, *more]) == 0
    assert (
        f"0.2 to 0.6 of its words\n{read_collection(folder).summary()}\n" in capsys.readouterr().out
    )
    assert (
        json.loads((tmp_path / "out" / "run.json").read_text())["collections"]["made"]["left_out"]
        == 1
    )
    before = model.read_bytes()
    interrupt(tmp_path / "out")
    assert train([*flags, *more, "--resume_from_checkpoint"]) == 0
    assert "going on after step 4" in capsys.readouterr().out
    assert model.read_bytes() == before
