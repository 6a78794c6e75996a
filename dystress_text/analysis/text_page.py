"""Write the page of text runs, which includes their evaluations."""

from __future__ import annotations

from dystress_text.analysis.compared_models import TRAINING, ComparedModels
from dystress_text.analysis.outcome import Table
from dystress_text.analysis.page import render_page
from dystress_text.analysis.tables import (
    compare,
    estimates_of,
    groups_of,
    means,
    notes_of,
    verdict,
)
from dystress_text.errors import UserError
from dystress_text.evaluation.cosines import MOST_SENTENCES, random_pairs_table
from dystress_text.evaluation.lexical import describe_lexical
from dystress_text.training.run_record import RunRecord

_NEAREST = (
    f"nearest texts: by cosine, among all distinct texts, or {MOST_SENTENCES:,} drawn from more; "
    "long ones are cut, and no_samples leaves them out"
)


def text_page(compared: ComparedModels) -> str:
    """Return the page of one or several text runs as HTML.

    Raises:
        UserError: there is no run.
    """
    runs = compared.runs
    if not runs:
        raise UserError("an HTML page needs a run: `format` text shows the figures of models")
    groups = groups_of(compared.evaluated)
    if len(runs) == 1:  # the page has its own table of that
        groups = [group for group in groups if group.key != TRAINING]
    tables = [(group.title, means(compared, group)) for group in groups]
    notes = []
    if len(runs) == 1:
        record = runs[0].record
        if record.document_row:
            notes.append("search: encode documents with encode_document, queries with encode_query")
        tables.append(("Similarity of random pairs", random_pairs_table(record.random_pairs)))
        tables.append(("Texts and the nearest three of each", _samples(record)))
        if record.samples:
            notes.append(_NEAREST)
    comparisons = compare(compared)
    notes += notes_of(compared, comparisons)
    for words in dict.fromkeys(run.record.lexical_words for run in runs if run.record.lexical):
        notes.append(f"lexical: {describe_lexical(words or 'words')}")
    drawn = estimates_of(compared) if len(runs) > 1 else None
    return render_page(runs, tables, notes, verdict(compared, comparisons), drawn)


def _samples(record: RunRecord) -> Table:
    """Return a table row for each sample: the text, and its nearest texts by each model."""
    rows = [["text", *record.samples]]
    for of_text in zip(*record.samples.values(), strict=True):
        nearest = ["\n\n".join(others) for _, *others in of_text]
        rows.append([of_text[0][0], *nearest])
    return rows
