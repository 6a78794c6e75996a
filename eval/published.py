"""Rows of published tables, to stand beside one's own (BERT-base uncased, Wiki1M).

Averages are computed from the figures; three of the paper's own are misprinted.
"""

from __future__ import annotations

from dystress_text.paper import GROUPS, ROWS, TASKS, Row

SIMCSE = (68.40, 82.41, 74.38, 80.91, 78.56, 76.85, 72.23)  # as its own paper has it

PUBLISHED: dict[str, dict[str, Row]] = {
    group: {row.name.replace("(repro.)", "(paper's repro.)"): row.figures(group) for row in ROWS} for group in GROUPS
}
PUBLISHED["sts"] = {"SimCSE (published)": dict(zip(TASKS["sts"], SIMCSE, strict=True)), **PUBLISHED["sts"]}
