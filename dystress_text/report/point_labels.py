"""Names at the points of a scatter, placed so that they hide neither points nor each other.

adjustText 1.4 and textalloc 1.2 were tried on the figure of docs/study (11 names a panel). They hide 7 points where
this hides one, and adjustText takes minutes. Needs the ``plots`` extra.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

RADII = (5.0, 10.0, 17.0, 25.0, 34.0, 45.0, 60.0)  # points from the middle of a point to its name, nearest first
ANGLES = (0, 180, 90, 270, 30, 150, 210, 330, 60, 120, 240, 300)
NEAR = 6.0  # a name farther away is tied to its point by a line
GAP = 1.5  # pixels about a name
MARK = 3.0  # pixels from the middle of a point to its edge


@dataclass(frozen=True)
class PointLabel:
    """A name and its point, in the axes' data coordinates."""

    x: float
    y: float
    text: str
    colour: str


def label_points(axes: Axes, labels: Sequence[PointLabel], taken: Sequence[NDArray[np.float64]], size: float) -> None:
    """Write each name at the nearest free place about its point.

    Args:
        axes: laid out already, with its final limits.
        labels: the names; they are placed in order, each clear of those before it.
        taken: (n, 2) places in data coordinates to keep free, such as points, bars and curves.
        size: of the text, in points.
    """
    points = np.concatenate([axes.transData.transform(place) for place in taken])  # (m, 2) pixels
    points = points[np.isfinite(points).all(axis=1)]
    marks = axes.transData.transform([(label.x, label.y) for label in labels])
    inside = axes.get_window_extent()
    dpi = axes.figure.dpi / 72
    boxes: list[Bbox] = []
    for label in sorted(labels, key=lambda label: (label.x, label.y)):
        middle = axes.transData.transform((label.x, label.y))
        note = axes.annotate(label.text, (label.x, label.y), fontsize=size, color=label.colour)
        extent = note.get_window_extent()
        note.remove()
        best: tuple[float, float, float, Bbox, NDArray[np.float64]] | None = None
        for radius in RADII:
            for angle in ANGLES:
                dx, dy = radius * math.cos(math.radians(angle)), radius * math.sin(math.radians(angle))
                box = _box(middle + np.array((dx, dy)) * dpi, extent.width, extent.height, dx, dy)
                line = middle + np.linspace(0.2, 1, 12)[:, None] * np.array((dx, dy)) * dpi
                line = line if radius > NEAR else line[:0]
                cost = _cost(box, line, boxes, points, inside) + 50 * box.padded(MARK).count_contains(marks)
                cost += radius / 8
                if best is None or cost < best[0]:
                    best = (cost, dx, dy, box, line)
        assert best is not None
        _, dx, dy, box, line = best
        boxes.append(box)
        points = np.concatenate([points, line])
        _write(axes, label, dx, dy, size)


def _box(at: NDArray[np.float64], width: float, height: float, dx: float, dy: float) -> Bbox:
    """The box of a text that is anchored at the side that faces its point."""
    left = at[0] - width * _aligned(dx)
    low = at[1] - height * _aligned(dy)
    return Bbox.from_bounds(left - GAP, low - GAP, width + 2 * GAP, height + 2 * GAP)


def _aligned(offset: float) -> float:
    """The fraction of a text that lies before its anchor: 0 where the text follows the point."""
    return 0.5 if abs(offset) < 1 else float(offset < 0)


def _cost(
    box: Bbox, line: NDArray[np.float64], boxes: Sequence[Bbox], points: NDArray[np.float64], inside: Bbox
) -> float:
    """How much is in the way; a name on another name or outside the axes costs most."""
    hidden = int(box.count_contains(points))
    crossed = 0.0
    if len(line):
        along = np.abs(line[:, None] - points[None]).max(axis=2).min(axis=1) < GAP  # on a bar or a curve
        crossed = sum(20 * int(other.count_contains(line)) for other in boxes) + along.sum() / 3
    outside = not (inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1)
    return hidden + crossed + 1000 * (box.count_overlaps(boxes) + outside)


def _write(axes: Axes, label: PointLabel, dx: float, dy: float, size: float) -> Annotation:
    far = math.hypot(dx, dy) > NEAR
    side = {0.0: "left", 0.5: "center", 1.0: "right"}[_aligned(dx)]
    height = {0.0: "bottom", 0.5: "center", 1.0: "top"}[_aligned(dy)]
    tie = {"arrowstyle": "-", "color": label.colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3,
           "relpos": (_aligned(dx), _aligned(dy))}  # fmt: skip
    ground = {"boxstyle": "square,pad=0.05", "facecolor": (1, 1, 1, 0.75), "edgecolor": "none"}
    note = axes.annotate(
        label.text, (label.x, label.y), xytext=(dx, dy), textcoords="offset points", ha=side, va=height,
        multialignment=side, fontsize=size, color=label.colour, arrowprops=tie if far else None, linespacing=1.05,
        bbox=ground, zorder=5,
    )  # fmt: skip
    note.set_in_layout(False)
    return note
