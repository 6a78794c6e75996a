"""What the vectors of a set of scored pairs look like: alignment, uniformity, similarity histograms."""

from __future__ import annotations

from pathlib import Path

import torch

from dystress_text.core.registry import Temperature
from dystress_text.evaluation.similarities import PairSimilarities
from dystress_text.evaluation.sts import POSITIVE_SCORE, StsPairs, read_sts_benchmark


def geometry_pairs(suite: str, split: str, folder: Path) -> StsPairs:
    """The set that geometry is measured on: STS-B's ``dev`` or ``test`` split, or mini-STS.

    Raises:
        DataError: its file is missing or damaged.
    """
    if suite == "mini":
        return read_sts_benchmark(folder / "STS" / "MiniSTS" / "mini-sts.csv", "mini-STS")
    return read_sts_benchmark(folder / "STS" / "STSBenchmark" / f"sts-{split}.csv", f"STS-B {split}")


def plot_similarities(
    similarities: PairSimilarities, temperature: Temperature, source: str, title: str, file: Path
) -> None:
    """Draw the histograms of the similarities above the temperature over the same axis."""
    import matplotlib  # an extra, which an evaluation without a picture does not need

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(7.2, 5.6), layout="constrained", sharex=True, height_ratios=(2, 1)
    )
    kinds = [
        (similarities.random, "random pairs", "#595959", ":"),
        (similarities.others, f"pairs scored {POSITIVE_SCORE:g} or less", "#d55e00", "--"),
        (similarities.alike, f"pairs scored above {POSITIVE_SCORE:g}", "#0072b2", "-"),
    ]
    for values, label, colour, line in kinds:
        above.hist(
            values, bins=80, range=(-1, 1), density=True, histtype="step", linewidth=1.8, color=colour, linestyle=line,
            label=f"{label} (n = {len(values):,})",
        )  # fmt: skip
    above.set_ylabel("density")
    above.set_title(title, fontsize=11)
    above.legend(frameon=False, fontsize=9, loc="upper left")
    s = torch.linspace(-1, 1, 801, dtype=torch.float64)
    below.plot(s, temperature(s).detach().expand_as(s), color="#009e73", linewidth=2)
    below.set_ylabel("temperature tau(s)")
    below.set_xlabel("cosine similarity s")
    below.set_title(f"{temperature} ({source})", fontsize=9)
    below.margins(y=0.2)
    for axes in (above, below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(-1, 1)
    figure.savefig(file, dpi=150)
    plt.close(figure)
