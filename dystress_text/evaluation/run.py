"""Evaluate models on tasks, scored pairs and collections: print tables and append result lines.

The lexical baseline is measured on all data that it applies to. It is the last row of each table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from dystress_text.cli.text_table import lay_out
from dystress_text.errors import DataError, ParameterError
from dystress_text.evaluation.catalogue import (
    SUITES,
    Row,
    StsTask,
    Task,
    average,
    choose,
    suite_folder,
)
from dystress_text.evaluation.embedder import TextEncoder, load_model, prepare
from dystress_text.evaluation.lexical import LEXICAL, TITLE, LexicalBaseline
from dystress_text.evaluation.readers import (
    check_distinct,
    checksum_of,
    joined,
    read_scored_pairs,
)
from dystress_text.evaluation.results import Result, append, open_results, result_file
from dystress_text.evaluation.retrieval import Collection, read_collections
from dystress_text.evaluation.settings import SentEvalSettings
from dystress_text.evaluation.sts import evaluate_pairs
from dystress_text.evaluation.transfer import evaluate_transfer
from dystress_text.io.paths import model_path
from dystress_text.io.prepared_data import variant_of
from dystress_text.models.loading import check_sentence_transformer, is_sentence_transformer

Encoder = TextEncoder | LexicalBaseline
Entry = dict[str, Any]  # figures and details of one measurement


@dataclass(frozen=True)
class Measure:
    """One task, set of pairs or collection that models are measured on."""

    group: str  # of the results
    task: str
    evaluate: Callable[[Any], Entry]  # of an encoder; raises DataError for unusable data
    columns: tuple[str, ...]  # in the table of the group
    has_baseline: bool = True  # whether the lexical baseline can be measured


@dataclass
class ModelEvaluation:
    """The measurements of one model, and the file that they are appended to."""

    model: str
    file: Path | None  # None: not saved
    figures: Row = field(default_factory=dict)  # by column, such as STS12 or cisi nDCG@10
    missing: list[str] = field(default_factory=list)  # tasks without a result

    def measure(
        self,
        measures: Iterable[Measure],
        encoder: Encoder,
        metadata: Mapping[str, Any],
        baseline: Mapping[Measure, Result],
    ) -> dict[Measure, Result]:
        """Measure an encoder, and append each result as soon as it exists.

        Args:
            measures: tasks and data; those with unusable data become ``missing``.
            encoder: a model or the lexical baseline.
            metadata: of model and settings, for the result lines.
            baseline: results of the lexical baseline, whose figures are added to the lines.
        """
        results = {}
        for each in measures:
            start = time.perf_counter()
            try:
                entry = each.evaluate(encoder)
            except DataError as error:
                self.missing.append(each.task)
                _progress(f"{self.model}: {each.task} left out: {error}")
                continue
            seconds = round(time.perf_counter() - start, 2)
            result = Result.of_entry({**entry, "seconds": seconds}, each.group, each.task, metadata)
            if each in baseline:
                result = replace(result, lexical=baseline[each].figures)
            if self.file is not None:
                append(self.file, result)
            results[each] = result
            self.figures.update(result.columns)
            shown = [f"{column} {figure:.2f}" for column, figure in result.columns.items()]
            _progress(f"{self.model}: {', '.join(shown)} ({seconds:.1f} s)")
        return results

    def ending(self) -> str:
        """Return one line: what was measured, and where it is saved."""
        measured = "all results"
        if self.missing:
            measured = f"results except {', '.join(self.missing)}"
        if self.file is None:
            return f"{self.model}: {measured}; not saved, --output FILE.jsonl saves them"
        return f"{self.file}: {measured}"


def run(
    settings: SentEvalSettings, model: SentenceTransformer | None = None
) -> list[ModelEvaluation]:
    """Evaluate models and print the tables.

    Args:
        settings: names of models to load, and what they are measured on.
        model: a model in memory, called ``model``.

    Returns:
        One evaluation for each model; the lexical baseline's is the last.
    """
    measures = [*_measures_of_suite(settings), *_measures_of_own_data(settings)]
    names = [name for name in settings.model if name != LEXICAL]
    loaders = {name: partial(load_model, name, _pooler_of(settings, name)) for name in names}
    evaluations = [
        ModelEvaluation(name, settings.output or result_file(Path(name))) for name in names
    ]
    if model is not None:
        loaders["model"] = partial(prepare, model, "model")
        evaluations.append(ModelEvaluation("model", settings.output))
    lexical = ModelEvaluation(LEXICAL, settings.output if LEXICAL in settings.model else None)
    for file in {each.file for each in (*evaluations, lexical)}:
        if file is not None:
            open_results(file)

    baseline: dict[Measure, Result] | None = None
    for each in evaluations:
        # before the baseline is measured, so that a wrong name fails at once
        encoder, metadata = loaders[each.model]()
        if baseline is None:
            baseline = _measure_baseline(lexical, measures, settings.mode)
        each.measure(measures, encoder, {**metadata, "mode": settings.mode}, baseline)
    if baseline is None:
        _measure_baseline(lexical, measures, settings.mode)
    evaluations.append(lexical)
    _print_tables(evaluations, measures)
    for each in evaluations:
        if each is not lexical or LEXICAL in settings.model:
            print(each.ending(), flush=True)
    return evaluations


def _measure_baseline(
    lexical: ModelEvaluation, measures: Iterable[Measure], mode: str
) -> dict[Measure, Result]:
    possible = [each for each in measures if each.has_baseline]
    if possible:
        print(f"{LEXICAL}: {TITLE}")
    return lexical.measure(possible, LexicalBaseline(), {"model": LEXICAL, "mode": mode}, {})


def _pooler_of(settings: SentEvalSettings, model: str) -> str | None:
    """Return the pooler of a model; refuse a model that cannot be evaluated."""
    if len(settings.model) > 1 and is_sentence_transformer(model_path(model)):
        return None
    if settings.pooler_type is None:
        check_sentence_transformer(model_path(model))
    return settings.pooler_type


# ---- what is measured


def _measures_of_own_data(settings: SentEvalSettings) -> Iterator[Measure]:
    """Yield the user's scored pairs and collections."""
    sets = [read_scored_pairs(file, "pairs") for file in settings.pairs or []]
    check_distinct("pairs", [pairs.name for pairs in sets])
    for pairs in sets:
        yield Measure("pairs", pairs.name, partial(evaluate_pairs, pairs), (pairs.name,))
    for collection in read_collections("retrieval", settings.retrieval or []):
        _progress(collection.summary())
        columns = tuple(f"{collection.name} {metric}" for metric in collection.metrics)
        evaluate = partial(_evaluate_collection, collection)
        yield Measure("retrieval", collection.name, evaluate, columns)


