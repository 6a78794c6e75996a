"""The table of an evaluation: a line for each figure, a column for each encoder and for each row of
the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dystress_text.training.run_record import RunRecord
from vision.evaluation.paper import results_of

SHOWN = {  # figures: what they are called, digits after the point, and what is better
    "top1": ("top-1", 2, ""),
    "top5": ("top-5", 2, ""),
    "alignment": ("alignment", 3, ", lower: views closer"),
    "uniformity": ("uniformity", 3, ", lower: more spread out"),
    "interclass_uniformity": ("interclass uniformity", 3, ", lower: classes farther apart"),
    "tolerance": ("tolerance", 3, ", higher: classes tighter"),
    "balanced_accuracy": ("balanced accuracy", 2, ""),
    "auc": ("auc", 2, ""),
}

# by task
PREFIXES = {
    "svm": "linear SVM on balanced classes,",
    "transfer": "fine-tuned",
    "unnamed": "unnamed measure",
}
# how a linear probe was trained
PROBES = {"augmented": "augmented images", "fixed": "fixed features"}


def cells(encoders: Mapping[str, Mapping[str, Any]], variant: str | None = None) -> list[list[str]]:
    """The table's cells, the header first, of figures by task by encoder or row; the variant of the
    data is named.
    """
    columns = {name: _figures(tasks) for name, tasks in encoders.items()}
    labels = list(dict.fromkeys(label for column in columns.values() for label in column))
    lines = [["", *columns]]
    for label in labels:
        told = f"{label} ({variant})" if variant else label
        lines.append([told, *(column.get(label, "-") for column in columns.values())])
    return lines


def page_tables(record: RunRecord) -> list[tuple[str, list[list[str]]]]:
    """For the page of a run of images: what was measured while training, and the figures of the
    preset's rows.
    """
    rows = results_of(record.paper.rows, record.settings["dataset"])
    if not rows:
        return []
    online = {
        f"{name.removeprefix('knn')}-NN": {"top1": value} for name, value in record.trained.items()
    }
    queries = record.data.get("knn_queries")  # on a CPU not all of them
    mine = "this run, while training"
    if queries:
        mine += f", {queries:,} test images"
    return [("The paper's figures", cells({mine: {"knn": online}, **rows}))]


def _figures(tasks: Mapping[str, Any]) -> dict[str, str]:
    """By label, in order."""
    found: dict[str, str] = {}
    for task, result in tasks.items():
        probe = PROBES.get(result.get("probe"))
        prefix = f"linear probe on {probe}," if probe else PREFIXES.get(task, "")
        measured = result if task == "knn" else {prefix: {**result.get("accuracy", {}), **result}}
        for name, values in measured.items():
            if isinstance(values, Mapping):
                for figure, (label, digits, better) in SHOWN.items():
                    if values.get(figure) is not None:
                        found[f"{name} {label}{better}".strip()] = f"{values[figure]:.{digits}f}"
    return found
