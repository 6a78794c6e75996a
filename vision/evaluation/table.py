"""The table of an evaluation: a line for each figure, a column for each encoder and for each row of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dystress_text.training.presets import rows_of
from vision.evaluation.paper import results_of

SHOWN = {  # of the figures other than accuracies: digits after the point, and what is better
    "alignment": (3, "lower: views closer"),
    "uniformity": (3, "lower: more spread out"),
    "interclass_uniformity": (3, "lower: classes farther apart"),
    "tolerance": (3, "higher: classes tighter"),
    "balanced_accuracy": (2, ""),
    "auc": (2, ""),
}

PREFIXES = {"transfer": "fine-tuned", "unnamed": "unnamed measure"}  # by task
PROBES = {"augmented": "augmented images", "fixed": "fixed features"}  # how a linear probe was trained


def cells(encoders: Mapping[str, Mapping[str, Any]], variant: str | None = None) -> list[list[str]]:
    """The cells of the table, the header first.

    Args:
        encoders: figures of a record, by task, by encoder or row of the paper.
        variant: of the data; it is named at every figure.
    """
    columns = {name: _figures(tasks) for name, tasks in encoders.items()}
    labels = list(dict.fromkeys(label for column in columns.values() for label in column))
    lines = [["", *columns]]
    for label in labels:
        told = f"{label} ({variant})" if variant else label
        lines.append([told, *(column.get(label, "-") for column in columns.values())])
    return lines


def page_tables(record: Mapping[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """For the page of a run: what was measured while training beside the figures of the preset's rows.

    Args:
        record: of a finished run of images; one without a row, or on other images, has no table.
    """
    rows = results_of(rows_of(record), record["settings"]["dataset"])
    if not rows:
        return []
    online = {f"{name.removeprefix('knn')}-NN": {"top1": value} for name, value in record["trained"].items()}
    queries = record["data"].get("knn_queries")  # on a CPU not all of them
    mine = f"this run, while training, {queries:,} test images" if queries else "this run, while training"
    return [("The paper's figures", cells({mine: {"knn": online}, **rows}))]


def _figures(tasks: Mapping[str, Any]) -> dict[str, str]:
    """By label, in order."""
    found: dict[str, str] = {}
    for task, result in tasks.items():
        if task == "knn":
            for name, accuracy in result.items():
                if isinstance(accuracy, Mapping):
                    found |= _accuracy(name, accuracy)
            continue
        probe = PROBES.get(result.get("probe"))
        prefix = f"linear probe on {probe}," if probe else PREFIXES.get(task, "")
        found |= _accuracy(prefix, result.get("accuracy", result))
        for name, (digits, better) in SHOWN.items():
            if result.get(name) is not None:
                label = f"{prefix} {name.replace('_', ' ')}".strip()
                found[f"{label}, {better}" if better else label] = f"{result[name]:.{digits}f}"
    return found


def _accuracy(name: str, accuracy: Mapping[str, float | None]) -> dict[str, str]:
    figures = {f"{name} top-1": accuracy.get("top1"), f"{name} top-5": accuracy.get("top5")}
    return {label: f"{value:.2f}" for label, value in figures.items() if value is not None}
