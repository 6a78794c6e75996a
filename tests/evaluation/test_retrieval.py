"""Search: figures against sklearn and sentence-transformers, and the files of collections."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, make_sentences
from model_cases import build_model, model_of
from search_cases import make_collection, random_vectors
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from sentence_transformers.models import Router, StaticEmbedding
from sklearn.metrics import ndcg_score

from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.evaluator_list import build_evaluators
from dystress_text.evaluation.evaluators import RetrievalEvaluator
from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.retrieval import (
    Collection,
    collection_from,
    read_collection,
    read_collections,
)
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.evaluation.text_encoder import TextEncoder


def by_rank(ranking, scores):
    """Return the figures of a query from all documents by rank, and the scores of its relevant."""
    gains = np.array([scores.get(name, 0) for name in ranking])
    order = [range(len(gains), 0, -1)]
    ranks = 1 + np.flatnonzero(gains[:10])
    return {
        "nDCG@10": ndcg_score([gains > 0], order, k=10),
        "MRR@10": 1 / ranks[0] if len(ranks) else 0,
        "recall@100": np.count_nonzero(gains[:100]) / len(scores),
        "nDCG@10 (graded)": ndcg_score([gains], order, k=10),
    }


def test_figures_equal_those_of_sklearn(tmp_path):
    """q0 to q3 are documents too, of which q0 is judged relevant to itself and q3 has another text."""
    folder = make_collection(tmp_path / "made")
    queries = [json.loads(line) for line in (folder / "queries.jsonl").open()][:4]
    queries[3]["text"] += " and so on"
    with (folder / "corpus.jsonl").open("a") as corpus:
        for i, row in enumerate(queries):
            corpus.write(json.dumps({**row, "title": None if i % 2 else "title"}) + "\n")
    with (folder / "qrels" / "test.tsv").open("a") as qrels:
        qrels.write("q0\tq0\t1\n q1 \tlost\t1\nlost\td1\t2\n q1\tq2 \t3\n")
        qrels.writelines(f"q1\td{i}\t1\n" for i in range(60))
    collection = read_collection(folder)
    assert list(collection.documents.values())[1].startswith("t1\u2028 ")
    assert collection.self_queries == {"q1", "q2"}
    assert collection.unjudged == 1
    assert collection.ignored == 2
    assert collection.relevant["q0"]["q0"] == 1
    assert collection.relevant["q1"]["q2"] == 3
    vectors = dict(
        zip(collection.documents, random_vectors(collection.documents.values()), strict=True)
    )
    found = []
    for query, text in collection.queries.items():
        cosines = {}
        for name, vector in vectors.items():
            if name != query or query not in ("q1", "q2"):
                cosines[name] = float(
                    torch.cosine_similarity(vector, random_vectors([text])[0], dim=0)
                )
        ranking = sorted(cosines, key=lambda name: -cosines[name])
        found.append(by_rank(ranking, collection.relevant[query]))
    expected = {name: 100 * np.mean([each[name] for each in found]) for name in found[0]}
    assert collection.scores(TextEncoder(model_of(random_vectors))) == pytest.approx(expected)


PROMPTS = {"query": "the cat saw ", "document": "red house ", "other": "one two "}


def static(seed):
    torch.manual_seed(seed)
    return StaticEmbedding(build_tokenizer().backend_tokenizer, embedding_dim=8)


def routes():
    router = Router.for_query_document(
        [static(0)], [static(1)], default_route=None, allow_empty_key=False
    )
    return SentenceTransformer(modules=[router], device="cpu", prompts=PROMPTS)


MODELS = {
    "manhattan": lambda: build_model(
        "distilbert", normalize=True, similarity_fn_name="manhattan", truncate_dim=6
    ),
    "truncated": lambda: build_model("bert", normalize=True, truncate_dim=4),
    "prompts": lambda: build_model("bert", prompts=PROMPTS, similarity_fn_name="euclidean"),
    "default": lambda: build_model("bert", prompts=PROMPTS, default_prompt_name="other"),
    "dot": lambda: SentenceTransformer(modules=[static(0)], similarity_fn_name="dot"),
    "routes": routes,
}


@pytest.mark.parametrize("kind", MODELS)
def test_figures_equal_sentence_transformers(tmp_path, kind):
    plain = read_collection(make_collection(tmp_path / "made", documents=60))
    documents = {**plain.documents, "d9": ""}
    relevant = {query: {**found, "d9": 1} for query, found in plain.relevant.items()}
    collection = replace(plain, documents=documents, relevant=relevant)
    model = MODELS[kind]()
    theirs = InformationRetrievalEvaluator(
        collection.queries,
        documents,
        {query: set(found) for query, found in relevant.items()},
        ndcg_at_k=[10],
        mrr_at_k=[10],
        precision_recall_at_k=[100],
    )(model)
    figures = collection.scores(TextEncoder(model))
    for metric in ("nDCG@10", "MRR@10", "recall@100"):
        expected = theirs[f"{model.similarity_fn_name}_{metric.lower()}"]
        assert figures[metric] == pytest.approx(100 * expected, abs=1e-4)


def nearly_equal(sentences):
    """Vectors whose similarities differ little, and which are not of length 1."""
    return 40 + random_vectors(sentences)


def z(scores):
    return (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True)


@pytest.mark.parametrize("similarity", ["cosine", "manhattan"])
def test_a_model_with_bm25_adds_z_scores(tmp_path, similarity):
    collection = read_collection(make_collection(tmp_path / "made"))
    model = model_of(nearly_equal)
    model.similarity_fn_name = similarity
    texts = [*collection.queries.values()], [*collection.documents.values()]
    vectors = [nearly_equal(some).double() for some in texts]
    dense = model.similarity(*vectors).numpy()  # (queries, documents)
    bm25 = np.zeros_like(dense)
    for row, hits in enumerate(LexicalBaseline().search(*texts, len(texts[1]))):
        for column, score in hits:
            bm25[row, column] = score
    ranking = np.argsort(-(z(dense) + 0.5 * z(bm25)), kind="stable")
    names = [*collection.documents]
    found = []
    for query, columns in zip(collection.queries, ranking, strict=True):
        found.append(by_rank([names[i] for i in columns], collection.relevant[query])["nDCG@10"])
    figures = RetrievalEvaluator(collection).figures(TextEncoder(model))
    assert figures["nDCG@10 with BM25"] == pytest.approx(100 * np.mean(found))
    assert figures["nDCG@10 with BM25"] != pytest.approx(figures["nDCG@10"])


@pytest.mark.parametrize("words", ["the cat", "☃"])
def test_a_model_with_bm25_that_finds_nothing_ranks_alone(words):
    documents = {f"d{i}": text for i, text in enumerate(make_sentences(60))}
    collection = Collection("made", documents, {"q": "☃ ☂"}, {"q": {"d7": 1, "d8": 1}}, 0, 0)
    if words == "☃":
        collection = replace(collection, documents=dict.fromkeys(documents, words))
    figures = RetrievalEvaluator(collection).figures(TextEncoder(model_of(random_vectors)))
    alone = figures.pop("nDCG@10")
    assert figures.get("nDCG@10 with BM25", alone) == alone
    assert ("nDCG@10 with BM25" in figures) == (words != "☃")


def test_bm25_ranks_beside_a_model_that_does_not():
    documents = {"a": "red house", "b": "a dog ran", "c": "a cat sat"}
    collection = Collection("made", documents, {"q": "cat"}, {"q": {"c": 1}}, 0, 0)
    equal = model_of(lambda some: torch.ones(len(some), 3))
    figures = RetrievalEvaluator(collection).figures(TextEncoder(equal))
    assert figures["nDCG@10"] == 50
    assert figures["nDCG@10 with BM25"] == 100


COPIES = 240  # of one document, more than any figure reads


@pytest.mark.parametrize(("similarity", "spaces"), [("cosine", 0), ("dot", 1), ("euclidean", 1)])
def test_equal_documents_are_ranked_in_the_order_of_the_corpus(similarity, spaces):
    """Those of equal tokens are encoded in several batches; other documents lie between them."""
    sentences = make_sentences(40)
    texts = []
    for i in range(COPIES):
        texts.append("the cat ran" + i * spaces * " ")
        texts.append(sentences[i % 40])
    documents = {f"d{i}": text for i, text in enumerate(texts)}
    copies = [name for name, text in documents.items() if text.startswith("the cat ran")]
    relevant = {"first": {copies[0]: 1}, "next": {copies[7]: 1}, "many": dict.fromkeys(copies, 1)}
    queries = dict.fromkeys(relevant, "the cat ran")
    collection = Collection("made", documents, queries, relevant, 0, 0)
    expected = [by_rank(copies, scores) for scores in relevant.values()]
    model = build_model("bert", similarity_fn_name=similarity)
    for encoder in (TextEncoder(model), LexicalBaseline()):
        figures = RetrievalEvaluator(collection).figures(encoder)
        for metric in ("nDCG@10", "MRR@10", "recall@100"):
            mean = np.mean([each[metric] for each in expected])
            assert figures[metric] == pytest.approx(100 * mean)
            fused = figures.get(f"{metric} with BM25")
            assert fused is None or fused == pytest.approx(100 * mean)


def test_equal_documents_at_the_depth_of_a_figure():
    """The 100th document is one of many equal ones, of which the first are found; the 11th."""
    names = [f"d{i}" for i in range(300)]
    texts = [*make_sentences(90), *["red house"] * 210]
    relevant = {"q": dict.fromkeys(names[90:100], 1), "eleventh": {"d10": 1}}
    documents = dict(zip(names, texts, strict=True))
    collection = Collection("made", documents, dict.fromkeys(relevant, "dog"), relevant, 0, 0)
    vectors = {text: [1.0, i / 1000] for i, text in enumerate(dict.fromkeys(["dog", *texts]))}
    model = model_of(lambda some: torch.tensor([vectors[text] for text in some]))
    expected = {"nDCG@10": 0, "MRR@10": 0, "recall@100": 100}
    assert collection.scores(TextEncoder(model)) == expected


def test_similarities_of_large_collections_are_computed_in_blocks(tmp_path, monkeypatch):
    search = RetrievalEvaluator(read_collection(make_collection(tmp_path / "made")))
    encoder = TextEncoder(build_model("bert"))
    expected = search.figures(encoder)
    monkeypatch.setattr("dystress_text.evaluation.text_encoder.DOCUMENTS_AT_ONCE", 7)
    monkeypatch.setattr("dystress_text.evaluation.text_encoder.SIMILARITIES_AT_ONCE", 400)
    assert search.figures(encoder) == expected


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("corpus.jsonl", '{"_id": "d1"}\n', "row 1"),
        ("corpus.jsonl", "[" * 100_000, "line 1"),
        ("queries.jsonl", '{"_id": 1, "text": "a"}\n{"_id": "1", "text": "b"}\n', "row 2"),
        ("qrels/test.tsv", "q0\td1\t1\nq0\td2\tnan\n", "line 2"),
        ("qrels/test.tsv", "q0\td999\t1\nq99\td1\t1\n", "2 judgements"),
        ("corpus.jsonl", None, "corpus.jsonl"),
        ("qrels/test.tsv", None, "qrels"),
    ],
)
def test_damaged_collections_are_refused(tmp_path, file, content, named):
    folder = make_collection(tmp_path / "made", documents=20)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(DataError, match=f"^[^\n]*{named}[^\n]*$"):
        read_collection(folder)


@pytest.mark.parametrize("form", ["{}\t0\t{}\t{}", "{} Q0 {} {}", "\ufeff{}\t{}\t{}"])
def test_judgements_of_trec_and_beir(tmp_path, form):
    mark = form[: form.index("{")]
    for name in ("corpus", "queries"):
        rows = [json.dumps({"_id": str(i), "text": f"{name} {i}"}) for i in range(4)]
        (tmp_path / f"{name}.jsonl").write_text(mark + "\n".join(rows), encoding="utf-8")
    lines = [form.removeprefix(mark).format(*row) for row in ((0, 2, 1), (1, 3, 2), (1, 0, 1))]
    (tmp_path / "qrels.tsv").write_text(mark + "\n".join(lines), encoding="utf-8")
    assert read_collection(tmp_path).relevant == {"0": {"2": 1}, "1": {"3": 2, "0": 1}}


def test_texts_are_read_as_beir_reads_them(tmp_path):
    rows = [
        {"_id": "a", "title": "A title", "text": " two  spaces\n"},
        {"_id": "b", "text": " b\n"},
    ]
    lines = "\n".join(map(json.dumps, rows))
    (tmp_path / "corpus.jsonl").write_text(lines)
    (tmp_path / "queries.jsonl").write_text(lines)
    (tmp_path / "qrels.tsv").write_text("a\tb\t1\nb\ta\t1\n")
    found = read_collection(tmp_path)
    assert found.queries == {"a": " two  spaces\n", "b": " b\n"}
    assert found.documents == {"a": "A title  two  spaces", "b": " b\n"}


TEXTS = {"1": "one", "2": "two", "12": "twelve"}


def test_a_text_in_memory_is_not_split():
    for document in ("12", 12):
        assert collection_from((["12"], TEXTS, {0: document})).relevant == {"0": {"12": 1}}
    assert collection_from((["12"], TEXTS, {0: {"12": 0.5}})).graded
    for data in (("12", TEXTS, {"0": "12"}), (TEXTS, "12", {"1": ["0"]}), (TEXTS, TEXTS, "12")):
        with pytest.raises(UserError, match=r"^retrieval: "):
            collection_from(data)


def test_checksums_tell_what_was_judged():
    one = collection_from((TEXTS, TEXTS, {"1": ["2"]}))
    judged = [replace(one, judged=frozenset({("1", document)})) for document in ("2", "12")]
    assert len({each.metadata["sha256"] for each in (one, *judged)}) == 3


def test_names_in_metrics_are_distinct(tmp_path):
    folders = [make_collection(tmp_path / name, documents=20) for name in ("trec.a", "Trec a")]
    assert read_collection(folders[0]).slug == "trec_a"
    with pytest.raises(UserError, match=r"^retrieval: "):
        read_collections(folders)


def test_search_selects_the_best_model(tmp_path):
    folder = make_collection(tmp_path / "Made up", documents=20)
    settings = EvaluationSettings(eval_set=["none"], retrieval=[str(folder)])
    evaluators = build_evaluators(settings)
    names = ["made_up_ndcg@10", "made_up_mrr@10", "made_up_recall@100", "made_up_ndcg@10_graded"]
    names.append("made_up_ndcg@10_with_bm25")
    assert list(evaluators(model_of(random_vectors))) == names
    assert evaluators.best_metric(None) == names[0]
    assert evaluators.best_metric("eval_made_up_recall@100") == names[2]
    metric = evaluators.metrics["made_up_ndcg@10_with_bm25"]
    assert metric.lexical_metric == "made_up_ndcg@10"
    assert "z-scores" in metric.title
    assert "z-scores" not in evaluators.metrics["made_up_ndcg@10"].title
    assert evaluators.metrics["made_up_recall@100"].lexical_metric == ""
    before = evaluators.digest()
    (folder / "qrels" / "test.tsv").write_text("q0\td1\t1\n")
    assert build_evaluators(settings).digest() != before


def test_a_file_of_judgements_is_a_split(tmp_path):
    folder = make_collection(tmp_path / "made", documents=20)
    dev = folder / "qrels" / "dev.tsv"
    dev.write_text("q0\td1\t1\n")
    (dev.parent / "test.tsv").rename(folder / "qrels.tsv")
    test, of_dev = read_collections([folder, dev])
    assert test.name == "made"
    assert of_dev.name == "made dev"
    assert list(of_dev.queries) == ["q0"]
    assert "nDCG@10 (graded)" in test.metrics
    assert "nDCG@10 (graded)" not in of_dev.metrics
    with pytest.raises(UserError, match=r"^retrieval: "):
        read_collections([tmp_path / "none"])
