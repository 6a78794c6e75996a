"""The pages of text runs: what training measured, the evaluations' tables and the temperature of the record."""

from __future__ import annotations

from pathlib import Path

from dystress_text.core.registry import Temperature
from dystress_text.evaluation.random_pairs import HEADER, random_pairs_rows
from dystress_text.files.whole import write_text
from dystress_text.report.history import RunHistory, read_history
from dystress_text.report.page import render_page
from dystress_text.report.runs import TRAINING, read_text_runs
from dystress_text.report.tables import Comparisons, notes_of, sections
from dystress_text.simcse.settings import temperature_of_record
from dystress_text.training.run_folder import REPORT


def write_text_report(folder: Path, temperature: Temperature | None = None) -> Path:
    """Write the ``report.html`` of a finished text run, and return where it is.

    Args:
        folder: of a run of ``dystress train``.
        temperature: what was trained with; None for the one that the record says.
    """
    compared = Comparisons(*read_text_runs([folder]))
    tables = sections(compared, but=TRAINING)  # the page has another table for what training measured
    history, temperature = _read(folder, temperature)
    if rows := random_pairs_rows(history.record):
        tables.append(("Which similarity is high: random pairs", [list(HEADER), *map(list, rows)]))
    write_text(folder / REPORT, render_page([(history, temperature)], tables, notes_of(compared)))
    return folder / REPORT


def page_of(compared: Comparisons) -> str:
    """The page of text runs side by side, with their tables, as HTML."""
    return render_page([_read(run.folder) for run in compared.runs], sections(compared), notes_of(compared))


def _read(folder: Path, temperature: Temperature | None = None) -> tuple[RunHistory, Temperature]:
    history = read_history(folder)
    return history, temperature or temperature_of_record(history.record)
