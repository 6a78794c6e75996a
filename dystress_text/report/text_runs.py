"""Finished runs of text with what was measured on the test sets: from their folders, or from a file of runs.

A model that is no run, such as the untrained one, has the files of its evaluations alone. A file of runs has a line of
JSON for each, with what tables need of it: ``dystress report sweep/ --format jsonl``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import TASKS, Row, figure_of
from dystress_text.evaluation.retrieval import figures_in
from dystress_text.report.runs import FinishedRun, read_finished
from dystress_text.training.run_folder import RECORD, TEXT_PROGRAM, evaluation_file, read_json

TRAINING = "training"
_KEPT = ("objective", "temperature", "temperature_parameters", "steps", "train_seconds", "device", "paper")


@dataclass(frozen=True)
class Evaluated:
    """A model that is no run of the training program, with its figures."""

    name: str  # of the model, with its pooler where the evaluation was told one
    figures: Mapping[str, Row]  # as those of a run
    variants: Sequence[str] = ()  # as those of a run

    def line(self) -> str:
        return json.dumps(vars(self))


@dataclass(frozen=True)
class TextRun(FinishedRun):
    """A finished run of text with its figures."""

    # by group (``training``, ``retrieval``, or suite and kind, as in ``senteval/sts``), then by task
    figures: Mapping[str, Row]
    variants: Sequence[str] = ()  # what the data were, if they were not the published ones

    def line(self) -> str:
        record = {name: self.record[name] for name in _KEPT if name in self.record}
        settings = {name: v for name, v in {**self.settings, "seed": self.seed}.items() if v is not None}
        corpus = {name: self.record["corpus"][name] for name in ("sentences", "sha256")}
        found = {"name": self.folder.name, **record, "settings": settings, "corpus": corpus}
        return json.dumps({**found, "figures": self.figures, "variants": self.variants})


def read_text_runs(places: Sequence[Path]) -> tuple[list[TextRun], list[str], list[Evaluated]]:
    """The finished runs of text, the names of those that are not finished, and evaluated models that are no runs.

    A place is a run, an evaluated model, a folder of both, or a file of evaluations (``.json``) or runs (``.jsonl``).
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
        return [
            TextRun(Path(line["name"]), line, line["figures"], line["variants"])
            if "settings" in line
            else Evaluated(line["name"], line["figures"], line["variants"])
            for line in lines
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is not a file of runs: {error!r}") from error


def _evaluated(place: Path) -> list[Evaluated]:
    """The models with evaluations in a file, or in a folder or one in it that holds no run."""
    pattern = evaluation_file(Path(), "*", "test").name
    within = sorted(file for each in ("", "*/") for file in place.glob(each + pattern))
    files = [place] if place.suffix == ".json" else [f for f in within if not (f.parent / RECORD).is_file()]
    models: dict[tuple[Path, str], list[Path]] = {}
    for file in files:
        about = read_json(file)
        pooler = about.get("pooler_type")
        name = Path(str(about.get("model"))).absolute().name + (f", {pooler}" if pooler else "")
        models.setdefault((file.parent, name), []).append(file)
    return [Evaluated(name, *_figures(several)) for (_, name), several in models.items()]


def _with_figures(run: FinishedRun) -> TextRun:
    figures, variants = _figures(sorted(run.folder.glob(evaluation_file(run.folder, "*", "test").name)))
    trained_on = [f"{option}: {name}" for option, name in run.record.get("data_variants", {}).items() if name]
    return TextRun(run.folder, run.record, {TRAINING: run.record["trained"], **figures}, [*trained_on, *variants])


def _figures(files: Sequence[Path]) -> tuple[dict[str, Row], list[str]]:
    """The figures of files of evaluations by group and task, and what their data were if not the published ones."""
    figures: dict[str, Row] = {}
    variants = []
    for file in files:
        evaluation = read_json(file)
        try:
            for task, result in evaluation["tasks"].items():
                kind = "sts" if "spearman" in result or task in TASKS["sts"] else "transfer"
                figures.setdefault(f"{evaluation['suite']}/{kind}", {})[task] = figure_of(result)
            for name, found in evaluation.get("retrieval", {}).items():
                row = {f"{name} {metric}": figure for metric, figure in figures_in(found).items()}
                figures.setdefault("retrieval", {}).update(row)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is not a file of an evaluation: {error!r}") from error
        if evaluation.get("data_variant"):
            variants.append(f"evaluation: {evaluation['data_variant']}")
    return figures, variants
