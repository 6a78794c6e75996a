"""Write the page of text runs, with the tables of their evaluations."""

from __future__ import annotations

from pathlib import Path

from dystress_text.analysis.page import leave_report, render_page
from dystress_text.analysis.runs import labels
from dystress_text.analysis.tables import compare, notes_of, sections, verdict
from dystress_text.analysis.text_runs import TRAINING, TextRuns, read_text_runs
from dystress_text.errors import UserError
from dystress_text.evaluation.lexical import TITLE
from dystress_text.evaluation.random_pairs import random_pairs_rows
from dystress_text.finetuning import holdout


def leave_text_report(folder: Path) -> str:
    """Write the ``report.html`` of a finished text run; return a line about it."""
    return leave_report(folder, lambda: text_page(read_text_runs([folder])))


def text_page(compared: TextRuns) -> str:
    """Return the page of one or several text runs as HTML.

    Raises:
        UserError: there is no run.
    """
    runs = compared.runs
    if not runs:
        raise UserError("an HTML page needs a run: --format text shows the figures of models")
    alone = len(runs) == 1
    held = runs[0].record.held_out
    # the page of a single run has its own table of what training measured
    tables = sections(compared, but=TRAINING if alone else None)
    if alone and held is not None:
        head = ["held-out text", "nearest before training", "nearest after"]
        tables.append(("Nearest texts", [head, *map(list, held.neighbours)]))
    reached = [dict(random_pairs_rows(run.record.random_pairs)) for run in runs]
    names = ["similarity reached"] if alone else labels(runs)
    similarities = [["share of the pairs", *names]]
    for share in {share: None for rows in reached for share in rows}:
        similarities.append([share, *(rows.get(share, "-") for rows in reached)])
    tables.append(("Similarity of random pairs", similarities))
    comparisons = compare(compared)
    notes = notes_of(compared, comparisons)
    if any(run.record.lexical for run in runs):
        notes.append(f"lexical: {TITLE}")
    if held is not None:
        notes.append(": ".join(holdout.TITLES[held.metric]))
    return render_page(runs, tables, notes, verdict(compared, comparisons))
