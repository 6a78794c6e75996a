"""Rows of published tables, to stand beside one's own (BERT-base uncased, Wiki1M).

Averages are computed from the figures; two of the paper's own are misprinted.
"""

from __future__ import annotations

from eval.report import Row
from eval.tasks import STS_TASKS, TRANSFER_TASKS

_STS = {
    "SimCSE (published)": (68.40, 82.41, 74.38, 80.91, 78.56, 76.85, 72.23),
    "SimCSE (paper's repro.)": (65.10, 80.32, 71.42, 80.51, 77.80, 76.47, 70.69),
    "MACL (paper's repro.)": (67.49, 81.55, 73.21, 80.97, 77.52, 76.54, 70.87),
    "DySTreSS 0.03/0.05": (68.00, 81.58, 73.44, 80.33, 77.65, 76.24, 70.98),
    "DySTreSS+ 0.03/0.05": (70.19, 81.61, 73.89, 81.91, 77.36, 77.06, 70.01),
    "DySTreSS* 0.03/0.05": (69.34, 81.76, 73.51, 81.61, 77.39, 76.67, 71.53),
    "DySTreSS** 0.03/0.05": (69.65, 79.18, 72.37, 80.79, 76.83, 75.59, 71.43),
    "DySTreSS* 0.02/0.05": (69.17, 81.69, 73.73, 81.38, 77.75, 76.19, 70.98),
    "DySTreSS* 0.05/0.07": (69.02, 80.61, 73.81, 81.39, 79.75, 77.97, 72.05),
    "DySTreSS* 0.04/0.05": (69.68, 80.33, 74.27, 80.55, 76.89, 75.95, 70.82),
}
_TRANSFER = {
    "SimCSE (paper's repro.)": (80.42, 85.80, 94.13, 88.66, 85.17, 87.40, 72.29),
    "MACL (paper's repro.)": (80.50, 85.41, 94.20, 89.22, 85.06, 90.40, 75.59),
    "DySTreSS 0.03/0.05": (81.30, 87.10, 94.79, 89.15, 86.16, 88.20, 72.35),
    "DySTreSS+ 0.03/0.05": (81.72, 86.76, 94.34, 88.31, 86.33, 88.00, 73.74),
    "DySTreSS* 0.03/0.05": (81.69, 87.28, 94.80, 89.29, 85.83, 91.20, 72.93),
    "DySTreSS** 0.03/0.05": (81.62, 86.68, 94.74, 88.75, 86.71, 90.40, 75.30),
    "DySTreSS* 0.02/0.05": (81.59, 86.99, 94.45, 89.48, 86.66, 87.80, 74.90),
    "DySTreSS* 0.05/0.07": (80.69, 85.94, 94.27, 89.16, 84.84, 89.20, 74.61),
    "DySTreSS* 0.04/0.05": (81.02, 86.23, 94.97, 88.86, 85.17, 89.80, 73.22),
}

PUBLISHED: dict[str, dict[str, Row]] = {
    group: {label: dict(zip((task.name for task in tasks), figures, strict=True)) for label, figures in rows.items()}
    for group, tasks, rows in (("sts", STS_TASKS, _STS), ("transfer", TRANSFER_TASKS, _TRANSFER))
}
