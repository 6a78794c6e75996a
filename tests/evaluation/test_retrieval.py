"""Search: figures against loops and sentence-transformers, and the files of collections."""

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


def embed(sentences):
    """Return a random vector for each text, (n, 8)."""
    generators = [torch.Generator().manual_seed(hash(s) % 2**40) for s in sentences]
    return torch.stack([torch.randn(8, generator=generator) for generator in generators])


def write_texts(file, texts):
    lines = [json.dumps({"_id": name, "text": text}) for name, text in texts.items()]
    file.write_text("\n".join(lines))


def loop(collection, judged):
    """Return the figures x 100, query by query; ``judged`` has scores by query and document."""
    found = {"nDCG@10": [], "MRR@10": [], "recall@100": [], "nDCG@10 (graded)": []}
    vectors = dict(zip(collection.documents, embed(collection.documents.values()), strict=True))
    for query, text in collection.queries.items():
        vector = embed([text])[0]
        others = [name for name in vectors if name != query or query == "q0"]
        others.sort(key=lambda name: -float(torch.cosine_similarity(vectors[name], vector, dim=0)))
        scores = {name: score for name, score in judged[query].items() if score and name in vectors}
        for metric, gain in (("nDCG@10 (graded)", lambda s: s), ("nDCG@10", lambda s: int(s > 0))):
            top = [gain(scores.get(name, 0)) for name in others[:10]]
            ideal = sorted(map(gain, scores.values()), reverse=True)[:10]
            dcg = [sum(g / np.log2(i + 2) for i, g in enumerate(gains)) for gains in (top, ideal)]
            found[metric].append(dcg[0] / dcg[1])
        ranks = [1 / (i + 1) for i in range(10) if others[i] in scores]
        found["MRR@10"].append(next(iter(ranks), 0.0))
        found["recall@100"].append(sum(name in scores for name in others[:100]) / len(scores))
    return {metric: 100 * np.mean(values) for metric, values in found.items()}


def test_figures_equal_a_loop(tmp_path):
    """q0 to q4 are documents too, of which q4 has another end; q0 is judged relevant to itself."""
    folder = make_collection(tmp_path / "made")
    queries = [json.loads(line) for line in (folder / "queries.jsonl").open()][:5]
    queries[4]["text"] += " and so on"
    with (folder / "corpus.jsonl").open("a") as corpus:
        for i, row in enumerate(queries):
            corpus.write(json.dumps({**row, "title": None if i % 2 else "title"}) + "\n")
    with (folder / "qrels" / "test.tsv").open("a") as qrels:
        qrels.write("q0\tq0\t1\n q1 \tlost\t1\nlost\td1\t2\n q1\tq2 \t3\n")
    collection = read_collection(folder)
    assert list(collection.documents.values())[1].startswith("t1\u2028 ")
    assert collection.self_queries == {"q1", "q2", "q3", "q4"}
    assert (collection.unjudged, collection.ignored) == (1, 2)
    judged = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, score = line.split()
        judged.setdefault(query, {})[document] = int(score)
    scores = collection.scores(TextEncoder(model_of(embed)))
    assert scores == pytest.approx(loop(collection, judged), abs=1e-6)


def test_equal_numbers_alone_do_not_hide_documents(tmp_path):
    folder = make_collection(tmp_path / "made")
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        text = re.sub(r'"_id": "[dq](\d+)"', r'"_id": \1', (folder / file).read_text())
        (folder / file).write_text(re.sub(r"^q(\d+)\td", r"\1\t", text, flags=re.MULTILINE))
    found = read_collection(folder)
    assert found.queries.keys() < found.documents.keys()
    assert not found.self_queries


def test_relevant_documents_are_not_hidden(tmp_path):
    """Each query ends the document of its number, which is judged relevant."""
    texts = {str(i): f"{make_sentences(40)[i]} number {i}" for i in range(30)}
    queries = {name: " ".join(text.split()[-4:]) for name, text in texts.items()}
    write_texts(tmp_path / "corpus.jsonl", texts)
    write_texts(tmp_path / "queries.jsonl", queries)
    (tmp_path / "qrels.tsv").write_text("\n".join(f"{name}\t{name}\t1" for name in texts))
    model = SentenceTransformer(modules=[static(3)], device="cpu")
    judged = {name: {name} for name in texts}
    expected = InformationRetrievalEvaluator(queries, texts, judged)(model)
    found = read_collection(tmp_path).scores(TextEncoder(model))
    assert found["MRR@10"] == pytest.approx(100 * expected["cosine_mrr@10"], abs=1e-4)
    assert found["MRR@10"] > 0


def test_equal_similarities_rank_by_id(tmp_path):
    """Their vectors differ as those of one text in two batches do."""
    plain = read_collection(make_collection(tmp_path / "made", documents=60))
    draw = np.random.default_rng(0)
    units = draw.normal(size=(2, 64))

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


def routes(folder):
    router = Router.for_query_document(
        [static(0)], [static(1)], default_route=None, allow_empty_key=False
    )
    return SentenceTransformer(modules=[router], device="cpu", prompts=PROMPTS)


