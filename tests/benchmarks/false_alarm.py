"""Whether false-alarm rates hold: on other sentences of the source, on other sources, and over temperatures.

    python tests/benchmarks/false_alarm.py rates --file wiki.txt --models MODEL [MODEL ...] [--senteval FOLDER]
    python tests/benchmarks/false_alarm.py temperatures --file wiki.txt --models RUN [RUN ...] [--figure FILE.png]

``rates``: for each of --seeds, --sentences random ones of the file's first --encoded make the sketch, and 1,000,000
random pairs of the rest say which share reaches its thresholds. With --senteval also pairs of MR, TREC and SICK.
``temperatures``: runs with constant temperatures, without head, so that their vectors are those that the loss sees.
Both print Markdown tables. Vectors are kept in --cache: encoding takes nearly all of the time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from dystress_text.evaluation.random_pairs import RandomPairs, random_pairs
from dystress_text.evaluation.readers import read_sick, read_trec, read_two_classes
from dystress_text.files.text_lines import CorpusReport, open_text, read_sentences
from dystress_text.search.sentence_vectors import unit_vectors

RATES = (1e-2, 1e-3, 1e-4)
PAIRS = 1_000_000
ELSEWHERE = 2_000  # sentences of another source
Vectors = NDArray[np.float32]


def sentences_of(file: Path, most: int) -> list[str]:
    """The first distinct sentences of a text."""
    with open_text(file) as stream:
        return list(dict.fromkeys(islice(read_sentences(stream, CorpusReport()), most)))


def elsewhere(senteval: Path) -> dict[str, list[str]]:
    """Some distinct sentences of other sources."""
    mr = read_two_classes(senteval / "MR" / "rt-polarity.pos", senteval / "MR" / "rt-polarity.neg")
    sick = read_sick(senteval / "SICK" / "SICK_test_annotated.txt")
    found = {
        "MR": [sentence for column in mr.columns for sentence in column],
        "TREC": list(read_trec(senteval / "TREC" / "train_5500.label").columns[0]),
        "SICK": list(sick.sentences),
    }
    rng = np.random.default_rng(0)
    return {
        name: [str(s) for s in rng.permutation(list(dict.fromkeys(all_)))[:ELSEWHERE]] for name, all_ in found.items()
    }


def encoded(model: Path, name: str, sentences: list[str], cache: Path) -> Vectors:
    """Unit vectors of sentences, (n, dim), from the cache where they are there."""
    place = cache / f"{model.resolve().name}-{name}-{len(sentences)}.npy"
    if not place.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        begun = time.process_time()
        vectors = unit_vectors(SentenceTransformer(str(model), device="cpu"), sentences, 64)
        print(f"{place.name}: {time.process_time() - begun:.0f} s of processor time", file=sys.stderr, flush=True)
        np.save(place, vectors)
    vectors = np.load(place)
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def cosines_of_pairs(vectors: Vectors, seed: int) -> NDArray[np.float32]:
    """Cosines of random pairs of different rows."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(10):
        first = rng.integers(len(vectors), size=PAIRS // 10)
        second = (first + rng.integers(1, len(vectors), size=PAIRS // 10)) % len(vectors)
        found.append((vectors[first] * vectors[second]).sum(1))
    return np.concatenate(found)


def shares(cosines: NDArray[np.float32], sketch: RandomPairs) -> list[float]:
    """The share of cosines that reaches each threshold, in units of its rate."""
    return [float((cosines >= sketch.threshold(rate)).mean() / rate) for rate in RATES]


def rates(options: argparse.Namespace) -> None:
    """Print both tables."""
    sentences = sentences_of(options.file, options.encoded)
    others = elsewhere(options.senteval) if options.senteval else {}
    same, moved = [], []
    for model in options.models:
        vectors, found, thresholds = encoded(model, "source", sentences, options.cache), [], []
        far: dict[str, list[list[float]]] = {name: [] for name in others}
        for seed in range(options.seeds):
            order = np.random.default_rng(seed).permutation(len(vectors))
            sketch = random_pairs(vectors[order[: options.sentences]], "the source")
            thresholds.append([sketch.threshold(rate) for rate in RATES])
            found.append(shares(cosines_of_pairs(vectors[order[options.sentences :]], seed), sketch))
            for name, texts in others.items():
                far[name].append(shares(cosines_of_pairs(encoded(model, name, texts, options.cache), seed), sketch))
        table = np.array(found)  # (seeds, rates)
        for column, rate in enumerate(RATES):
            of_rate = table[:, column]
            same.append(
                f"| {model.resolve().name} | {rate:.0e} | {np.mean(thresholds, 0)[column]:.3f} "
                f"| {rate * of_rate.mean():.2e} | {100 * of_rate.std(ddof=1):.0f} % "
                f"| {100 * abs(of_rate - 1).max():.0f} % |"
            )
        moved += [
            f"| {model.resolve().name} | {name} | "
            + " | ".join(f"{rate * share:.1e}" for rate, share in zip(RATES, np.mean(values, 0), strict=True)) + " |"
            for name, values in far.items()
        ]  # fmt: skip
    print(f"{options.sentences:,} sentences make the sketch, {options.seeds} seeds\n")
    print(
        "| model | asked | similarity | realised | standard deviation | worst |\n|---|---|---|---|---|---|",
        *same,
        sep="\n",
    )
    if moved:
        print(
            "\n| model | source |" + "".join(f" {rate:.0e} |" for rate in RATES) + "\n|---|---|---|---|---|",
            *moved,
            sep="\n",
        )


def temperatures(options: argparse.Namespace) -> None:
    """Print the table of runs with constant temperatures, and draw their upper tails."""
    sentences = sentences_of(options.file, options.encoded)
    runs = []
    for folder in options.models:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        losses = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        loss = [line["loss"] for line in losses if "loss" in line][-1]
        vectors = encoded(folder, "source", sentences, options.cache)
        runs.append((float(record["settings"]["temp"]), loss, record["settings"]["train_batch_size"], vectors))
    print("| tau | loss | mean | standard deviation | soft maximum | predicted | at 1e-2 | at 1e-4 |\n|" + "---|" * 8)
    sketches = []
    for tau, loss, batch, vectors in sorted(runs, key=lambda run: run[0]):
        cosines = cosines_of_pairs(vectors, 0).astype(np.float64)
        soft = tau * np.log(np.exp(cosines / tau).mean())
        predicted = 1 - tau * np.log((batch - 1) / np.expm1(loss))
        sketch = random_pairs(vectors, "the source")
        sketches.append((tau, sketch))
        print(
            f"| {tau} | {loss:.1e} | {cosines.mean():.3f} | {cosines.std():.3f} | {soft:.3f} | {predicted:.3f} | "
            f"{sketch.threshold(1e-2):.3f} | {sketch.threshold(1e-4):.3f} |"
        )
    if options.figure is not None:
        draw(options.figure, sketches, runs[0][3].shape[1])


def draw(file: Path, sketches: list[tuple[float, RandomPairs]], dim: int) -> None:
    """The share of random pairs over the cosine, by temperature, with random directions as the floor."""
    import matplotlib.pyplot as plt
    from scipy.stats import beta

    from dystress_text.report.drawings import WIDTH, style

    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 2.9), layout="constrained")
        cosines = np.linspace(0, 1, 400)
        half = (dim - 1) / 2
        axes.plot(
            cosines, beta.sf((1 + cosines) / 2, half, half), ":", color="#8c8c8c", label=f"random directions, {dim}"
        )
        colours = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(sketches)))
        for (tau, sketch), colour in zip(sketches, colours, strict=True):
            axes.plot(sketch.cosines, sketch.rates, color=colour, label=f"$\\tau$ = {tau}")
        axes.set(yscale="log", xlim=(0, 1), ylim=(1e-5, 1), xlabel="similarity", ylabel="share of random pairs above")
        axes.legend(frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.savefig(file, dpi=200)


def main() -> None:
    """Parse and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("rates", "temperatures"):
        command = commands.add_parser(name)
        command.add_argument("--file", type=Path, required=True)
        command.add_argument("--models", type=Path, nargs="+", required=True)
        command.add_argument("--encoded", type=int, default=20_000 if name == "rates" else 4_000)
        command.add_argument("--cache", type=Path, default=Path("false-alarm-vectors"))
    commands.choices["rates"].add_argument("--senteval", type=Path)
    commands.choices["rates"].add_argument("--sentences", type=int, default=4_000)
    commands.choices["rates"].add_argument("--seeds", type=int, default=5)
    commands.choices["temperatures"].add_argument("--figure", type=Path)
    options: Any = parser.parse_args()
    {"rates": rates, "temperatures": temperatures}[options.command](options)


if __name__ == "__main__":
    main()
