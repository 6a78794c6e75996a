"""Evaluate models on tasks, scored pairs and collections: print tables and append result lines.

The lexical baseline is measured on all data that it applies to. It is the last row of each table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from dystress_text.cli.text_table import lay_out
from dystress_text.errors import DataError, ParameterError
from dystress_text.evaluation.catalogue import (
    STS_SETS,
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
from dystress_text.evaluation.readers import StsPairs, check_distinct, read_scored_pairs
from dystress_text.evaluation.results import GEOMETRY, Result, append, open_results, result_file
from dystress_text.evaluation.retrieval import Collection, read_collections
from dystress_text.evaluation.settings import SentEvalSettings
from dystress_text.evaluation.sts import evaluate_pairs, evaluate_sts_task, score_vectors
from dystress_text.evaluation.transfer import evaluate_transfer
from dystress_text.io.atomic import sha256_of
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
            entry["seconds"] = round(time.perf_counter() - start, 2)
            result = Result.of_entry(entry, each.group, each.task, metadata)
            if each in baseline:
                result = replace(result, lexical=baseline[each].figures)
            if self.file is not None:
                append(self.file, result)
            results[each] = result
            self.figures.update(result.columns)
            shown = [f"{column} {_cell(x, column)}" for column, x in result.columns.items()]
            _progress(f"{self.model}: {', '.join(shown)} ({entry['seconds']:.1f} s)")
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
    settings: SentEvalSettings,
    model: SentenceTransformer | None = None,
    own_data: Sequence[StsPairs | Collection] = (),
) -> list[ModelEvaluation]:
    """Evaluate models and print the tables.

    Args:
        settings: names of models to load, and what they are measured on.
        model: a model in memory, called ``model``.
        own_data: data in memory.

    Returns:
        One evaluation for each model; the lexical baseline's is the last.
    """
    measures = list(_measures_of_suite(settings))
    measures += _measures_of_own_data(settings, own_data)
    poolers = {name: _pooler_of(settings, name) for name in settings.model if name != LEXICAL}
    loaders: dict[str, Callable[[], tuple[TextEncoder, dict[str, Any]]]] = {
        name: partial(load_model, name, pooler, settings.dtype) for name, pooler in poolers.items()
    }
    files = {name: settings.output or result_file(Path(name)) for name in poolers}
    if model is not None:
        loaders["model"] = partial(prepare, model, "model", None, settings.dtype)
        files["model"] = settings.output
    for file in {settings.output, *files.values()}:
        if file is not None:
            open_results(file)
    is_asked = LEXICAL in settings.model
    lexical = ModelEvaluation(LEXICAL, settings.output if is_asked else None)
    possible = [each for each in measures if each.has_baseline]
    common = {"dtype": settings.dtype, "mode": settings.mode}

    @cache
    def baseline() -> dict[Measure, Result]:
        if possible:
            print(f"{LEXICAL}: {TITLE}")
        return lexical.measure(possible, LexicalBaseline(), {"model": LEXICAL, **common}, {})

    evaluations = []
    for name, load in loaders.items():
        encoder, metadata = load()  # before the baseline, so that a wrong name fails at once
        evaluations.append(ModelEvaluation(name, files[name]))
        evaluations[-1].measure(measures, encoder, {**metadata, **common}, baseline())
    baseline()
    evaluations.append(lexical)
    _print_tables(evaluations, measures)
    for each in evaluations:
        if each is not lexical or is_asked:
            print(each.ending(), flush=True)
    return evaluations


def _pooler_of(settings: SentEvalSettings, model: str) -> str | None:
    """Return the pooler of a model; refuse a model that cannot be evaluated."""
    if len(settings.model) > 1 and is_sentence_transformer(model_path(model)):
        return None
    if settings.pooler_type is None:
        check_sentence_transformer(model_path(model))
    return settings.pooler_type


# ---- what is measured


def _measures_of_own_data(
    settings: SentEvalSettings, in_memory: Sequence[StsPairs | Collection]
) -> Iterator[Measure]:
    """Yield the user's own data, from files and from memory."""
    data = [
        *(read_scored_pairs(file, "pairs") for file in settings.pairs or []),
        *read_collections("retrieval", settings.retrieval or []),
        *in_memory,
    ]
    check_distinct("pairs", [each.name for each in data if isinstance(each, StsPairs)])
    for each in data:
        if isinstance(each, StsPairs):
            yield Measure("pairs", each.name, partial(evaluate_pairs, each), (each.name,))
            continue
        _progress(each.summary())
        columns = tuple(f"{each.name} {metric}" for metric in each.metrics)
        yield Measure("retrieval", each.name, partial(_evaluate_collection, each), columns)