MODELS = {
    "prompts": lambda folder: bert_with(folder, prompts=PROMPTS, similarity_fn_name="euclidean"),
    "default": lambda folder: bert_with(folder, prompts=PROMPTS, default_prompt_name="other"),
    "dot": lambda _: SentenceTransformer(modules=[static(0)], similarity_fn_name="dot"),
    "routes": routes,
}


@pytest.mark.parametrize("kind", MODELS)
def test_figures_equal_sentence_transformers(tmp_path, kind):
    plain = read_collection(make_collection(tmp_path / "made", documents=60))
    documents = {**plain.documents, "d9": ""}
    queries = {**plain.queries, "q1": documents["d7"], "q2": ""}
    relevant = {query: {**found, "d9": 1} for query, found in plain.relevant.items()}
    collection = replace(plain, queries=queries, documents=documents, relevant=relevant)
    model = MODELS[kind](tmp_path / "plain")
    model.save(str(tmp_path / kind), create_model_card=False)
    judged = {query: set(found) for query, found in relevant.items()}
    theirs = InformationRetrievalEvaluator(
        queries, documents, judged, ndcg_at_k=[10], mrr_at_k=[10], precision_recall_at_k=[100]
    )(model)
    figures = collection.scores(load_model(str(tmp_path / kind), None)[0])
    for metric in ("nDCG@10", "MRR@10", "recall@100"):
        expected = theirs[f"{model.similarity_fn_name}_{metric.lower()}"]
        assert figures[metric] == pytest.approx(100 * expected, abs=1e-4)
    # a model without a route for other texts has no figures on pairs
    code = main([f"--model={tmp_path / kind}", "--suite=mini", "--tasks=MiniSTS"])
    assert code == (2 if kind == "routes" else 0)


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("corpus.jsonl", '{"_id": "d1"}\n', "line 1"),
        ("corpus.jsonl", '{"_id": "d1", "text": "\\ud800"}\n', "line 1"),
        ("corpus.jsonl", "[" * 100_000, "line 1"),
        ("queries.jsonl", '{"_id": 1, "text": "a"}\n{"_id": "1", "text": "b"}\n', "line 2"),
        ("qrels/test.tsv", "q0\td1\t1\nq0\td2\tnan\n", "line 2"),
        ("qrels/test.tsv", "q0\t0\td2\t1\n" * 2, "line 1"),
        ("qrels/test.tsv", "q0\td999\t1\nq99\td1\t1\n", "2 judgements"),
        ("corpus.jsonl", None, "corpus.jsonl"),
        ("qrels/test.tsv", None, "qrels"),
    ],
)
def test_damaged_collections_are_refused(tmp_path, file, content, named):
    folder = make_collection(tmp_path / "made")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(DataError, match=f"^[^\n]*{named}[^\n]*$"):
        read_collection(folder)


def test_names_in_metrics_are_distinct(tmp_path):
    folders = [make_collection(tmp_path / name) for name in ("trec.a", "trec.b")]
    slugs = [collection.slug for collection in read_collections("retrieval", folders)]
    assert slugs == ["trec_a", "trec_b"]
    for name in ("Trec a", "---"):
        with pytest.raises(UserError, match=r"^retrieval: "):
            read_collections("retrieval", [*folders, make_collection(tmp_path / name)])


def test_search_selects_the_best_model(tmp_path):
    folder = make_collection(tmp_path / "Made up")
    settings = EvaluationSettings(eval_set=["none"], eval_retrieval=[str(folder)])
    evaluators = build_evaluators(settings)
    names = ["made_up_ndcg@10", "made_up_mrr@10", "made_up_recall@100", "made_up_ndcg@10_graded"]
    assert list(evaluators(model_of(embed))) == names
    assert evaluators.best_metric(None) == names[0]
    assert evaluators.best_metric("Made_up_Recall@100") == names[2]
    before = evaluators.digest()
    (folder / "qrels" / "test.tsv").write_text("q0\td1\t1\n")
    assert build_evaluators(settings).digest() != before


def test_program_measures_splits(tmp_path):
    folder = make_collection(tmp_path / "made")
    file = tmp_path / "results.jsonl"
    (folder / "qrels" / "dev.tsv").write_text("q0\td1\t1\n")
    model = [f"--model={EMBEDDED / 'bert-mini-wiki'}", "--pooler_type=avg", f"--output={file}"]
    assert main([*model, f"--retrieval={folder}"]) == 0
    assert main([*model, f"--retrieval={folder / 'qrels' / 'dev.tsv'}"]) == 0
    made, dev = read_results(file)
    assert (made.task, dev.task) == ("made", "made dev")
    metadata = read_collection(folder).metadata
    assert {**made.details, "sha256": made.data}.items() >= metadata.items()
    assert (dev.details["queries"], "nDCG@10 (graded)" in dev.figures) == (1, False)
    (evaluated,) = read_text_runs([file]).models
    expected = {
        f"{each.task} {metric}": figure
        for each in (made, dev)
        for metric, figure in each.figures.items()
    }
    assert evaluated.figures["retrieval"] == expected
    assert main([*model, f"--retrieval={tmp_path / 'none'}"]) == 2
