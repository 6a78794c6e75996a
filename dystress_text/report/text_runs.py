"""Finished runs of text with what was measured on the test sets: from their folders, or from a file
of runs.

A model that is no run, such as the untrained one, has the files of its evaluations alone. A file of
runs has a line of JSON for each, with what tables need of it: ``dystress report sweep/ --format
jsonl``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import (
    MINI_TRANSFER_TASKS,
    STS_SETS,
    TASKS,
    TRANSFER_TASKS,
    Row,
    figure_of,
)
from dystress_text.evaluation.retrieval import figures_in
from dystress_text.report.runs import FinishedRun, read_finished
from dystress_text.training.run_folder import RECORD, TEXT_PROGRAM, evaluation_file, read_json

TRAINING = "training"
Measured = dict[str, dict[str, dict[str, Any]]]
# of columns: what training calls the same data in its metrics
_TITLES = {task.name: task.title for task in STS_SETS.values()} | {
    task.name: f"{task.name} dev"
    for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS
    if task.scheme == "folds"
}
_KEPT = ("loss", "steps", "train_seconds", "device", "paper")


@dataclass(frozen=True)
class Evaluated:
    """A model that is no run of the training program, with its figures."""

    name: str  # of the model, with its pooler where the evaluation was told one
    figures: Mapping[str, Row]  # as those of a run
    variants: Sequence[str] = ()  # as those of a run
    measured: Measured = field(default_factory=dict)  # as those of a run

    def line(self) -> str:
        return json.dumps(vars(self))


@dataclass(frozen=True)
class TextRun(FinishedRun):
    """A finished run of text with its figures."""

    # by group (``training``, ``retrieval``, or suite and kind, as in ``senteval/sts``), then by
    # task
    figures: Mapping[str, Row]
    variants: Sequence[str] = ()  # what the data were, if they were not the published ones
    measured: Measured = field(
        default_factory=dict
    )  # how, by group and task: on which data, in which mode and so on

    def chose(self, column: str) -> bool:
        """Whether the set of a column may have chosen the step that was kept."""
        metrics = list(self.figures[TRAINING])
        chosen = self.record["settings"].get("metric_for_best_model") or next(iter(metrics), "")
        sets = {
            metric.rpartition("_")[0]
            for metric in (metrics if chosen.startswith("avg_") else [chosen])
        }
        return any(
            re.fullmatch(f"{name}(_(ndcg|mrr|recall)_.*)?", _slug(_TITLES.get(column, column)))
            for name in sets
        )

    def line(self) -> str:
        record = {name: self.record[name] for name in _KEPT if name in self.record}
        more = {
            name: self.record["settings"].get(name) for name in ("seed", "metric_for_best_model")
        }
        settings = {name: v for name, v in {**self.settings, **more}.items() if v is not None}
        corpus = {name: self.record["corpus"][name] for name in ("sentences", "sha256")}
        found = {"name": self.folder.name, **record, "settings": settings, "corpus": corpus}
        return json.dumps(
            {**found, "figures": self.figures, "variants": self.variants, "measured": self.measured}
        )


def read_text_runs(places: Sequence[Path]) -> tuple[list[TextRun], list[str], list[Evaluated]]:
    """The finished runs of text, the names of those that are not finished, and evaluated models
    that are no runs.

    A place is a run, an evaluated model, a folder of both, or a file of evaluations (``.json``) or
    runs (``.jsonl``). Models inside a run's folder are parts of the run.
    """
    lines = [line for place in places if place.suffix == ".jsonl" for line in _of_file(place)]
    others = [place for place in places if place.suffix != ".jsonl"]
    found = {place: _evaluated(place) for place in others}
    folders = [place for place in others if not found[place] or any(place.glob(f"*/{RECORD}"))]
    finished, unfinished = read_finished(folders, (TEXT_PROGRAM,))
    runs = [*map(_with_figures, finished), *(line for line in lines if isinstance(line, TextRun))]
    models = [*chain(*found.values()), *(line for line in lines if isinstance(line, Evaluated))]
    return runs, unfinished, models


def _of_file(file: Path) -> list[TextRun | Evaluated]:
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        figures = [(line["figures"], line["variants"], line.get("measured", {})) for line in lines]
        return [
            TextRun(Path(line["name"]), line, *of)
            if "settings" in line
            else Evaluated(line["name"], *of)
            for line, of in zip(lines, figures, strict=True)
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is not a file of runs: {error!r}") from error


def _evaluated(place: Path) -> list[Evaluated]:
    """The models with evaluations in a file, or in a folder or one in it that holds no run."""
    if (place / RECORD).is_file():
        return []
    pattern = evaluation_file(Path(), "*", "test").name
    within = sorted(file for each in ("", "*/") for file in place.glob(each + pattern))
    files = (
        [place]
        if place.suffix == ".json"
        else [f for f in within if not (f.parent / RECORD).is_file()]
    )
    models: dict[tuple[Path, str], list[Path]] = {}
    for file in files:
        about = read_json(file)
        pooler = about.get("pooler_type")
        name = Path(str(about.get("model"))).absolute().name + (f", {pooler}" if pooler else "")
        models.setdefault((file.parent, name), []).append(file)
    return [Evaluated(name, *_figures(several)) for (_, name), several in models.items()]


def _with_figures(run: FinishedRun) -> TextRun:
    files = sorted(run.folder.glob(evaluation_file(run.folder, "*", "test").name))
    figures, variants, measured = _figures(files, "pooler_type")
    trained_on = [
        f"{option}: {name}" for option, name in run.record.get("data_variants", {}).items() if name
    ]
    trained, collections = run.record["trained"], run.record.get("collections", {})
    data = run.record.get("eval_sha256", {}) | {
        _slug(name): of["sha256"] for name, of in collections.items()
    }
    measured[TRAINING] = {
        metric: {"data": data.get(metric.rpartition("_")[0])} for metric in trained
    }
    return TextRun(
        run.folder, run.record, {TRAINING: trained, **figures}, [*trained_on, *variants], measured
    )


def _slug(name: str) -> str:
    """What the metrics of training call a set."""
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def _figures(files: Sequence[Path], *more: str) -> tuple[dict[str, Row], list[str], Measured]:
    """The figures of files of evaluations by group and task, what data were not the published ones,
    and how.
    """
    figures: dict[str, Row] = {}
    measured: Measured = {}
    variants = []
    for file in files:
        evaluation, found = read_json(file), []
        try:
            for task, result in evaluation["tasks"].items():
                kind = "sts" if "spearman" in result or task in TASKS["sts"] else "transfer"
                found.append(
                    (f"{evaluation['suite']}/{kind}", task, figure_of(result), result.get("sha256"))
                )
            for name, result in evaluation.get("retrieval", {}).items():
                row = figures_in(result)
                found += [
                    ("retrieval", f"{name} {m}", figure, result.get("sha256"))
                    for m, figure in row.items()
                ]
            for name, result in evaluation.get("pairs", {}).items():
                found.append(("pairs", name, result["spearman"], result.get("sha256")))
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is not a file of an evaluation: {error!r}") from error
        for group, name, figure, data in found:
            figures.setdefault(group, {})[name] = figure
            ways = ("dtype", *more, *["mode"] * group.endswith("transfer"))
            about = {"data": hashlib.sha256(repr(data).encode()).hexdigest()[:12] if data else None}
            measured.setdefault(group, {})[name] = about | {
                way: evaluation.get(way) for way in ways
            }
        if evaluation.get("data_variant"):
            variants.append(f"evaluation: {evaluation['data_variant']}")
    return figures, variants, measured
