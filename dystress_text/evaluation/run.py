"""An evaluation of models on tasks, pairs and collections: printed, and appended line by line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

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
    figure_of,
    suite_folder,
)
from dystress_text.evaluation.embedder import TextEncoder, load_model
from dystress_text.evaluation.readers import StsPairs, check_distinct, read_scored_pairs
from dystress_text.evaluation.results import RESULTS, Result, append, now, open_results
from dystress_text.evaluation.retrieval import Collection, read_collections
from dystress_text.evaluation.settings import SentEvalSettings
from dystress_text.evaluation.sts import evaluate_pairs, evaluate_sts_task, score_vectors
from dystress_text.evaluation.transfer import evaluate_transfer
from dystress_text.evaluation.words import TITLE, WORDS, Words
from dystress_text.files.places import model_path
from dystress_text.files.prepared_data import variant_of
from dystress_text.files.whole import sha256_of
from dystress_text.models.loading import check_sentence_transformer, is_sentence_transformer

Published = Mapping[str, Mapping[str, Row]]  # rows of published tables by group and label
Encoder = TextEncoder | Words


@dataclass
class Evaluation:
    """What was measured of one model, and where it is appended."""

    model: str
    file: Path
    about: Mapping[str, Any]  # the model and the settings
    results: list[Result] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # tasks without a result

    def measure(
        self, group: str, task: str, evaluate: Callable[[], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Append what an evaluator measures to the result file; None if its data are no use."""
        try:
            entry = evaluate()
        except DataError as error:
            self.missing.append(task)
            _progress(f"{task} left out: {error}")
            return None
        result = Result.of_entry(entry, group, task, {**self.about, **now()})
        append(self.file, result)
        self.results.append(result)
        return entry

    def row(self, group: str) -> Row:
        """Return the figures of a group by column."""
        found: Row = {}
        for result in self.results:
            if result.group == group:
                found.update(result.columns)
        return found

    @property
    def figures(self) -> Row:
        """All figures by what they are of, such as ``STS12`` or ``My collection ndcg@10``."""
        found: Row = {}
        for result in self.results:
            if result.kind != "geometry":
                found.update(result.columns)
        return found


def evaluate_task(task: Task, folder: Path, encoder: Encoder, mode: str = "test") -> dict[str, Any]:
    """Evaluate on a task of SentEval's ``downstream`` folder, with what its data are."""
    start = time.perf_counter()
    if isinstance(task, StsTask):
        scores = evaluate_sts_task(task, folder, encoder)
    elif isinstance(encoder, Words):
        raise DataError("words alone have no vectors to classify")
    else:
        scores = evaluate_transfer(task, folder, encoder, mode)
    return {
        **scores,
        "data": str(folder),
        "data_variant": variant_of(folder),
        "seconds": _seconds_since(start),
        "sha256": _checksums(task, folder),
    }


@dataclass(frozen=True)
class Data:
    """What models are measured on.

    Attributes:
        folder: of the suite.
        tasks: of the suite, by group.
        pairs: the user's own.
        collections: for search.
    """

    folder: Path
    tasks: Mapping[str, Sequence[Task]]
    pairs: Sequence[StsPairs]
    collections: Sequence[Collection]

    @classmethod
    def read(cls, settings: SentEvalSettings) -> Data:
        """Read what the settings name, all before the first model is loaded."""
        folder = suite_folder(settings.suite, settings.data_dir)
        tasks = choose(settings.suite, settings.tasks or [])
        collections = read_collections("retrieval", settings.retrieval or [])
        pairs = [read_scored_pairs(file, "pairs") for file in settings.pairs or []]
        check_distinct("pairs", [each.name for each in pairs])
        if tasks and not folder.is_dir():
            raise ParameterError(
                "data_dir",
                f"{folder} is not a folder; dystress prepare senteval gets them, the suite mini "
                "needs none",
            )
        variant = variant_of(folder)
        if variant is not None:
            print(f"not SentEval's published data but a variant: {variant}")
        return cls(folder, tasks, pairs, collections)


def run(settings: SentEvalSettings, published: Published | None = None) -> list[Evaluation]:
    """Evaluate models: print the tables, and append each result to its file as it is there.

    ``published`` are the rows for ``compare``.
    """
    data = Data.read(settings)
    rows: Published = {}
    if published and settings.compare and settings.suite == "senteval":
        rows = published
    poolers = {model: _pooler_of(settings, model) for model in settings.model}
    every: list[Evaluation] = []
    for model, pooler in poolers.items():
        encoder, about = _loaded(settings, model, pooler)
        file = settings.output or (Path(model) if Path(model).is_dir() else Path()) / RESULTS
        evaluation = Evaluation(model, file, {**about, "mode": settings.mode})
        every.append(evaluation)
        open_results(file)
        title = f"{model}, " if len(poolers) > 1 else ""
        for group, tasks in data.tasks.items():
            if isinstance(encoder, Words) and group != "sts":
                continue
            for task in tasks:
                name = f"{settings.suite}/{group}"
                _run_task(evaluation, name, task, data.folder, encoder, title)
            if len(poolers) == 1:
                _print_tasks(every, settings.suite, group, tasks, rows)
        _measure_others(evaluation, encoder, data, settings, title)
        done = f"results except {', '.join(evaluation.missing)}"
        print(f"\n{file}: {done if evaluation.missing else 'all results'}", flush=True)
    if len(poolers) > 1:
        for group, tasks in data.tasks.items():
            _print_tasks(every, settings.suite, group, tasks, rows)
    _print_others(every, data)
    return every


