"""Show what a report compares: tables and the answer as text, and the page of text runs.

Tables have mean and standard deviation over seeds, and paired differences. The answer names the
best configuration, and says whether it lies at the end of the range that was tried and whether its
figure is inflated by the choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from dystress_text.analysis.compared_models import (
    TRAINING,
    Column,
    ComparedModels,
    ComparedRun,
    Comparison,
    Group,
    measured_differently,
)
from dystress_text.analysis.finished_run import differing_keys
from dystress_text.cli import text_table
from dystress_text.cli.extras import require
from dystress_text.cli.text_table import TextTable
from dystress_text.errors import UserError
from dystress_text.evaluation.cosines import MOST_SENTENCES, random_pairs_table
from dystress_text.evaluation.lexical import describe_lexical
from dystress_text.evaluation.results import Result
from dystress_text.evaluation.retrieval import FUSION
from dystress_text.evaluation.statistics import spread
from dystress_text.evaluation.sts import spearman
from dystress_text.training.run_record import RunRecord

_STYLES = {  # the heading of a table, and the prefix of a note
    "text": ("{}\n\n", ""),
    "markdown": ("## {}\n\n", "- "),
    "latex": ("% {}\n", "% "),
}
_NO_COMPARISON = "No comparison on a test set: dystress evaluate measures test sets"
_STATISTICS = (
    "±: standard deviation over seeds. Intervals: 95 %, over queries or pairs, and over seeds if "
    "there are several. Each stands alone: of 20 that should contain 0, one does not."
)
_NEAREST = (
    f"nearest texts: by cosine, among all distinct texts, or {MOST_SENTENCES:,} drawn from more; "
    "long ones are cut, and no_samples leaves them out"
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
_FEWEST = 10  # queries or pairs, five in each half


def render(compared: ComparedModels, style: str) -> str:
    """Return verdict, tables and notes as text.

    Args:
        compared: the runs and models.
        style: ``text``, ``markdown`` or ``latex``.
    """
    heading, note = _STYLES[style]
    parts = ["\n".join(note + line for line in verdict(compared))]
    for group in compared.groups:
        table = text_table.lay_out(means(compared, group), style)
        parts.append(heading.format(group.title) + table)
        parts.append("\n".join(note + line for line in _intervals(compared, group)))
    parts.append("\n".join(note + line for line in notes_of(compared)))
    return "\n\n".join(filter(None, parts))


def render_evaluation(compared: ComparedModels) -> str:
    """Return the tables of models that were evaluated together, each followed by its intervals."""
    lines = []
    for group in compared.groups:
        lines.append("\n" + text_table.lay_out(means(compared, group)))
        lines += [FUSION] if group.fused else []
        lines += _intervals(compared, group, compared.comparisons)
    return "\n".join(lines)


def text_page(compared: ComparedModels) -> str:
    """Return the page of one or several text runs as HTML.

    Raises:
        UserError: there is no run, or the extra ``plots`` is not installed.
    """
    runs = compared.runs
    if not runs:
        raise UserError("an HTML page needs a run: `format` text shows the figures of models")
    require("plots", "a page")
    from dystress_text.analysis.page import render_page

    groups = compared.groups
    if len(runs) == 1:  # the page has its own table of that
        groups = [group for group in groups if group.key != TRAINING]
    tables = [(group.title, means(compared, group)) for group in groups]
    notes = []
    if len(runs) == 1:
        record = runs[0].record
        if record.document_row:
            notes.append("search: encode documents with encode_document, queries with encode_query")
        tables.append(("Similarity of random pairs", random_pairs_table(record.random_pairs)))
        tables.append(("Texts and the nearest three of each", _nearest_texts(record)))
        if record.samples:
            notes.append(_NEAREST)
    notes += notes_of(compared)
    for words in dict.fromkeys(run.record.lexical_words for run in runs if run.record.lexical):
        notes.append(f"lexical: {describe_lexical(words or 'words')}")
    estimates = {}
    if len(runs) > 1:
        estimates = {each.full_name: compared.estimates(each) for each in compared.columns}
    return render_page(runs, tables, notes, verdict(compared), estimates)


def _nearest_texts(record: RunRecord) -> TextTable:
    """Return a line for each sample: the text, and its nearest texts by each model."""
    lines = [["text", *record.samples]]
    for by_model in zip(*record.samples.values(), strict=True):
        nearest = ["\n\n".join(others) for _, *others in by_model]
        lines.append([by_model[0][0], *nearest])
    return lines


def means(compared: ComparedModels, group: Group) -> TextTable:
    """Return the figures of each model, then mean and standard deviation of each configuration."""
    columns = list(filter(None, (*group.tasks, group.mean)))
    lines = [["", *columns]]
    for model in compared.models:
        if group.key in model.figures:
            lines.append([model.name, *map(text_table.cell, group.row(model).values())])
    for name, runs in compared.configurations.items():
        seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
        lines.append([f"{name}, {seeds}", *(_mean_cell(group, runs, column) for column in columns)])
    return lines


def _mean_cell(group: Group, runs: Sequence[ComparedRun], column: str) -> str:
    """Return mean and deviation, and the number of runs with a figure if some have none."""
    figures = [group.row(run.evaluated)[column] for run in runs]
    known = [figure for figure in figures if figure is not None]
    if not known:
        return "missing"
    cell = spread(known)
    return cell if len(known) == len(runs) else f"{cell} ({len(known)} of {len(runs)})"


def _intervals(
    compared: ComparedModels, group: Group, comparisons: Sequence[Comparison] = ()
) -> list[str]:
    """Return the intervals of a table's main figures, then of their differences."""
    lines = []
    for column in group.compared:
        estimates = compared.estimates(column).items()
        intervals = [f"{name}: {each}" for name, each in estimates if each.interval is not None]
        for each in comparisons:
            if each.column == column and each.difference.interval is not None:
                intervals.append(each.summary())
        if intervals:
            lines += [f"95 % intervals, {column.name}:", *intervals]
    return lines