def _measures_of_suite(settings: SentEvalSettings) -> Iterator[Measure]:
    """Yield the tasks that the settings name."""
    suite = settings.suite
    folder = suite_folder(suite, settings.data_dir)
    tasks = choose(suite, settings.tasks or [])
    if tasks and not folder.is_dir():
        ways = "run dystress prepare senteval, or use --suite mini, which needs no data"
        raise ParameterError("data_dir", f"no data of SentEval in {str(folder)!r}: {ways}")
    variant = variant_of(folder)
    if variant is not None and tasks:
        print(f"not SentEval's published data but a variant: {variant}")
    for kind, several in tasks.items():
        for task in several:
            evaluate = partial(evaluate_task, task, folder, mode=settings.mode)
            is_sts = isinstance(task, StsTask)
            yield Measure(f"{suite}/{kind}", task.name, evaluate, (task.name,), is_sts)
    dev = STS_SETS["mini_sts" if suite == "mini" else "stsb_dev"]
    if "sts" in tasks and settings.geometry != "none" and (folder / dev.files[0]).is_file():
        columns = tuple(f"{dev.title} {name}" for name in GEOMETRY)
        evaluate = partial(_evaluate_geometry, dev, folder)
        yield Measure(f"{suite}/geometry", dev.title, evaluate, columns, False)


def evaluate_task(task: Task, folder: Path, encoder: Encoder, mode: str = "test") -> Entry:
    """Evaluate an encoder on a task.

    Args:
        task: of the catalogue.
        folder: SentEval's ``downstream`` folder.
        encoder: a model; for STS tasks also the lexical baseline.
        mode: ``test`` or ``fast``, for transfer tasks.

    Returns:
        Figures (x 100) and details, with the checksums of the files.
    """
    if isinstance(task, StsTask):
        scores = evaluate_sts_task(task, folder, encoder)
    else:
        assert isinstance(encoder, TextEncoder)
        scores = evaluate_transfer(task, folder, encoder, mode)
    data = {"data": str(folder), "data_variant": variant_of(folder)}
    return {**scores, **data, "sha256": _checksums(task, folder)}


def _evaluate_geometry(task: StsTask, folder: Path, encoder: TextEncoder) -> Entry:
    pairs = task.pairs(folder)
    sentences = pairs.sentences
    measured = asdict(score_vectors(pairs, encoder(sentences)))
    return {**measured, "sentences": len(sentences), "sha256": _checksums(task, folder)}


def _evaluate_collection(collection: Collection, encoder: Encoder) -> Entry:
    figures = {name: round(figure, 2) for name, figure in collection.scores(encoder).items()}
    return {**figures, **collection.metadata}


def _checksums(task: Task, folder: Path) -> dict[str, str]:
    return {name: sha256_of(folder / name) for name in task.files}


# ---- what is printed


def _print_tables(evaluations: Sequence[ModelEvaluation], measures: Sequence[Measure]) -> None:
    """Print a table for each group: models and the lexical baseline."""
    columns: dict[str, list[str]] = {}
    for measure in measures:
        columns.setdefault(measure.group, []).extend(measure.columns)
    for group, names in columns.items():
        suite, _, kind = group.partition("/")
        rows = [(each.model, each.figures) for each in evaluations]
        if not set(names) & set(evaluations[-1].figures):  # not measured on the lexical baseline
            rows.pop()
        mean = None
        if kind in SUITES.get(suite, {}):
            mean = "avg" if len(names) == len(SUITES[suite][kind]) else f"avg of {len(names)}"
        if rows:
            print(f"\n{_table(rows, names, mean)}", flush=True)


def _table(rows: Iterable[tuple[str, Row]], columns: Sequence[str], mean: str | None) -> str:
    """Return a table of rows, with averages if ``mean`` names them."""
    lines = [["", *columns]]
    if mean:
        lines[0].append(mean)
    for label, row in rows:
        figures = {column: row.get(column) for column in columns}
        line = [label, *(_cell(figure, column) for column, figure in figures.items())]
        if mean:
            line.append(_cell(average(figures), missing="-"))
        lines.append(line)
    return lay_out(lines)


def _cell(figure: float | None, column: str = "", missing: str = "missing") -> str:
    if figure is None:
        return missing
    return f"{figure:.4f}" if column.endswith(GEOMETRY[1:]) else f"{figure:.2f}"


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