def _measure_others(
    evaluation: Evaluation,
    encoder: TextEncoder | Words,
    data: Data,
    settings: SentEvalSettings,
    title: str,
) -> None:
    """Measure a model's geometry, and it on the user's own pairs and collections."""
    if "sts" in data.tasks and settings.geometry != "none" and isinstance(encoder, TextEncoder):
        _measure_geometry(evaluation, settings.suite, data.folder, encoder, title)
    for pairs in data.pairs:
        evaluation.measure("pairs", pairs.name, partial(evaluate_pairs, pairs, encoder))
    for collection in data.collections:
        _run_collection(evaluation, collection, encoder)


def _print_others(every: Sequence[Evaluation], data: Data) -> None:
    if data.pairs:
        _print_table(every, "pairs", [pairs.name for pairs in data.pairs])
    if data.collections:
        columns = [f"{each.name} {metric}" for each in data.collections for metric in each.metrics]
        _print_table(every, "retrieval", columns)


def _print_tasks(
    every: Sequence[Evaluation], suite: str, group: str, tasks: Sequence[Task], rows: Published
) -> None:
    mean = "avg"
    if len(tasks) < len(SUITES[suite][group]):
        mean = f"avg of {len(tasks)}"
    columns = [task.name for task in tasks]
    _print_table(every, f"{suite}/{group}", columns, mean, rows.get(group))


def _print_table(
    every: Sequence[Evaluation],
    group: str,
    columns: Sequence[str],
    mean: str | None = None,
    published: Mapping[str, Row] | None = None,
) -> None:
    """Print models on columns, with averages if ``mean`` names them, and published rows below."""
    rows = [(each.model, each.row(group)) for each in every]
    rows += (published or {}).items()
    lines = [["", *columns]]
    for label, row in rows:
        lines.append([label, *(_cell(row.get(column), "missing") for column in columns)])
    if mean:
        lines[0].append(mean)
        for line, (_, row) in zip(lines[1:], rows, strict=True):
            line.append(_cell(average({column: row.get(column) for column in columns}), "-"))
    print(f"\n{lay_out(lines)}", flush=True)


def _cell(figure: float | None, missing: str) -> str:
    return missing if figure is None else f"{figure:.2f}"


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _seconds_since(start: float) -> float:
    return round(time.perf_counter() - start, 2)


def _checksums(task: Task, folder: Path) -> dict[str, str]:
    return {name: sha256_of(folder / name) for name in task.files}


def _loaded(
    settings: SentEvalSettings, model: str, pooler: str | None
) -> tuple[Encoder, dict[str, Any]]:
    if model == WORDS:
        print(f"{WORDS}: {TITLE}")
        return Words(), Words.about(settings.dtype)
    return load_model(model, pooler, settings.dtype)


def _pooler_of(settings: SentEvalSettings, model: str) -> str | None:
    """Return how vectors of a model are made; refuse now what cannot be evaluated."""
    if model == WORDS or (len(settings.model) > 1 and is_sentence_transformer(model_path(model))):
        return None
    if settings.pooler_type is None:
        check_sentence_transformer(model_path(model))
    return settings.pooler_type


def _run_task(
    evaluation: Evaluation, group: str, task: Task, folder: Path, encoder: Encoder, title: str
) -> None:
    evaluate = partial(evaluate_task, task, folder, encoder, evaluation.about["mode"])
    entry = evaluation.measure(group, task.name, evaluate)
    if entry is not None:
        _progress(f"{title}{task.name}: {figure_of(entry):.2f} ({entry['seconds']:.1f} s)")


def _run_collection(evaluation: Evaluation, collection: Collection, encoder: Encoder) -> None:
    start = time.perf_counter()
    entry: dict[str, Any] = {
        name: round(figure, 2) for name, figure in collection.scores(encoder).items()
    }
    entry |= {**collection.about, "seconds": _seconds_since(start)}
    evaluation.measure("retrieval", collection.name, lambda: entry)
    _progress(f"{collection.summary()} ({entry['seconds']:.1f} s)")


def _measure_geometry(
    evaluation: Evaluation, suite: str, folder: Path, encoder: TextEncoder, title: str
) -> None:
    task = STS_SETS["mini_sts" if suite == "mini" else "stsb_dev"]
    try:
        pairs = task.pairs(folder)
    except DataError as error:
        _progress(f"geometry left out: {error}")
        return
    sentences = pairs.sentences
    measured = score_vectors(pairs, encoder(sentences))
    entry = {
        **asdict(measured),
        "sentences": len(sentences),
        "sha256": _checksums(task, folder),
    }
    evaluation.measure(f"{suite}/geometry", pairs.name, lambda: entry)
    print(
        f"\n{title}{pairs.name}, {len(sentences):,} distinct sentences: "
        f"alignment {measured.alignment:.4f} (pairs scored above 4), "
        f"uniformity {measured.uniformity:.4f}, Spearman {measured.spearman:.2f}"
    )