def verdict(compared: ComparedModels) -> list[str]:
    """Describe the best configuration of each column, and all differences."""
    lines = []
    several = len(compared.configurations) > 1
    if several and all(each.obstacle for each in compared.comparisons):
        lines.append(_NO_COMPARISON)
    for column, comparisons in groupby(compared.comparisons, lambda each: each.column):
        lines += _answer(compared, column, list(comparisons))
    first = [runs[0].settings for runs in compared.configurations.values()]
    others = [name for name in differing_keys(first) if name != "loss"] if several else []
    if others:
        lines.append(f"Other settings that differ: {', '.join(others)}")
    return lines


def _answer(
    compared: ComparedModels, column: Column, comparisons: Sequence[Comparison]
) -> list[str]:
    """Compare the best configuration with the second and the models, then list the others."""
    where = column.full_name
    pairs = {(each.name, each.baseline) for each in comparisons if not each.obstacle}
    names = {name for pair in pairs if {*pair} <= {*compared.configurations} for name in pair}
    if not names:
        return [f"{where}: {each.summary()}" for each in comparisons]
    estimates = compared.estimates(column)
    best, second, *_ = sorted(names, key=lambda name: (-estimates[name].mean, name))
    answer = f"Of the trained models {best} scores highest on {where}: {estimates[best]}"
    for lead in compared.compare(column, best, second):
        answer += f"; {lead.summary()}"
        if lead.difference.interval is not None:
            low, high = lead.difference.interval
            contains = "contains" if low <= 0 <= high else "does not contain"
            answer += f": the interval {contains} 0"
    settings = {name: compared.configurations[name][0].settings for name in names}
    results = {name: column.results(compared.by_seed(name).values()) for name in names}
    about = [*end_of_range(settings, best), *by_halves(results)]
    # of the others only the differences from the baseline
    rest = [each for each in comparisons if best in (each.name, each.baseline)]
    for each in comparisons:
        if each not in rest and each.baseline == compared.baseline:
            rest.append(each)
    about += [each.summary() for each in rest if {each.name, each.baseline} != {best, second}]
    return [f"{answer}.", *(f"{where}: {line}" for line in about)]


