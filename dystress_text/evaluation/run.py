"""An evaluation of models on tasks, pairs and collections: printed, and appended line by line.

The lexical baseline is measured first, on all that it can be measured on, and stands below the
models in each table.
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
from dystress_text.evaluation.results import (
    GEOMETRY,
    Result,
    append,
    now,
    open_results,
    result_file,
)
from dystress_text.evaluation.retrieval import Collection, read_collections
from dystress_text.evaluation.settings import SentEvalSettings
from dystress_text.evaluation.sts import evaluate_pairs, evaluate_sts_task, score_vectors
from dystress_text.evaluation.transfer import evaluate_transfer
from dystress_text.io.atomic import sha256_of
from dystress_text.io.paths import model_path
from dystress_text.io.prepared_data import variant_of
from dystress_text.models.loading import check_sentence_transformer, is_sentence_transformer

Published = Mapping[str, Mapping[str, Row]]  # rows of published tables by group and label
Encoder = TextEncoder | LexicalBaseline
Entry = dict[str, Any]  # what an evaluator measures


@dataclass(frozen=True)
class Measure:
    """One task, set of pairs or collection that models are measured on."""

    group: str  # of the results
    task: str
    evaluate: Callable[[Any], Entry]  # of an encoder; a DataError if the data are no use
    columns: tuple[str, ...]  # in the table of the group
    has_baseline: bool = True  # whether the lexical baseline can be measured


@dataclass
class Evaluation:
    """What was measured of one model, and where it is appended."""

    model: str
    file: Path | None  # None for nowhere
    figures: Row = field(default_factory=dict)  # by column, such as STS12 or cisi nDCG@10
    missing: list[str] = field(default_factory=list)  # tasks without a result

    def measure(
        self,
        measures: Iterable[Measure],
        encoder: Encoder,
        about: Mapping[str, Any],
        baseline: Mapping[Measure, Result],
    ) -> dict[Measure, Result]:
        """Return the results; each is appended to the file as it is there.

        Args:
            measures: on what; those whose data are no use are missing.
            encoder: a model or the lexical baseline.
            about: what the lines say of model and settings.
            baseline: results of the lexical baseline, whose figures are in the same lines.
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
            result = Result.of_entry(entry, each.group, each.task, {**about, **now()})
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
        """Return the line that says what was measured, and where it is."""
        measured = "all results"
        if self.missing:
            measured = f"results except {', '.join(self.missing)}"
        if self.file is None:
            return f"{self.model}: {measured}; not saved, --output FILE.jsonl saves them"
        return f"{self.file}: {measured}"


def run(
    settings: SentEvalSettings,
    published: Published | None = None,
    model: SentenceTransformer | None = None,
    own: Sequence[StsPairs | Collection] = (),
) -> list[Evaluation]:
    """Evaluate models, print the tables, and return the evaluations, the lexical baseline's last.

    Args:
        settings: what the models are measured on, and names of models to load.
        published: the rows for ``compare``.
        model: in memory, called ``model``.
        own: data in memory.
    """
    measures = [*_measures_of_suite(settings), *_own_measures(settings, own)]
    poolers = {name: _pooler_of(settings, name) for name in settings.model if name != LEXICAL}
    files = {name: settings.output or result_file(Path(name)) for name in poolers}
    for file in {settings.output, *files.values()}:
        if file is not None:
            open_results(file)
    is_asked = LEXICAL in settings.model
    lexical = Evaluation(LEXICAL, settings.output if is_asked else None)
    possible = [each for each in measures if each.has_baseline]
    every = []

    @cache
    def baseline() -> dict[Measure, Result]:
        if possible:
            print(f"{LEXICAL}: {TITLE}")
        settled = {"model": LEXICAL, "dtype": settings.dtype, "mode": settings.mode}
        return lexical.measure(possible, LexicalBaseline(), settled, {})

    def measure(name: str, file: Path | None, loaded: tuple[TextEncoder, dict[str, Any]]) -> None:
        encoder, about = loaded
        every.append(Evaluation(name, file))
        every[-1].measure(measures, encoder, {**about, "mode": settings.mode}, baseline())

    for name, pooler in poolers.items():
        measure(name, files[name], load_model(name, pooler, settings.dtype))
    if model is not None:
        measure("model", settings.output, prepare(model, "model", None, settings.dtype))
    baseline()
    _print_tables([*every, lexical], measures, published if settings.compare else None)
    for each in [*every, lexical] if is_asked else every:
        print(each.ending(), flush=True)
    return [*every, lexical]


def _pooler_of(settings: SentEvalSettings, model: str) -> str | None:
    """Return how vectors of a model are made; refuse now what cannot be evaluated."""
    if len(settings.model) > 1 and is_sentence_transformer(model_path(model)):
        return None
    if settings.pooler_type is None:
        check_sentence_transformer(model_path(model))
    return settings.pooler_type


# ---- what is measured


def _own_measures(
    settings: SentEvalSettings, own: Sequence[StsPairs | Collection]
) -> Iterator[Measure]:
    """Yield the user's own data, with those that the settings name read."""
    every = [
        *(read_scored_pairs(file, "pairs") for file in settings.pairs or []),
        *read_collections("retrieval", settings.retrieval or []),
        *own,
    ]
    check_distinct("pairs", [each.name for each in every if isinstance(each, StsPairs)])
    for each in every:
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
        ways = "--suite mini needs none, dystress prepare senteval gets them"
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
    """Evaluate on a task of SentEval's ``downstream`` folder, with what its data are."""
    if isinstance(task, StsTask):
        scores = evaluate_sts_task(task, folder, encoder)
    else:
        assert isinstance(encoder, TextEncoder)
        scores = evaluate_transfer(task, folder, encoder, mode)
    about = {"data": str(folder), "data_variant": variant_of(folder)}
    return {**scores, **about, "sha256": _checksums(task, folder)}


def _evaluate_geometry(task: StsTask, folder: Path, encoder: TextEncoder) -> Entry:
    pairs = task.pairs(folder)
    sentences = pairs.sentences
    measured = asdict(score_vectors(pairs, encoder(sentences)))
    return {**measured, "sentences": len(sentences), "sha256": _checksums(task, folder)}


def _evaluate_collection(collection: Collection, encoder: Encoder) -> Entry:
    figures = {name: round(figure, 2) for name, figure in collection.scores(encoder).items()}
    return {**figures, **collection.about}


def _checksums(task: Task, folder: Path) -> dict[str, str]:
    return {name: sha256_of(folder / name) for name in task.files}


# ---- what is printed


def _print_tables(
    every: Sequence[Evaluation], measures: Sequence[Measure], published: Published | None
) -> None:
    """Print a table for each group, of models and of published rows below."""
    columns: dict[str, list[str]] = {}
    for measure in measures:
        columns.setdefault(measure.group, []).extend(measure.columns)
    for group, names in columns.items():
        suite, _, kind = group.partition("/")
        rows = [(each.model, each.figures) for each in every]
        if not set(names) & set(every[-1].figures):  # the lexical baseline has none
            rows.pop()
        if suite == "senteval" and published:
            rows += published.get(kind, {}).items()
        mean = None
        if kind in SUITES.get(suite, {}):
            mean = "avg" if len(names) == len(SUITES[suite][kind]) else f"avg of {len(names)}"
        if rows:
            print(f"\n{_table(rows, names, mean)}", flush=True)


def _table(rows: Iterable[tuple[str, Row]], columns: Sequence[str], mean: str | None) -> str:
    """Return rows on columns, with averages if ``mean`` names them."""
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