def _measures_of_suite(settings: SentEvalSettings) -> Iterator[Measure]:
    """Yield the tasks that the settings name."""
    folder = suite_folder(settings.suite, settings.data_dir)
    tasks = choose(settings.suite, settings.tasks or [])
    if not tasks:
        return
    if not folder.is_dir():
        ways = "run dystress prepare senteval, or use --suite mini, which needs no data"
        raise ParameterError("data_dir", f"no data of SentEval in {str(folder)!r}: {ways}")
    variant = variant_of(folder)
    if variant is not None:
        print(f"not SentEval's published data but a variant: {variant}")
    for kind, several in tasks.items():
        for task in several:
            evaluate = partial(evaluate_task, task, folder, settings.mode)
            group = f"{settings.suite}/{kind}"
            yield Measure(group, task.name, evaluate, (task.name,), isinstance(task, StsTask))


def evaluate_task(task: Task, folder: Path, mode: str, encoder: Encoder) -> Entry:
    """Evaluate an encoder on a task.

    Args:
        task: of the catalogue.
        folder: SentEval's ``downstream`` folder.
        mode: ``test`` or ``fast``, for transfer tasks.
        encoder: a model; for STS tasks also the lexical baseline.

    Returns:
        Figures (x 100), the numbers of pairs or texts, and the checksum of the data.
    """
    if isinstance(task, StsTask):
        entry = evaluate_pairs(joined(task.read(folder).values(), task.title), encoder)
    else:
        assert isinstance(encoder, TextEncoder)
        splits = task.read(folder)
        content = [(name, each.columns, each.labels.tolist()) for name, each in splits.items()]
        entry = {
            **evaluate_transfer(task.classes, splits, encoder, mode),
            "texts": {name: len(each) for name, each in splits.items()},
            "sha256": checksum_of(content),
        }
    return {**entry, "data_variant": variant_of(folder)}


def _evaluate_collection(collection: Collection, encoder: Encoder) -> Entry:
    figures = {name: round(figure, 2) for name, figure in collection.scores(encoder).items()}
    return {**figures, **collection.metadata}


# ---- what is printed


def _print_tables(evaluations: Sequence[ModelEvaluation], measures: Sequence[Measure]) -> None:
    """Print a table for each group: the models and the lexical baseline."""
    columns: dict[str, list[str]] = {}
    for measure in measures:
        columns.setdefault(measure.group, []).extend(measure.columns)
    for group, names in columns.items():
        suite, _, kind = group.partition("/")
        mean = None
        if kind in SUITES.get(suite, {}):
            mean = "avg" if len(names) == len(SUITES[suite][kind]) else f"avg of {len(names)}"
        rows = [(each.model, each.figures) for each in evaluations]
        if not set(names) & set(evaluations[-1].figures):  # not measured on the lexical baseline
            rows.pop()
        if rows:
            print(f"\n{_table(rows, names, mean)}", flush=True)


def _table(rows: Iterable[tuple[str, Row]], columns: Sequence[str], mean: str | None) -> str:
    """Return a table of rows, with averages if ``mean`` names them."""
    header = ["", *columns]
    if mean:
        header.append(mean)
    lines = [header]
    for label, row in rows:
        figures = {column: row.get(column) for column in columns}
        line = [label, *(_cell(figure, "missing") for figure in figures.values())]
        if mean:
            line.append(_cell(average(figures), "-"))
        lines.append(line)
    return lay_out(lines)


def _cell(figure: float | None, missing: str) -> str:
    return missing if figure is None else f"{figure:.2f}"


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