def notes_of(compared: ComparedModels) -> list[str]:
    """Return notes below the tables: setups, data variants, and figures that cannot be compared."""
    setups: dict[str, list[str]] = {}
    for name, runs in compared.configurations.items():
        setups.setdefault(_setup(runs[0]), []).append(name)
    notes = [f"Setup of {', '.join(names)}: {setup}" for setup, names in setups.items()]
    variants = {variant for each in compared.evaluated for variant in each.variants}
    notes += [f"Variant of the published data: {variant}" for variant in sorted(variants)]
    for group in compared.groups:
        notes.append(measured_differently(group.key, group.tasks, compared.evaluated))
        if group.fused:
            notes.append(FUSION)
    if compared.comparisons:
        notes.append(f"Compared with {compared.baseline}; another baseline can be named")
    if any(each.difference.interval is not None for each in compared.comparisons):
        notes.append(_STATISTICS)
    if compared.unfinished:
        notes.append(f"Excluded, not finished: {', '.join(compared.unfinished)}")
    return list(filter(None, notes))


def _setup(run: ComparedRun) -> str:
    settings = run.record.settings
    corpus = run.record.corpus
    encoder = Path(settings["model_name_or_path"]).name
    return (
        f"{encoder}, {settings['pooler_type']}, "
        f"{run.record.steps:,} steps of {settings['train_batch_size']}, "
        f"learning rate {settings['learning_rate']:g}, {corpus['sentences']:,} sentences "
        f"(sha256 {corpus['sha256'][:12]}), {run.record.device}"
    )


def end_of_range(settings: Mapping[str, Mapping[str, Any]], best: str) -> list[str]:
    """Return a line if the best configuration has the largest or smallest value tried, else [].

    Args:
        settings: the settings of each configuration. If they differ in anything but one number,
            nothing is said.
        best: a configuration.
    """
    varied = differing_keys(list(settings.values()))
    texts = {
        name: ", ".join(str(each.get(key)) for key in varied) for name, each in settings.items()
    }
    if len({_NUMBER.sub("", text) for text in texts.values()}) > 1:
        return []
    numbers = np.array([[float(each) for each in _NUMBER.findall(text)] for text in texts.values()])
    (columns,) = np.nonzero((numbers != numbers[0]).any(0))
    if len(columns) != 1:
        return []
    values = dict(zip(texts, numbers[:, columns[0]], strict=True))
    lines = []
    for end, extreme in (("largest", max), ("smallest", min)):
        if values[best] == extreme(values.values()):
            lines.append(f"{best} has the {end} value that was tried, {values[best]:g}")
    return lines


def by_halves(results: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return a line with the best figure, measured on queries or pairs that did not choose it.

    Return [] if there are fewer than ten of them, or if all scores of a half are equal.

    Args:
        results: the results of each configuration, for all seeds and tasks.
    """
    units = [each.each.get("model", ()) for several in results.values() for each in several]
    if min(map(len, units)) < _FEWEST:
        return []
    halves = [
        {
            name: float(np.mean([_on_half(each, half) for each in several]))
            for name, several in results.items()
        }
        for half in (0, 1)
    ]
    if not np.isfinite([figure for figures in halves for figure in figures.values()]).all():
        return []
    chosen = [max(figures, key=lambda name: figures[name]) for figures in halves]
    figure = (halves[1][chosen[0]] + halves[0][chosen[1]]) / 2
    names = " and ".join(dict.fromkeys(chosen))
    return [f"{figure:.1f} if chosen on one half and measured on the other, both ways ({names})"]


def _on_half(result: Result, half: int) -> float:
    """Return the figure x 100 on every second query or pair, in a fixed random order."""
    values = np.array(result.each["model"])
    units = np.random.default_rng(0).permutation(len(values))[half::2]
    if "scores" in result.each:
        return spearman(values[units], np.array(result.each["scores"])[units])
    return 100 * float(values[units].mean())
