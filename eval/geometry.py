"""What the vectors of a set of scored pairs look like: alignment, uniformity, similarity histograms."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dystress_text.build_loss import build_temperature
from dystress_text.core.registry import Temperature
from dystress_text.core.rows import unit_vectors
from dystress_text.errors import UserError
from dystress_text.settings import LossSettings
from dystress_text.sts import POSITIVE_SCORE, Embed, StsPairs, cosines, read_sts_benchmark

RANDOM_PAIRS = 100_000


@dataclass(frozen=True)
class PairSimilarities:
    """Cosines by kind of pair.

    Attributes:
        alike: pairs scored above 4.
        others: the other scored pairs.
        random: pairs of distinct sentences drawn at random (all, if there are few).
    """

    alike: NDArray[np.floating]
    others: NDArray[np.floating]
    random: NDArray[np.floating]


def geometry_pairs(suite: str, split: str, folder: Path) -> StsPairs:
    """The set that geometry is measured on: STS-B's ``dev`` or ``test`` split, or mini-STS.

    Raises:
        DataError: its file is missing or damaged.
    """
    if suite == "mini":
        return read_sts_benchmark(folder / "STS" / "MiniSTS" / "mini-sts.csv", "mini-STS")
    return read_sts_benchmark(folder / "STS" / "STSBenchmark" / f"sts-{split}.csv", f"STS-B {split}")


def pair_similarities(pairs: StsPairs, embed: Embed) -> PairSimilarities:
    """Cosines of the scored pairs and of random ones; the caller's random state stays as it is."""
    scored = cosines(pairs, embed)
    units = unit_vectors(embed(pairs.sentences))
    first, second = np.random.default_rng(0).integers(len(units), size=(2, RANDOM_PAIRS))
    distinct = first != second
    random = (units[first[distinct]] * units[second[distinct]]).sum(1).numpy()
    positive = pairs.scores > POSITIVE_SCORE
    return PairSimilarities(scored[positive], scored[~positive], random)


def temperature_of(model: str) -> tuple[Temperature, str]:
    """The temperature that a model was trained with, from its folder's ``run.json``; else the default one."""
    record = Path(model) / "run.json"
    if record.is_file():
        try:
            options = json.loads(record.read_text(encoding="utf-8"))["settings"]
            settings = LossSettings(**{f.name: options[f.name] for f in fields(LossSettings)})
            return build_temperature(settings), "of this run"
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"--plot: {record} is no record of a run: {error}") from error
    return build_temperature(LossSettings()), "default"


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
    below.plot(s, temperature(s).expand_as(s), color="#009e73", linewidth=2)
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
