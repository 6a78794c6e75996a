"""The table of an evaluation: a line for each figure, and a column for each encoder."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

MOST_CLASSES = 20
Column = dict[str, str]  # figures as text, by their label
_NAMES = {  # of figures, with the digits after the point
    "top1": ("top-1", 2),
    "top5": ("top-5", 2),
    "alignment": ("alignment (lower: views closer)", 3),
    "uniformity": ("uniformity (lower: more spread out)", 3),
    "interclass_uniformity": ("interclass uniformity (lower: classes farther apart)", 3),
    "tolerance": ("tolerance (higher: classes tighter)", 3),
    "balanced_accuracy": ("balanced accuracy", 2),
    "auc": ("auc", 2),
}
_PREFIXES = {  # by task
    "knn": "{k}-NN ",
    "linear": "linear probe ({probe}) ",
    "svm": "linear SVM on balanced classes, ",
    "geometry": "",
    "transfer": "fine-tuned ",
}


def labelled(task: str, figures: Mapping[str, Any]) -> Column:
    """Return the figures of a task for a column of the table.

    Args:
        task: the task, such as ``knn``.
        figures: the figures by name. Figures that are None are left out, as are figures by class if
            there are more than 20 classes.
    """
    prefix = _PREFIXES[task].format(**figures)
    column = {}
    for name, (label, digits) in _NAMES.items():
        figure = figures.get(name)
        if figure is not None:
            column[f"{prefix}{label}"] = f"{figure:.{digits}f}"
    of_classes = figures.get("by_class", {})
    if len(of_classes) <= MOST_CLASSES:
        for name, of_class in of_classes.items():
            label = f"{prefix}top-1 of {name} (n = {of_class['images']:,})"
            column[label] = f"{of_class['top1']:.2f}"
    return column


def cells(columns: Mapping[str, Column]) -> list[list[str]]:
    """Return the cells of the table, the header first."""
    labels = dict.fromkeys(chain.from_iterable(columns.values()))  # in the order of the columns
    header = ["", *columns]
    lines = [[label, *(each.get(label, "-") for each in columns.values())] for label in labels]
    return [header, *lines]
