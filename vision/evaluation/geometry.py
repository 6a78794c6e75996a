"""Geometry of the features of an image set: alignment, uniformity, tolerance, similarity histograms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dystress_text.core.geometry import (
    alignment,
    interclass_uniformity,
    similarity_histograms,
    tolerance,
    uniformity,
)
from dystress_text.errors import ParameterError, reason_of

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

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Geometry:
        """From a record, which may hold more."""
        return cls(**{entry.name: result[entry.name] for entry in fields(cls)})


def measure_geometry(features: Tensor, view1: Tensor, view2: Tensor, labels: Tensor, bins: int = 100) -> Geometry:
    """The figures of n images of at least two classes.

    Args:
        features: (n, dim), of the images without augmentation.
        view1: (n, dim), of an augmented view of each.
        view2: (n, dim), of another one.
        labels: (n,) classes.
        bins: of the histograms.
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


def plot_geometry(found: Mapping[str, Geometry], title: str, file: Path) -> None:
    """Draw the similarity histograms of each encoder side by side, on one scale; the file's ending gives the format."""
    from dystress_text.report.plots import save, style  # an extra, needed for pictures only

    with style():
        figure = draw_geometry(found, title)
    try:
        save(figure, file)
    except (OSError, ValueError) as error:
        raise ParameterError("plot", f"cannot write {str(file)!r}: {reason_of(error)}") from error


def draw_geometry(found: Mapping[str, Geometry], title: str) -> Figure:
    """The figure of :func:`plot_geometry`, in matplotlib's current style; 6 cm for an encoder."""
    import matplotlib.pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from dystress_text.report.plots import STYLES, dress, legend_below

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
        # the end of a long name, in which matplotlib reads no formula
        axes.set_title(f"{(Path(name).name or name)[-30:]}\n{figures}".replace("$", r"\$"), fontsize=7)
    row[0][0].set_ylabel(f"share of pairs (% a bin of {2 / (len(edges) - 1):.2g})")
    legend_below(figure, row[0][0], columns=3 if len(found) > 1 else 1)
    figure.suptitle(title, fontsize=8)
    figure.draw_without_rendering()  # lays it out in the current style
    return figure
