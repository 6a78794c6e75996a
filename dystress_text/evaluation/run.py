"""An evaluation of models on tasks, pairs and collections: printed, and appended line by line."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
from dystress_text.evaluation.evaluators import read_scored_pairs
from dystress_text.evaluation.readers import StsPairs, check_distinct
from dystress_text.evaluation.results import RESULTS, Result, append, now, open_results
from dystress_text.evaluation.retrieval import Collection, read_collections
from dystress_text.evaluation.settings import SentEvalSettings
from dystress_text.evaluation.sts import Embed, evaluate_pairs, evaluate_sts_task, score_vectors
from dystress_text.evaluation.transfer import evaluate_transfer
from dystress_text.evaluation.words import TITLE, WORDS, Words
from dystress_text.files.places import model_path
from dystress_text.files.prepared_data import variant_of
from dystress_text.files.whole import sha256_of
from dystress_text.models.loading import check_sentence_transformer, is_sentence_transformer

Published = Mapping[str, Mapping[str, Row]]  # rows of published tables by group and label
Embedding = TextEncoder | Words


@dataclass
class Evaluation:
    """What was measured of one model, and where it is appended."""

    model: str
    file: Path
    about: Mapping[str, Any]  # the model and the settings
    results: list[Result] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # tasks without a result

    def add(self, entry: Mapping[str, Any], group: str, task: str) -> None:
        """Append what an evaluator measured to the result file."""
        result = Result.of_entry(entry, group, task, {**self.about, **now()})
        append(self.file, result)
        self.results.append(result)

    def row(self, group: str, columns: Sequence[str]) -> Row:
        """Return the figures of a group, None for a column without one."""
        found: Row = {}
        for result in self.results:
            if result.group == group:
                found.update(result.columns)
        return {column: found.get(column) for column in columns}

    @property
    def figures(self) -> dict[str, float | None]:
        """All figures by what they are of, such as ``STS12`` or ``My collection ndcg@10``."""
        shown = (result.columns for result in self.results if result.kind != "geometry")
        return {name: figure for columns in shown for name, figure in columns.items()}


def evaluate_task(
    task: Task, folder: Path, embed: Embed | Words, mode: str = "test"
) -> dict[str, Any]:
    """Evaluate on a task of SentEval's ``downstream`` folder, with what its data are."""
    start = time.perf_counter()
    if isinstance(task, StsTask):
        scores = evaluate_sts_task(task, folder, embed)
    elif isinstance(embed, Words):
        raise DataError("words alone have no vectors to classify")
    else:
        scores = evaluate_transfer(task, folder, embed, mode)
    return {
        **scores,
        "data": str(folder),
        "data_variant": variant_of(folder),
        "seconds": round(time.perf_counter() - start, 2),
        "sha256": {name: sha256_of(folder / name) for name in task.files},
    }


def run(settings: SentEvalSettings, published: Published | None = None) -> list[Evaluation]:
    """Evaluate models: print the tables, and append each result to its file as it is there.

    ``published`` are the rows for ``compare``.
    """
    suite = settings.suite
    chosen = choose(suite, settings.tasks or [])
    folder = suite_folder(suite, settings.data_dir)
    collections = read_collections("retrieval", settings.retrieval or [])
    own = [read_scored_pairs(file, "pairs") for file in settings.pairs or []]
    check_distinct("pairs", [pairs.name for pairs in own])
    if chosen and not folder.is_dir():
        reason = f"{folder} is not a folder; dystress prepare senteval gets them, the suite mini needs none"
        raise ParameterError("data_dir", reason)
    if (variant := variant_of(folder)) is not None:
        print(f"not SentEval's published data but a variant: {variant}")
    poolers = {model: _pooler_of(settings, model) for model in settings.model}
    several = len(poolers) > 1
    rows = published if published and settings.compare and suite == "senteval" else {}
    every: list[Evaluation] = []
    for model, pooler in poolers.items():
        embed, about = _loaded(settings, model, pooler)
        here = settings.output or (Path(model) if Path(model).is_dir() else Path()) / RESULTS
        evaluation = Evaluation(model, here, {**about, "mode": settings.mode})
        every.append(evaluation)
        open_results(here)
        title = f"{model}, " if several else ""
        for group, tasks in chosen.items():
            if model == WORDS and group != "sts":
                continue
            for task in tasks:
                _run_task(evaluation, f"{suite}/{group}", task, folder, embed, title)
            if not several:
                _show(every, suite, group, tasks, rows)
        if "sts" in chosen and settings.geometry != "none" and not isinstance(embed, Words):
            _measure_geometry(evaluation, suite, folder, embed, title)
        for pairs in own:
            _run_pairs(evaluation, pairs, embed)
        for collection in collections:
            _run_collection(evaluation, collection, embed)
        done = f"results except {', '.join(evaluation.missing)}" if evaluation.missing else ""
        print(f"\n{here}: {done or 'all results'}", flush=True)
    if several:
        for group, tasks in chosen.items():
            _show(every, suite, group, tasks, rows)
    if own:
        print(f"\n{pairs_table(every, own)}", flush=True)
    if collections:
        print(f"\n{retrieval_table(every, collections)}", flush=True)
    return every


