"""The study of recipes for own text: each run is a line of docs/study/recipe.jsonl, and docs/recipe.md has the plan.

    python tests/benchmarks/recipe.py --arms simcse crop --seeds 1 2 --data ../shared/data
    python tests/benchmarks/recipe.py --arms simcse crop --seeds 1 --steps 1000 --text sentences --all_sets
    python tests/benchmarks/recipe.py                     # prints the tables of the page

A run that the file has is not run again. ``--data`` is a folder with ``wiki_paragraphs.txt.xz``, ``senteval``,
``wiki1m_sample.txt.xz``, ``retrieval/cisi`` and ``retrieval/cacm``. Training and evaluation take bf16 where the
device is fast in it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dystress_text.report.comparison import paired, spread

STUDY = Path(__file__).resolve().parents[2] / "docs" / "study" / "recipe.jsonl"
BASE = "--preset small --eval_set none --eval_steps 0 --logging_steps 50 --temperature constant --temp 0.05"
ARMS = {
    "simcse": "",  # two dropout views, InfoNCE at 0.05
    "crop": "--views crop",
    "crop without dropout": "--views crop --dropout 0",
    "simcse 3e-4": "--learning_rate 3e-4",
    "crop 3e-4": "--views crop --learning_rate 3e-4",
    "crop without dropout 3e-4": "--views crop --dropout 0 --learning_rate 3e-4",
}
TEXTS = {"paragraphs": "wiki_paragraphs.txt.xz", "sentences": "wiki1m_sample.txt.xz", "documents": ""}
SCREENING = ("STS-B dev", "STS12", "SICK-R", "TREC", "CISI")
SETS = (*SCREENING, "MR", "CACM")
COLLECTIONS = ("CISI", "CACM")
Line = Mapping[str, Any]


def read() -> list[Line]:
    """All runs so far."""
    return [json.loads(line) for line in STUDY.read_text(encoding="utf-8").splitlines()] if STUDY.is_file() else []


def table(lines: Sequence[Line], sets: Sequence[str], baseline: str = "simcse") -> list[str]:
    """A row for each arm: seeds, the means of the sets, their mean, and its paired difference to the baseline."""
    scores: dict[str, dict[int, float]] = {}
    figures: dict[str, list[list[float]]] = {}
    for line in lines:
        if set(sets) <= set(line["figures"]):
            row = [line["figures"][name] for name in sets]
            scores.setdefault(line["arm"], {})[line["seed"]] = float(np.mean(row))
            figures.setdefault(line["arm"], []).append(row)
    rows = []
    for arm, found in scores.items():
        cells = [f"{mean:.2f}" for mean in np.mean(figures[arm], axis=0)]
        less = "" if arm == baseline else str(paired(found, scores.get(baseline, {})) or "")
        rows.append(f"| {' | '.join([arm, str(len(found)), *cells, str(spread(list(found.values()))), less])} |")
    return rows


def tables() -> dict[str, list[str]]:
    """The rows of docs/recipe.md, by steps, text and whether all sets are measured."""
    groups: dict[str, list[Line]] = {}
    for line in read():
        groups.setdefault(f"{line['steps']:,} steps, {line['text']}", []).append(line)
    found = {f"{name}, screening": table(lines, SCREENING) for name, lines in groups.items()}
    found |= {f"{name}, all sets": table(lines, SETS) for name, lines in groups.items()}
    return {name: rows for name, rows in found.items() if rows}


def text_file(text: str, data: Path, place: Path) -> Path:
    """The training text; ``documents`` are written from the collections, one a line."""
    if text != "documents":
        return data / TEXTS[text]
    from dystress_text.evaluation.retrieval import read_collection

    found = [read_collection(data / "retrieval" / name.lower()) for name in COLLECTIONS]
    lines = [" ".join(document.split()) for collection in found for document in collection.documents.values()]
    (place / "documents.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place / "documents.txt"


def evaluate(encode: Any, data: Path, sets: Sequence[str]) -> dict[str, float]:
    """Spearman x 100, accuracy x 100 in fast mode, or nDCG@10 x 100 on each set."""
    from dystress_text.evaluation.catalogue import choose, eval_pairs, figure_of
    from dystress_text.evaluation.evaluators import sts_metrics
    from dystress_text.evaluation.retrieval import read_collection
    from dystress_text.evaluation.run import evaluate_task

    found = {}
    for name in sets:
        if name in COLLECTIONS:
            found[name] = read_collection(data / "retrieval" / name.lower()).scores(encode)["nDCG@10"]
        elif name == "STS-B dev":
            pairs = eval_pairs("stsb_dev", data)
            found[name] = sts_metrics(pairs, encode(pairs.sentences))[pairs.metric("spearman")]
        else:
            (tasks,) = choose("senteval", [name]).values()
            found[name] = figure_of(evaluate_task(tasks[0], data / "senteval", encode, mode="fast"))
    return {name: round(figure, 3) for name, figure in found.items()}


def train(options: Sequence[str], data: Path, sets: Sequence[str]) -> dict[str, Any]:
    """Train as ``dystress train`` does, and evaluate the saved model; returns speed and figures."""
    import torch

    from dystress_text.encoders.loading import load_saved
    from dystress_text.encoders.saving import quiet
    from dystress_text.simcse.arguments import parse
    from dystress_text.simcse.run import TextRun
    from dystress_text.training.trainer import run

    class Trained(TextRun):
        def finish(self, samples_per_second: float, output: Path) -> None:
            self.record["samples_per_second"] = round(samples_per_second, 1)  # no card, no page

    settings = parse(options, __doc__ or "")
    with quiet():
        record = run(settings.engine, lambda accelerator: Trained(settings, accelerator, lambda *_: None))
        model, tokenizer = load_saved(Path(settings.engine.output_dir))
        dtype = torch.bfloat16 if "bf16" in record["device"] else torch.float32
        figures = evaluate(partial(model.encode, tokenizer=tokenizer, dtype=dtype), data, sets)
    return {"samples_per_second": record["samples_per_second"], "device": record["device"], "figures": figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="*", default=[], choices=list(ARMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--text", choices=list(TEXTS), default="paragraphs")
    parser.add_argument("--all_sets", action="store_true", help="MR and CACM too")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    if not options.arms:
        for title, rows in tables().items():
            print(f"{title}\n\n" + "\n".join(rows) + "\n")
    sets = SETS if options.all_sets else SCREENING
    with tempfile.TemporaryDirectory() as place:
        for seed in options.seeds:
            for arm in options.arms:
                key = {"arm": arm, "seed": seed, "steps": options.steps, "text": options.text}
                if any(key.items() <= line.items() and set(sets) <= set(line["figures"]) for line in read()):
                    continue
                words = shlex.split(f"{BASE} {ARMS[arm]} --seed {seed} --max_steps {options.steps}")
                file = text_file(options.text, options.data, Path(place))
                out = ["--train_file", str(file), "--output_dir", f"{place}/out", "--overwrite_output_dir"]
                start = time.perf_counter()
                found = train([*words, *out], options.data, sets)
                line = {**key, "options": ARMS[arm], **found, "seconds": round(time.perf_counter() - start)}
                with STUDY.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(line) + "\n")
                print(json.dumps(line), f"mean {np.mean(list(found['figures'].values())):.2f}", flush=True)


if __name__ == "__main__":
    main()
