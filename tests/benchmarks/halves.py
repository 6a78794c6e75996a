"""The study of docs/study/halves_plan.md: do halves that find each other agree with a labelled
search?

    python tests/benchmarks/halves.py # the statistics of docs/study/halves.jsonl
    python tests/benchmarks/halves.py measure DATA MINILM OUT # the rows anew, into OUT/halves.jsonl

DATA has ``retrieval/cisi``, ``retrieval/cacm`` and ``wiki_paragraphs.txt.xz``; MINILM is a folder
of all-MiniLM-L6-v2. BM25 has the idf of the second halves alone here; the rows have it with other
texts beside, as the plan says.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, spearmanr

from dystress_text.data.crops import too_short
from dystress_text.finetuning.holdout import halves_of

ROWS = Path(__file__).resolve().parents[2] / "docs" / "study" / "halves.jsonl"
COLLECTIONS = ("cisi", "cacm")
TRAINED = {  # on the collection, by preset and options
    "static dcl 0.02, 40 passes": ("own-text", "--loss=dcl(0.02)"),
    "static dcl 0.05, 10 passes": ("own-text", "--loss=dcl(0.05)", "--num_train_epochs=10"),
    "static dcl 0.2, 40 passes": ("own-text",),
    "static dcl 0.5, 40 passes": ("own-text", "--loss=dcl(0.5)"),
    "static 64 numbers, dcl 0.2": ("own-text", "--dim=64"),
    "own-text-encoder": ("own-text-encoder",),
}
UNTRAINED, WIKIPEDIA = "static untrained", "static of Wikipedia, dcl 0.2"
BERT, MINILM = "bert-mini-wiki", "all-MiniLM-L6-v2"
PAIRS = [(UNTRAINED, name) for name in [*TRAINED][:4]] + [(BERT, "own-text-encoder")]
MEASURES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "found": lambda rank: (rank == 1) * 1.0,
    "mrr": lambda rank: 1 / rank,
    "halves ndcg@10": lambda rank: np.where(rank <= 10, 1 / np.log2(rank + 1), 0),
}
Score = Callable[[Sequence[str], Sequence[str]], NDArray[np.float64]]  # (n, m) of texts with texts


def statistics() -> None:
    """Print the correlations with their intervals, and the pairs of before and after."""
    rows = {
        (row["collection"], row["model"]): row
        for row in map(json.loads, ROWS.read_text().splitlines())
    }
    for collection in COLLECTIONS:
        models = [model for of, model in rows if of == collection]
        labelled = np.array(
            [rows[collection, model]["ndcg of queries"] for model in models]
        )  # (models, queries)
        rank = np.array(
            [rows[collection, model]["ranks"] for model in models], float
        )  # (models, texts)
        for name, measure in MEASURES.items():
            found, rng = measure(rank), np.random.default_rng(0)
            drawn = []
            for _ in range(2000):
                queries, texts = (
                    rng.integers(0, n, n) for n in (labelled.shape[1], found.shape[1])
                )
                both = labelled[:, queries].mean(1), found[:, texts].mean(1)
                drawn.append([spearmanr(*both).statistic, kendalltau(*both).statistic])
            low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
            both = labelled.mean(1), found.mean(1)
            each = zip(
                ("Spearman", "Kendall"),
                (spearmanr(*both), kendalltau(*both)),
                low,
                high,
                strict=True,
            )
            said = ", ".join(
                f"{kind} {of.statistic:.2f} ({a:.2f} to {b:.2f})" for kind, of, a, b in each
            )
            print(f"{collection}, {len(models)} models, {name}: {said}")
        for before, after in (pair for pair in PAIRS if {*pair} <= {*models}):
            one, other = models.index(before), models.index(after)
            gains = {
                name: (m := measure(rank))[other] - m[one] for name, measure in MEASURES.items()
            }
            changes = (
                f"{n} {100 * g.mean():+.1f} ± {100 * g.std(ddof=1) / len(g) ** 0.5:.1f}"
                for n, g in gains.items()
            )
            print(
                f"  {before} -> {after}: {100 * (labelled[other] - labelled[one]).mean():+.2f}; {', '.join(changes)}"
            )


def measure_all(data: Path, minilm: str, out: Path) -> None:
    """Train and measure all models of both collections."""
    from dystress_text.evaluation.retrieval import read_collection

    out.mkdir(parents=True, exist_ok=True)
    wiki = out / "wiki.txt"
    with lzma.open(data / "wiki_paragraphs.txt.xz", "rt", encoding="utf-8") as paragraphs:
        wiki.write_text("".join(islice(filter(str.strip, paragraphs), 20_000)), encoding="utf-8")
    for name in COLLECTIONS:
        collection = read_collection(data / "retrieval" / name)
        lines = [" ".join(text.split()) for text in collection.documents.values()]
        held = _held_out(lines)
        text = out / f"{name}.txt"
        text.write_text(
            "".join(f"{line}\n" for i, line in enumerate(lines) if i not in held), encoding="utf-8"
        )
        first, second = zip(*(halves_of(lines[i]) for i in held), strict=True)
        documents, queries = list(collection.documents.values()), list(collection.queries.values())
        for model, score in _models(text, wiki, minilm, out):
            rank = ranks(score(first, second))
            of_queries = _ndcg(score(queries, documents), collection)
            row = {"collection": name, "model": model, "ndcg@10": round(100 * of_queries.mean(), 2)}
            row |= {
                kind: round(100 * measure(rank.astype(np.float64)).mean(), 2)
                for kind, measure in MEASURES.items()
            }
            row |= {"ranks": rank.tolist(), "ndcg of queries": of_queries.round(4).tolist()}
            with (out / "halves.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                {name: value for name, value in row.items() if not isinstance(value, list)},
                flush=True,
            )


def ranks(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """At which place each row of (n, n) has its own column, from 1; those that equal it come
    before.
    """
    return np.asarray((scores >= scores.diagonal()[:, None]).sum(1))


def _held_out(lines: list[str]) -> dict[int, None]:
    held: dict[int, None] = {}
    seen: set[str] = set()
    for number, line in enumerate(lines):
        due = len(held) < len(lines) // 10 and number >= len(held) * len(lines) / (len(lines) // 10)
        if due and line not in seen and not too_short(line):
            held[number] = None
        seen.add(line)
    return held


def _models(text: Path, wiki: Path, minilm: str, out: Path) -> list[tuple[str, Score]]:
    return [
        ("words: TF-IDF", _tfidf(text)),
        ("words: BM25", _bm25),
        (UNTRAINED, _vectors(_untrained(text, out / f"{text.stem}-untrained"))),
        *(
            (name, _vectors(_run(text, out / f"{text.stem}-{i}", *of)))
            for i, (name, of) in enumerate(TRAINED.items())
        ),
        (WIKIPEDIA, _vectors(_run(wiki, out / "wiki", "own-text", "--max_steps=800"))),
        (BERT, _bert()),
        (MINILM, _vectors(minilm)),
    ]


def _run(text: Path, folder: Path, preset: str, *options: str) -> str:
    words = [
        "--preset",
        preset,
        f"--train_file={text}",
        f"--output_dir={folder}",
        "--held_out=0",
        *options,
    ]
    if not (folder / "run.json").is_file():
        subprocess.run(
            [sys.executable, "-m", "dystress_text", "train", *words],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return str(folder)


def _untrained(text: Path, folder: Path) -> str:
    import torch

    from dystress_text.models.loading import save_model
    from dystress_text.models.static import (
        embedded_tokenizer,
        initialize_by_idf,
        new_static,
        table_of,
        tokenizer_of,
    )

    model = new_static(embedded_tokenizer(), 512, normalize=False)
    lines = text.read_text(encoding="utf-8").splitlines()
    pieces = [sorted({*each.ids}) for each in tokenizer_of(model).encode_batch(lines)]
    counts = torch.bincount(torch.tensor([*chain(*pieces)]), minlength=len(table_of(model)))
    initialize_by_idf(model, counts, len(pieces), 0)
    save_model(model, folder)
    return str(folder)


def _vectors(folder: str) -> Score:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu")
    return lambda a, b: (
        model.similarity(model.encode(list(a)), model.encode(list(b))).double().numpy()
    )


def _bert() -> Score:
    from torch.nn.functional import normalize

    from dystress_text.evaluation.embedder import with_pooler
    from dystress_text.io.paths import EMBEDDED
    from dystress_text.models.embedder import encode
    from dystress_text.models.loading import load_encoder

    model = with_pooler(load_encoder(str(EMBEDDED / "bert-mini-wiki")), "avg_first_last")
    return lambda a, b: (normalize(encode(model, a)) @ normalize(encode(model, b)).T).numpy()


def _tfidf(text: Path) -> Score:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from tokenizers import Tokenizer

    from dystress_text.io.paths import EMBEDDED

    tokenizer = Tokenizer.from_file(str(EMBEDDED / "bert-mini-wiki" / "tokenizer.json"))

    def pieces(line: str) -> list[str]:
        return [p for p in tokenizer.encode(line, add_special_tokens=False).tokens if p != "[UNK]"]

    words = TfidfVectorizer(analyzer=pieces, sublinear_tf=True).fit(
        text.read_text(encoding="utf-8").splitlines()
    )
    return lambda a, b: (words.transform(a) @ words.transform(b).T).toarray()


def _bm25(first: Sequence[str], second: Sequence[str]) -> NDArray[np.float64]:
    """With the idf of the texts that are searched."""
    from dystress_text.evaluation.lexical import LexicalBaseline

    scores = np.zeros((len(first), len(second)))
    for row, hits in zip(scores, LexicalBaseline().search(first, second, len(second)), strict=True):
        for place, score in hits:
            row[place] = score
    return scores


def _ndcg(scores: NDArray[np.float64], collection: Any) -> NDArray[np.float64]:
    """nDCG@10 of each query; a query that is a document does not find itself."""
    names, found = list(collection.documents), []
    for row, query in zip(scores, collection.queries, strict=True):
        order = sorted(range(len(names)), key=lambda i: (-row[i], names[i]))
        own = {query} & collection.own
        best = [
            names[i] for i in order[:11] if names[i] not in own and (row[i] > 0 or row.min() < 0)
        ][:10]
        relevant = collection.relevant[query]
        ideal = sum(1 / np.log2(place + 2) for place in range(min(10, len(relevant))))
        found.append(
            sum(1 / np.log2(place + 2) for place, name in enumerate(best) if name in relevant)
            / ideal
        )
    return np.array(found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure_all(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    else:
        statistics()
