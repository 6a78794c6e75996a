"""Write the pages of text runs, with the tables of their evaluations."""

from __future__ import annotations

from pathlib import Path

from dystress_text.analysis.page import leave_report, render_page
from dystress_text.analysis.runs import labels
from dystress_text.analysis.tables import Comparisons, notes_of, sections, verdict
from dystress_text.analysis.text_runs import TRAINING, read_text_runs
from dystress_text.errors import UserError
from dystress_text.evaluation.lexical import TITLE
from dystress_text.evaluation.random_pairs import random_pairs_rows
from dystress_text.finetuning import holdout


def leave_text_report(folder: Path) -> str:
    """Write the ``report.html`` of a finished text run; return a line about it."""
    return leave_report(folder, lambda: text_page(Comparisons(*read_text_runs([folder]))))


def text_page(compared: Comparisons) -> str:
    """Return the page of one or several text runs as HTML.

    Raises:
        UserError: there is no run.
    """
    if not compared.runs:
        raise UserError("an HTML page needs a run: --format text shows the figures of models")
    records = [run.record for run in compared.runs]
    alone = len(records) == 1
    # the page of a single run has its own table of what training measured
    tables = sections(compared, but=TRAINING if alone else None)
    reached = [dict(random_pairs_rows(record.random_pairs)) for record in records]
    names = ["similarity reached"] if alone else labels(compared.runs)
    similarities = [["share of the pairs", *names]]
    for share in dict.fromkeys(share for rows in reached for share in rows):
        similarities.append([share, *(rows.get(share, "-") for rows in reached)])
    tables.append(("Similarity of random pairs", similarities))
    notes = notes_of(compared)
    if any(record.lexical for record in records):
        notes.append(f"lexical: {TITLE}")
    metrics = dict.fromkeys(record.held_out.metric for record in records if record.held_out)
    notes += [": ".join(holdout.TITLES[metric]) for metric in metrics]
    return render_page(compared.runs, tables, notes, verdict(compared))
