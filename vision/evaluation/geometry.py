"""Geometry of the features of an image set: alignment, uniformity, tolerance, similarity histograms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dystress_text.cli.extras import require
from dystress_text.core.geometry import (
    alignment,
    interclass_uniformity,
    similarity_histograms,
    tolerance,
    uniformity,
)
from dystress_text.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Geometry:
    """Figures on L2-normalised features; definitions in :mod:`dystress_text.core.geometry`.

    Attributes:
        alignment: mean squared distance of two augmented views of an image.
        uniformity: of the images without augmentation.
        interclass_uniformity: of their class centroids, normalised again.
        tolerance: mean similarity of two images of one class.
        edges: of the histograms' bins, in [-1, 1].
        true_positive: counts of pairs of two views of one image, by similarity.
        false_negative: of views of two images of one class.
        true_negative: of views of images of different classes.
    """

    alignment: float
    uniformity: float
    interclass_uniformity: float
    tolerance: float
    edges: tuple[float, ...]
    true_positive: tuple[int, ...]
    false_negative: tuple[int, ...]
    true_negative: tuple[int, ...]


def measure_geometry(features: Tensor, view1: Tensor, view2: Tensor, labels: Tensor, bins: int = 100) -> Geometry:
    """The figures of one set of images.

    Args:
        features: (n, dim), of the images without augmentation.
        view1: (n, dim), of an augmented view of each.
        view2: (n, dim), of another one.
        labels: (n,) classes, at least two.
        bins: of the histograms.

    Raises:
        ValueError: shapes do not fit, or labels are of one class.
    """
    labels = labels.to(features.device)
    pairs = similarity_histograms(view1, view2, labels, bins)
    return Geometry(
        alignment(view1, view2).item(),
        uniformity(features).item(),
        interclass_uniformity(features, labels).item(),
        tolerance(features, labels).item(),
        tuple(pairs.edges.tolist()),
        tuple(pairs.true_positive.tolist()),
        tuple(pairs.false_negative.tolist()),
        tuple(pairs.true_negative.tolist()),
    )


def check_plot(file: Path) -> None:
    """Refuse a file that :func:`plot_geometry` cannot draw, before anything is computed for it.

    Raises:
        UserError: matplotlib is missing or does not know the ending, or the folder does not exist.
    """
    require("plots", "--plot")
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if file.suffix[1:].lower() not in known:
        raise UserError(f"--plot: {str(file)!r} has none of the endings of pictures: {', '.join(known)}")
    if not file.parent.is_dir() or file.is_dir():
        raise UserError(f"--plot: {str(file)!r} cannot be written: it is a folder, or {str(file.parent)!r} is not one")


def plot_geometry(found: Mapping[str, Geometry], title: str, file: Path) -> None:
    """Draw the similarity histograms of each encoder side by side, on one scale, 6 cm each.

    Args:
        found: figures by the name of the encoder, in order.
        title: of the whole.
        file: the picture; its ending gives the format.

    Raises:
        UserError: the file cannot be written.
    """
    import matplotlib.pyplot as plt  # an extra, needed for pictures only

    from dystress_text.report.plots import save, style

    with style():
        figure = draw_geometry(found, title)
    try:
        save(figure, file)
    except OSError as error:
        raise UserError(f"--plot: cannot write {str(file)!r}: {error.strerror or error}") from error
    finally:
        plt.close(figure)


def draw_geometry(found: Mapping[str, Geometry], title: str) -> Figure:
    """The figure of :func:`plot_geometry`, in matplotlib's current style."""
    import matplotlib.pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from dystress_text.report.plots import STYLES, dress  # and its backend, which needs no screen

    layout = ConstrainedLayoutEngine(wspace=0.06)  # or the panels' outer ticks meet
    size = (len(found) * 6 / 2.54, 2.9 if len(found) > 1 else 3.2)
    figure, row = plt.subplots(1, len(found), figsize=size, layout=layout, sharey=True, squeeze=False)
    for axes, (name, geometry) in zip(row[0], found.items(), strict=True):
        edges = torch.tensor(geometry.edges)
        kinds = [
            (geometry.true_positive, "views of one image (TP)", STYLES[0]),
            (geometry.false_negative, "of one class (FN)", STYLES[1]),
            (geometry.true_negative, "of two classes (TN)", STYLES[3]),
        ]
        for counts, label, (colour, line) in kinds:
            share = 100 * torch.tensor(counts) / max(sum(counts), 1)
            axes.stairs(share, edges, color=colour, linestyle=line, linewidth=1.3, label=label)
        figures = (
            f"alignment {geometry.alignment:.3f}, tolerance {geometry.tolerance:.3f}\n"
            f"uniformity {geometry.uniformity:.2f}, inter-class {geometry.interclass_uniformity:.2f}"
        )
        dress(axes, "", "")
        axes.set_title(f"{_short(Path(name).name or name)}\n{figures}", fontsize=7)
    row[0][0].set_ylabel(f"share of pairs (% a bin of {2 / (len(edges) - 1):.2g})")
    handles, labels = row[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3 if len(found) > 1 else 1, frameon=False)
    figure.suptitle(title, fontsize=8)
    figure.draw_without_rendering()  # lays it out in the current style
    return figure


def _short(name: str, most: int = 30) -> str:
    """A name that fits above its panel and that matplotlib does not read as a formula."""
    return (name if len(name) <= most else f"...{name[3 - most :]}").replace("$", r"\$")
