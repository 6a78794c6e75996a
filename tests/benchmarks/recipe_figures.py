"""The figures of docs/laboratory/own-text-encoder.md, from the records of the study and one of its
models.

python tests/benchmarks/recipe_figures.py --after FOLDER --data ../shared/data
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from recipe import read
from torch import Tensor

from dystress_text.analysis.plots import GREY, STYLES, style
from dystress_text.evaluation.catalogue import TRANSFER_TASKS
from dystress_text.evaluation.embedder import TextEncoder, with_pooler
from dystress_text.evaluation.retrieval import Collection, read_collection
from dystress_text.evaluation.sts import Embed
from dystress_text.io.paths import EMBEDDED
from dystress_text.models.loading import load_encoder, load_sentence_transformer

WIDTH = 12 / 2.54  # inches
FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"
GROUPS = {"similarity": ("STS-B dev", "STS12", "SICK-R"), "search": ("CISI", "CACM")}
_CROPS = "crop, first-last, DCL 0.03"
CURVES = {
    "dropout": "simcse, first-last",
    "crops, rate 1e-4": _CROPS,
    "own-text": f"{_CROPS}, rate 4e-4",
}
CLASSES = (
    "abbreviation",
    "description",
    "entity",
    "person",
    "place",
    "number",
)  # of TREC, in its readers' order


def draw_steps(file: Path) -> None:
    """The mean of each kind of sets over the steps, by recipe and text; seed 1."""
    untrained = next(
        line["figures"]
        for line in read()
        if line["arm"] == "simcse, first-last" and line["steps"] == 0
    )
    with style():
        figure, panels = plt.subplots(1, len(GROUPS), figsize=(1.4 * WIDTH, 0.55 * WIDTH))
        for axes, (title, sets) in zip(panels, GROUPS.items(), strict=True):
            axes.axhline(
                np.mean([untrained[name] for name in sets]),
                color=GREY,
                linewidth=1,
                label="no training",
            )
            curves = [(text, name) for text in ("paragraphs", "documents") for name in CURVES]
            for (text, name), (colour, line) in zip(curves, STYLES, strict=False):
                key = {"arm": CURVES[name], "text": text, "seed": 1}.items()
                found = {
                    x["steps"]: x["figures"] for x in read() if key <= x.items() and x["steps"]
                }
                means = [np.mean([found[step][name] for name in sets]) for step in sorted(found)]
                axes.plot(sorted(found), means, color=colour, linestyle=line, marker="o", markersize=3,
                          label=f"{name}, {text}")  # fmt: skip
            axes.set(title=title, xlabel="steps", xscale="log")
            axes.set_xticks([200, 400, 1000, 3000], labels=["200", "400", "1,000", "3,000"])
            axes.minorticks_off()
        panels[0].set_ylabel("figure x 100")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.savefig(file)
        plt.close(figure)


def _units(vectors: Tensor) -> NDArray[np.float32]:
    return torch.nn.functional.normalize(vectors.float(), dim=1).cpu().numpy()


def draw_queries(collection: Collection, embeds: dict[str, Embed], file: Path) -> None:
    """The first three documents of five queries, evenly spaced in the collection, and which of them
    are relevant.
    """
    ids, known = (
        list(collection.documents),
        [query for query, text in collection.queries.items() if len(text) < 90],
    )
    queries = [known[i] for i in np.linspace(0, len(known) - 1, 5).astype(int)]
    with style():
        figure, panels = plt.subplots(1, len(embeds), figsize=(1.7 * WIDTH, 0.75 * WIDTH))
        for axes, (title, embed) in zip(panels, embeds.items(), strict=True):
            documents = _units(embed(list(collection.documents.values())))
            asked = _units(embed([collection.queries[query] for query in queries]))
            first, found = np.argsort(-asked @ documents.T, axis=1)[:, :10], 0
            for row, query in enumerate(queries):
                axes.text(
                    0, -5 * row, textwrap.shorten(collection.queries[query], 60), weight="bold"
                )
                hits = [ids[i] in collection.relevant[query] for i in first[row]]
                found += sum(hits)
                for place in range(3):
                    text = textwrap.shorten(collection.documents[ids[first[row, place]]], 62)
                    colour, mark = (STYLES[0][0], "+") if hits[place] else (GREY, "-")
                    axes.text(0.01, -5 * row - place - 1, f"{mark} {text}", color=colour)
            axes.set(
                xlim=(0, 1), ylim=(-24, 1), title=f"{title}: {found} relevant of the first 5 x 10"
            )
            axes.axis("off")
        figure.savefig(file)
        plt.close(figure)


def draw_space(
    texts: list[str], labels: NDArray[np.int64], embeds: dict[str, Embed], file: Path
) -> None:
    """Questions by their class in two dimensions, by scikit-learn's t-SNE on cosine distances."""
    from sklearn.manifold import TSNE

    with style():
        figure, panels = plt.subplots(1, len(embeds), figsize=(1.4 * WIDTH, 0.75 * WIDTH))
        for axes, (title, embed) in zip(panels, embeds.items(), strict=True):
            points = TSNE(metric="cosine", random_state=0, init="pca").fit_transform(
                _units(embed(texts))
            )
            for number, name in enumerate(CLASSES):
                x, y = points[labels == number].T
                axes.scatter(
                    x,
                    y,
                    s=7,
                    c=STYLES[number][0],
                    marker="osD^vP"[number],
                    label=name,
                    linewidths=0,
                )
            axes.set(xticks=[], yticks=[], title=title)
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(CLASSES)
        )
        figure.savefig(file)
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    before = with_pooler(load_encoder(str(EMBEDDED / "bert-mini-wiki")), "avg_first_last")
    embeds: dict[str, Embed] = {
        "before": TextEncoder.of(before),
        "after": TextEncoder.of(load_sentence_transformer(str(options.after))),
    }
    trec = next(task for task in TRANSFER_TASKS if task.name == "TREC").load(
        options.data / "senteval"
    )["test"]
    draw_space(list(trec.columns[0]), trec.labels, embeds, FIGURES / "recipe-space.png")
    draw_queries(
        read_collection(options.data / "retrieval" / "cisi"), embeds, FIGURES / "recipe-queries.png"
    )
    draw_steps(FIGURES / "recipe-steps.png")


if __name__ == "__main__":
    main()
