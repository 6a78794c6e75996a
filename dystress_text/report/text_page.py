"""The pages of text runs: the tables of the evaluations, the temperature of the record, and what
random pairs reach.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dystress_text.errors import UserError
from dystress_text.evaluation.random_pairs import random_pairs_rows
from dystress_text.evaluation.words import TITLE
from dystress_text.report.page import leave_report, render_page
from dystress_text.report.runs import by_loss, labels
from dystress_text.report.tables import Comparisons, notes_of, sections, verdict
from dystress_text.report.text_runs import TRAINING, read_text_runs
from dystress_text.simcse import halves


def leave_text_report(folder: Path) -> str:
    """Write the ``report.html`` of a finished text run; a line says where it is, or why there is
    none.
    """
    return leave_report(folder, lambda: text_page(Comparisons(*read_text_runs([folder]))))


def text_page(compared: Comparisons) -> str:
    """The page of text runs, alone or side by side, as HTML."""
    if not compared.runs:
        raise UserError(
            "a page shows runs, and there is none: --format text has the figures of the models"
        )
    compared = _by_loss(compared)
    alone = len(compared.runs) == 1  # the page has another table for what its training measured
    tables = sections(compared, but=TRAINING if alone else None)
    rows_of = [dict(random_pairs_rows(run.record)) for run in compared.runs]
    reached = dict(
        zip(["similarity reached"] if alone else labels(compared.runs), rows_of, strict=True)
    )
    below = []
    if shares := dict.fromkeys(share for rows in reached.values() for share in rows):
        lines = [[share, *(rows.get(share, "-") for rows in reached.values())] for share in shares]
        below.append(
            ("Which similarity do random pairs reach?", [["share of them", *reached], *lines])
        )
    if alone and (near := compared.runs[0].record.get("halves", {}).get("neighbours")):
        tables.append(
            (
                "Nearest texts",
                [["held-out text", "nearest before training", "nearest after"], *near],
            )
        )
    notes = [f"words: {TITLE}."] * any(run.record.get("words") for run in compared.runs)
    notes += [f"{halves.TITLE}."] * any("halves" in run.record for run in compared.runs)
    search = "a search that may find a false match in one of so many queries lets one in (lines x queries) of them pass"
    notes += [f"random pairs: {search}."] * bool(below)
    return render_page(
        compared.runs, tables, notes_of(compared) + notes, verdict(compared), below=below
    )


def _by_loss(compared: Comparisons) -> Comparisons:
    """With configurations, also the user's baselines, that are called by their losses where these
    tell them apart.
    """
    runs = by_loss(compared.runs)
    called = {
        before.configuration: run.configuration
        for before, run in zip(compared.runs, runs, strict=True)
    }
    return replace(compared, runs=runs, baselines=[called[name] for name in compared.baselines])
