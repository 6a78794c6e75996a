"""Rows of published tables, to stand beside one's own (BERT-base uncased, Wiki1M).

Averages are computed from the figures; three of the paper's own are misprinted.
"""

from __future__ import annotations

from collections.abc import Mapping

Row = dict[str, float | None]  # figures by task; None where there is none


GROUPS = {"sts": "STS, Spearman x 100", "transfer": "Transfer, accuracy x 100"}


TASKS = {  # the tables' columns, by the names that eval/ gives them
    "sts": ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"),
    "transfer": ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"),
}


def average(row: Mapping[str, float | None]) -> float | None:
    """Mean of the rounded figures, as the published averages are made; None if one is missing."""
    figures = [figure for figure in row.values() if figure is not None]
    return round(sum(figures) / len(figures), 2) if figures and len(figures) == len(row) else None
