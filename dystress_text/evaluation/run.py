"""An evaluation from the first task to the result file."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
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
from dystress_text.evaluation.retrieval import Collection, figures_in, read_collections
from dystress_text.evaluation.settings import SentEvalSettings
from dystress_text.evaluation.sts import Embed, evaluate_pairs, evaluate_sts_task, score_vectors
from dystress_text.evaluation.transfer import evaluate_transfer
from dystress_text.evaluation.words import TITLE, WORDS, Words
from dystress_text.files.places import model_path
from dystress_text.files.prepared_data import variant_of
from dystress_text.files.whole import sha256_of, versions
from dystress_text.models.loading import check_sentence_transformer, is_sentence_transformer
from dystress_text.training.run_folder import (
    contents_of,
    evaluation_file,
    one_writer,
    write_evaluation,
)

Published = Mapping[str, Mapping[str, Row]]  # rows of published tables by group and label
# results of the same of all these stand beside each other in a file
_SAME = ("suite", "mode", "pooler_type", "max_seq_length", "dtype", "prompts", "weights")


@dataclass
class Results:
    """The results of one evaluation of a model on a suite; they grow task by task."""

    about: Mapping[str, Any]  # the model, the suite and the settings
    tasks: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # entries of evaluate_task, by name
    left_out: dict[str, str] = field(default_factory=dict)  # why a task has no result
    geometry: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # of one set, under "geometry"
    retrieval: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # figures and sizes by collection
    pairs: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # Spearman's correlation and size by set

    @property
    def figures(self) -> dict[str, float]:
        """All figures by what they are of, such as ``STS12`` or ``My collection ndcg@10``."""
        own = {name: result["spearman"] for name, result in self.pairs.items()}
        tasks = {name: figure_of(result) for name, result in self.tasks.items()}
        searched = {name: figures_in(result) for name, result in self.retrieval.items()}
        return (
            tasks
            | own
            | {f"{name} {metric}": x for name, row in searched.items() for metric, x in row.items()}
        )

    @property
    def missing(self) -> list[str]:
        """The tasks that gave no result."""
        return [name for name in self.left_out if name != "geometry"]

    def begin(self, file: Path) -> None:
        """Find out now whether the file can be read and written, and say whether it holds what will
        be replaced.
        """
        with one_writer(file.parent):
            content = self._merged(file)
            if not file.exists():
                write_evaluation(file, content)
        if any(map(self._replaces, contents_of(file))):
            print(
                f"{file}: the results of other weights of {self.about['model']} are replaced",
                file=sys.stderr,
            )

    def write(self, file: Path, *new: str) -> None:
        """Merge the results into a file as JSON; of those there, the named ones alone are replaced."""
        with one_writer(file.parent):
            write_evaluation(file, self._merged(file, new))

    def _replaces(self, content: Mapping[str, Any]) -> bool:
        of_model = all(
            content.get(name) == self.about.get(name) for name in ("model", "pooler_type")
        )
        return of_model and content.get("weights") != self.about.get("weights")

    def _merged(self, file: Path, new: Sequence[str] = ()) -> dict[str, Any]:
        try:
            contents = [content for content in contents_of(file) if not self._replaces(content)]
            merged = [
                self._content(content, new) for content in contents
            ]  # of all, which finds what is damaged
            same = [all(c.get(name) == self.about.get(name) for name in _SAME) for c in contents]
            mine = merged[same.index(True)] if any(same) else self._content({"tasks": {}}, new)
            return {
                **mine,
                "others": [c for c, is_same in zip(contents, same, strict=True) if not is_same],
            }
        except (AttributeError, LookupError, TypeError) as error:
            reason = (
                f"is no result file of an evaluation ({error!r}); move it away, or name another one"
            )
            raise ParameterError("output", f"{file} {reason}") from error

    def _content(self, kept: Mapping[str, Any], new: Sequence[str]) -> dict[str, Any]:
        """These results with those that a file has kept of the same model and settings."""
        tasks = {**kept["tasks"]}
        names = "retrieval", "pairs", "other_data", "left_out"
        retrieval, pairs, others, left_out = ({**kept.get(name, {})} for name in names)
        geometry = {"geometry": measured} if (measured := kept.get("geometry")) else {}
        own = (self.retrieval, retrieval, retrieval), (self.pairs, pairs, pairs)
        places = (self.tasks, tasks, others), *own, (self.geometry, geometry, others)
        for mine, there, aside in places:
            for name in (name for name in mine if name in new or name not in there):
                left_out.pop(name, None)
                _put(there, name, mine[name], aside)
        rows = {
            group: _row(tasks, (task.name for task in of))
            for group, of in SUITES[self.about["suite"]].items()
        }
        variants = dict.fromkeys(result.get("data_variant") for result in tasks.values())
        return {
            **self.about,
            "data_variant": "; ".join(filter(None, variants)) or None,
            "complete": not any(None in row.values() for row in rows.values()),
            "averages": {group: average(row) for group, row in rows.items()},
            "tasks": {name: tasks[name] for row in rows.values() for name in row if name in tasks},
            "left_out": left_out | self.left_out,
            "geometry": geometry.get("geometry"),
            "retrieval": retrieval,
            "pairs": pairs,
            "other_data": others,
            "versions": versions(
                "sentence-transformers", "tokenizers", "scipy", "scikit-learn", "bm25s"
            ),
        }


def _row(tasks: Mapping[str, Any], names: Iterable[str]) -> Row:
    """The figures of tasks, None for one without a result."""
    return {name: figure_of(tasks[name]) if name in tasks else None for name in names}


def _put(results: dict[str, Any], name: str, new: dict[str, Any], others: dict[str, Any]) -> None:
    """Put a result in its place; one of other data that is there goes to the others, under a name
    with its checksum.
    """

    def with_checksum(result: Mapping[str, Any]) -> str:
        return f"{name} ({hashlib.sha256(repr(result.get('sha256')).encode()).hexdigest()[:8]})"

    if name in results and results[name].get("sha256") != new.get("sha256"):
        others[with_checksum(results[name])] = results[name]
    others.pop(with_checksum(new), None)
    results[name] = new


def table(
    results: Sequence[Results], names: Sequence[str], mean: str, more: Mapping[str, Row]
) -> str:
    """The figures of models on tasks and their averages, with further rows below, such as published
    ones.
    """
    lines = [["", *names, mean]]
    rows = [(of_model.about["model"], _row(of_model.tasks, names)) for of_model in results]
    for label, row in (*rows, *more.items()):
        figures = {name: row[name] for name in names}
        cells = ["missing" if figure is None else f"{figure:.2f}" for figure in figures.values()]
        lines.append(
            [label, *cells, "-" if (of_row := average(figures)) is None else f"{of_row:.2f}"]
        )
    return lay_out(lines)


def pairs_table(results: Sequence[Results], sets: Sequence[StsPairs]) -> str:
    """Spearman's correlation x 100 of models on the user's own pairs, a row for each."""
    names = [pairs.name for pairs in sets]
    return lay_out(
        [
            ["", *names],
            *(
                [
                    r.about["model"],
                    *(f"{r.pairs[n]['spearman']:.2f}" if n in r.pairs else "-" for n in names),
                ]
                for r in results
            ),
        ]
    )


def retrieval_table(results: Sequence[Results], collections: Sequence[Collection]) -> str:
    """The figures of models in search, a row for each."""
    columns = [
        (collection.name, metric) for collection in collections for metric in collection.metrics
    ]
    rows = [
        [r.about["model"], *(f"{r.retrieval[name][metric]:.2f}" for name, metric in columns)]
        for r in results
    ]
    return lay_out([["", *map(" ".join, columns)], *rows])


def evaluate_task(
    task: Task, folder: Path, embed: Embed | Words, mode: str = "test"
) -> dict[str, Any]:
    """Evaluate on a task of either kind in SentEval's ``downstream`` folder; returns its entry in
    the result file.
    """
    start = time.perf_counter()
    if isinstance(task, StsTask):
        scores = evaluate_sts_task(task, folder, embed)
    elif isinstance(embed, Words):
        raise DataError("words alone have no vectors to classify")
    else:
        scores = evaluate_transfer(task, folder, embed, mode)
    seconds = round(time.perf_counter() - start, 2)
    data = {"data": str(folder), "data_variant": variant_of(folder)}
    return {
        **scores,
        **data,
        "seconds": seconds,
        "sha256": {name: sha256_of(folder / name) for name in task.files},
    }


def run(settings: SentEvalSettings, published: Published | None = None) -> list[Results]:
    """Evaluate models: print the tables, and replace the entries of each in its result file task by
    task.

    Returns the results of each model. ``published`` are the rows for ``compare``.
    """
    chosen = choose(settings.suite, settings.tasks or [])
    folder = suite_folder(settings.suite, settings.data_dir)
    collections = read_collections("retrieval", settings.retrieval or [])
    own = [read_scored_pairs(file, "pairs") for file in settings.pairs or []]
    check_distinct("pairs", [pairs.name for pairs in own])
    if chosen and not folder.is_dir():
        reason = f"{folder} is not a folder; dystress prepare senteval gets them, the suite mini needs none"
        raise ParameterError("data_dir", reason)
    if (variant := variant_of(folder)) is not None:
        print(f"not SentEval's published data but a variant: {variant}")
    poolers = {model: _pooler_of(settings, model) for model in settings.model}
    about = {name: getattr(settings, name) for name in ("suite", "mode")} | {"data": str(folder)}
    every: list[Results] = []

    def show(group: str) -> None:
        names = [task.name for task in chosen[group]]
        mean = "avg" if len(names) == len(SUITES[settings.suite][group]) else f"avg of {len(names)}"
        more = (
            (published or {}).get(group, {})
            if settings.compare and settings.suite == "senteval"
            else {}
        )
        print(f"\n{table(every, names, mean, more)}", flush=True)

    for model, pooler in poolers.items():
        embed, of_model = _loaded(settings, model, pooler)
        mine = {group: tasks for group, tasks in chosen.items() if model != WORDS or group == "sts"}
        file = _file_of(settings, model)
        every.append(results := Results({**about, **of_model}))
        results.begin(file)
        for group, tasks in mine.items():
            for task in tasks:
                _run_task(settings, results, task, folder, embed)
                results.write(file, task.name)
            if len(poolers) == 1:
                show(group)
        if "sts" in chosen and settings.geometry != "none" and not isinstance(embed, Words):
            _measure_geometry(settings, results, folder, embed)
            results.write(file, "geometry")
        for pairs in own:
            _run_pairs(results, pairs, embed)
            results.write(file, pairs.name)
        for collection in collections:
            _run_collection(results, collection, embed, file)
        missing = ", ".join(results.missing)
        print(f"\n{file}: {f'results except {missing}' if missing else 'all results'}", flush=True)
    if len(poolers) > 1:
        for group in chosen:
            show(group)
    if own:
        print(f"\n{pairs_table(every, own)}", flush=True)
    if collections:
        print(f"\n{retrieval_table(every, collections)}", flush=True)
    return every


def _loaded(
    settings: SentEvalSettings, model: str, pooler: str | None
) -> tuple[TextEncoder | Words, dict[str, Any]]:
    if model == WORDS:
        print(f"{WORDS}: {TITLE}")
        return Words(), Words.about(settings.dtype)
    return load_model(model, pooler, settings.dtype)


def _pooler_of(settings: SentEvalSettings, model: str) -> str | None:
    """How vectors of a model are made; what cannot be evaluated is refused before the first model
    is.
    """
    if model == WORDS or (len(settings.model) > 1 and is_sentence_transformer(model_path(model))):
        return None
    if settings.pooler_type is None:
        check_sentence_transformer(model_path(model))
    return settings.pooler_type


def _file_of(settings: SentEvalSettings, model: str) -> Path:
    if settings.output is not None:
        return settings.output
    file = evaluation_file(
        Path(model) if Path(model).is_dir() else Path(), settings.suite, settings.mode
    )
    here = [name for name in settings.model if not Path(name).is_dir()]
    return (
        file.with_name(f"{model.replace('/', '--')}-{file.name}")
        if model in here[:-1] + here[1:]
        else file
    )


def _run_task(
    settings: SentEvalSettings, results: Results, task: Task, folder: Path, embed: Embed | Words
) -> None:
    try:
        results.tasks[task.name] = entry = evaluate_task(task, folder, embed, settings.mode)
    except DataError as error:
        _leave_out(results, task.name, error)
        return
    name = _said(settings, results, task.name)
    print(f"{name}: {figure_of(entry):.2f} ({entry['seconds']:.1f} s)", file=sys.stderr, flush=True)


def _run_pairs(results: Results, pairs: StsPairs, embed: Embed | Words) -> None:
    try:
        results.pairs[pairs.name] = evaluate_pairs(pairs, embed)
    except DataError as error:
        _leave_out(results, pairs.name, error)


def _leave_out(results: Results, name: str, error: DataError) -> None:
    results.left_out[name] = str(error)
    print(f"{name} left out: {error}", file=sys.stderr, flush=True)


def _said(settings: SentEvalSettings, results: Results, name: str) -> str:
    return f"{results.about['model']}, {name}" if len(settings.model) > 1 else name


def _run_collection(
    results: Results, collection: Collection, embed: TextEncoder | Words, file: Path
) -> None:
    start = time.perf_counter()
    figures = {name: round(figure, 2) for name, figure in collection.scores(embed).items()}
    seconds = round(time.perf_counter() - start, 2)
    results.retrieval[collection.name] = {**figures, **collection.about, "seconds": seconds}
    results.write(file, collection.name)
    print(f"{collection.summary()} ({seconds:.1f} s)", file=sys.stderr, flush=True)


def _measure_geometry(
    settings: SentEvalSettings, results: Results, folder: Path, embed: Embed
) -> None:
    task = STS_SETS["mini_sts" if settings.suite == "mini" else f"stsb_{settings.geometry}"]
    try:
        pairs = task.pairs(folder)
    except DataError as error:
        _leave_out(results, "geometry", error)
        return
    measured = score_vectors(pairs, embed(pairs.sentences))
    sums = {name: sha256_of(folder / name) for name in task.files}
    about = {"set": pairs.name, "sentences": len(pairs.sentences), "sha256": sums}
    results.geometry["geometry"] = about | asdict(measured)
    print(
        f"\n{_said(settings, results, pairs.name)}, {len(pairs.sentences):,} distinct sentences: alignment "
        f"{measured.alignment:.4f} (pairs scored above 4), uniformity {measured.uniformity:.4f}, Spearman "
        f"{measured.spearman:.2f}"
    )