def table(
    evaluations: Sequence[Evaluation],
    group: str,
    names: Sequence[str],
    mean: str,
    more: Mapping[str, Row],
) -> str:
    """Lay out models on tasks with averages, and further rows below, such as published ones."""
    lines = [["", *names, mean]]
    rows = [(each.model, each.row(group, names)) for each in evaluations]
    for label, row in (*rows, *more.items()):
        figures = {name: row[name] for name in names}
        lines.append([label, *map(_cell, figures.values()), _cell(average(figures), "-")])
    return lay_out(lines)


def pairs_table(evaluations: Sequence[Evaluation], sets: Sequence[StsPairs]) -> str:
    """Lay out Spearman's correlation x 100 of models on the user's own pairs."""
    return _own_table(evaluations, "pairs", [pairs.name for pairs in sets])


def retrieval_table(evaluations: Sequence[Evaluation], collections: Sequence[Collection]) -> str:
    """Lay out the figures of models in search."""
    columns = [f"{each.name} {metric}" for each in collections for metric in each.metrics]
    return _own_table(evaluations, "retrieval", columns)


def _own_table(evaluations: Sequence[Evaluation], group: str, columns: Sequence[str]) -> str:
    rows = [[each.model, *map(_cell, each.row(group, columns).values())] for each in evaluations]
    return lay_out([["", *columns], *rows])


def _cell(figure: float | None, missing: str = "missing") -> str:
    return missing if figure is None else f"{figure:.2f}"


def _show(
    every: Sequence[Evaluation], suite: str, group: str, tasks: Sequence[Task], rows: Published
) -> None:
    names = [task.name for task in tasks]
    mean = "avg" if len(names) == len(SUITES[suite][group]) else f"avg of {len(names)}"
    print(f"\n{table(every, f'{suite}/{group}', names, mean, rows.get(group, {}))}", flush=True)


def _loaded(
    settings: SentEvalSettings, model: str, pooler: str | None
) -> tuple[Embedding, dict[str, Any]]:
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
    evaluation: Evaluation, group: str, task: Task, folder: Path, embed: Embedding, title: str
) -> None:
    try:
        entry = evaluate_task(task, folder, embed, evaluation.about["mode"])
    except DataError as error:
        _leave_out(evaluation, task.name, error)
        return
    evaluation.add(entry, group, task.name)
    line = f"{title}{task.name}: {figure_of(entry):.2f} ({entry['seconds']:.1f} s)"
    print(line, file=sys.stderr, flush=True)


def _run_pairs(evaluation: Evaluation, pairs: StsPairs, embed: Embedding) -> None:
    try:
        evaluation.add(evaluate_pairs(pairs, embed), "pairs", pairs.name)
    except DataError as error:
        _leave_out(evaluation, pairs.name, error)


def _leave_out(evaluation: Evaluation, name: str, error: DataError) -> None:
    evaluation.missing.append(name)
    print(f"{name} left out: {error}", file=sys.stderr, flush=True)


def _run_collection(evaluation: Evaluation, collection: Collection, embed: Embedding) -> None:
    start = time.perf_counter()
    figures = {name: round(figure, 2) for name, figure in collection.scores(embed).items()}
    seconds = round(time.perf_counter() - start, 2)
    entry = {**figures, **collection.about, "seconds": seconds}
    evaluation.add(entry, "retrieval", collection.name)
    print(f"{collection.summary()} ({seconds:.1f} s)", file=sys.stderr, flush=True)


def _measure_geometry(
    evaluation: Evaluation, suite: str, folder: Path, embed: Embed, title: str
) -> None:
    task = STS_SETS["mini_sts" if suite == "mini" else "stsb_dev"]
    try:
        pairs = task.pairs(folder)
    except DataError as error:
        print(f"geometry left out: {error}", file=sys.stderr)
        return
    measured = score_vectors(pairs, embed(pairs.sentences))
    entry = {
        **asdict(measured),
        "sentences": len(pairs.sentences),
        "sha256": {name: sha256_of(folder / name) for name in task.files},
    }
    evaluation.add(entry, f"{suite}/geometry", pairs.name)
    print(
        f"\n{title}{pairs.name}, {len(pairs.sentences):,} distinct sentences: alignment "
        f"{measured.alignment:.4f} (pairs scored above 4), uniformity {measured.uniformity:.4f}, Spearman "
        f"{measured.spearman:.2f}"
    )
