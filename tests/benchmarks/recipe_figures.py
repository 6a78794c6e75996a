"""The three figures of docs/recipe.md, from the records of the study and two of its models.

    python tests/benchmarks/recipe_figures.py --after FOLDER --data ../shared/data

``--after`` is one of the study's models, see recipe.py; before training it was the embedded encoder.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from recipe import SCREENING, read
from torch import Tensor

from dystress_text.encoders.loading import load_encoder, load_saved
from dystress_text.evaluation.catalogue import TRANSFER_TASKS
from dystress_text.evaluation.retrieval import Collection, read_collection
from dystress_text.evaluation.sts import Embed
from dystress_text.files.places import EMBEDDED
from dystress_text.report.plots import GREY, STYLES, WIDTH, save, style

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"
GROUPS = {"similarity": ("STS-B dev", "STS12", "SICK-R"), "questions (TREC)": ("TREC",), "search (CISI)": ("CISI",)}
CLASSES = ("abbreviation", "description", "entity", "person", "place", "number")  # of TREC, in its readers' order


def draw_steps(arms: dict[str, str], file: Path) -> None:
    """The mean of each kind of sets over the steps, by views; seed 1."""
    untrained = next(line["figures"] for line in read() if line["arm"] == "simcse" and line["steps"] == 0)
    with style():
        figure, panels = plt.subplots(1, len(GROUPS), figsize=(1.4 * WIDTH, 0.5 * WIDTH))
        for axes, (title, sets) in zip(panels, GROUPS.items(), strict=True):
            before = float(np.mean([untrained[name] for name in sets]))
            axes.axhline(before, color=GREY, linewidth=1, label="no training")
            for (arm, label), (colour, line) in zip(arms.items(), STYLES, strict=False):
                found = {x["steps"]: x["figures"] for x in read() if x["arm"] == arm and x["seed"] == 1}
                steps = sorted(step for step in found if step and set(SCREENING) <= set(found[step]))
                means = [np.mean([found[step][name] for name in sets]) for step in steps]
                axes.plot(steps, means, color=colour, linestyle=line, marker="o", markersize=3, label=label)
            axes.set(title=title, xlabel="steps", xscale="log", xticks=[200, 1000, 3000])
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.minorticks_off()
        panels[0].set_ylabel("Spearman, accuracy or nDCG@10, x 100")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(arms) + 1)
        save(figure, file)


def best_documents(collection: Collection, embed: Embed, queries: list[str], most: int = 10) -> NDArray[np.bool_]:
    """Whether each of the first documents of queries is relevant, (queries, most)."""
    documents = list(collection.documents)
    vectors, asked = (
        _units(embed(texts))
        for texts in (list(collection.documents.values()), [collection.queries[q] for q in queries])
    )
    order = np.argsort(-asked @ vectors.T, axis=1)[:, :most]
    return np.array(
        [[documents[i] in collection.relevant[q] for i in row] for q, row in zip(queries, order, strict=True)]
    )


def _units(vectors: Tensor) -> NDArray[np.float32]:
    return torch.nn.functional.normalize(vectors.float(), dim=1).cpu().numpy()


def draw_queries(collection: Collection, embeds: dict[str, Embed], file: Path) -> None:
    """Of five queries, evenly spaced in the collection, which of the first ten documents are relevant."""
    known = [query for query in collection.queries if len(collection.queries[query]) < 90]
    queries = [known[i] for i in np.linspace(0, len(known) - 1, 5).astype(int)]
    with style():
        figure, panels = plt.subplots(1, len(embeds), figsize=(1.4 * WIDTH, 0.45 * WIDTH), sharey=True)
        for axes, (title, embed) in zip(panels, embeds.items(), strict=True):
            hits = best_documents(collection, embed, queries)
            for row, column in np.ndindex(hits.shape):
                colour = STYLES[0][0] if hits[row, column] else "0.88"
                axes.add_patch(Rectangle((column + 0.55, row - 0.4), 0.9, 0.8, color=colour))
            axes.set(
                xlim=(0.4, 10.6), ylim=(4.6, -0.6), xlabel="place in the list", title=f"{title}: {hits.sum()} of 50"
            )
            axes.set_xticks(range(1, 11))
            axes.grid(False)
        words = [collection.queries[query] for query in queries]
        panels[0].set_yticks(range(5), [_broken(text) for text in words])
        save(figure, file)


def _broken(text: str, width: int = 44) -> str:
    lines = [""]
    for word in text.split():
        lines = [*lines[:-1], f"{lines[-1]} {word}".strip()] if len(lines[-1] + word) < width else [*lines, word]
    return "\n".join(lines)


def draw_space(texts: list[str], labels: NDArray[np.int64], embeds: dict[str, Embed], file: Path) -> None:
    """Questions by their class in two dimensions, by scikit-learn's t-SNE on cosine distances."""
    from sklearn.manifold import TSNE

    with style():
        figure, panels = plt.subplots(1, len(embeds), figsize=(1.4 * WIDTH, 0.75 * WIDTH))
        for axes, (title, embed) in zip(panels, embeds.items(), strict=True):
            _draw_points(
                axes, TSNE(metric="cosine", random_state=0, init="pca").fit_transform(_units(embed(texts))), labels
            )
            axes.set_title(title)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(CLASSES))
        save(figure, file)


def _draw_points(axes: Axes, points: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
    for number, name in enumerate(CLASSES):
        of_class = points[labels == number]
        axes.scatter(
            of_class[:, 0],
            of_class[:, 1],
            s=7,
            color=STYLES[number][0],
            label=name,
            marker="osD^vP"[number],
            linewidths=0,
        )
    axes.set(xticks=[], yticks=[])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--pooler_type", default="avg", help="of the encoder before training")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    before, after = (
        load_encoder(str(EMBEDDED / "bert-mini-wiki"), options.pooler_type, False),
        load_saved(options.after),
    )

    embeds: dict[str, Embed] = {
        name: partial(encoder.encode, tokenizer=tokenizer)
        for name, (encoder, tokenizer) in {"before": before, "after": after}.items()
    }
    trec = next(task for task in TRANSFER_TASKS if task.name == "TREC").load(options.data / "senteval")["test"]
    draw_space(list(trec.columns[0]), trec.labels, embeds, FIGURES / "recipe-space.png")
    draw_queries(read_collection(options.data / "retrieval" / "cisi"), embeds, FIGURES / "recipe-queries.png")
    draw_steps({"simcse": "two dropout views", "crop": "two crops"}, FIGURES / "recipe-steps.png")


if __name__ == "__main__":
    main()
