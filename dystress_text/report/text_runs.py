"""Finished runs of text with what was measured on the test sets: from their folders, or from a file of runs.

A file of runs has a line of JSON for each, with what tables need of it: ``dystress report sweep/ --format jsonl``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import TASKS, Row, figure_of
from dystress_text.report.runs import FinishedRun, read_finished
from dystress_text.training.run_folder import TEXT_PROGRAM, evaluation_file, read_json

TRAINING = "training"
_KEPT = ("objective", "temperature", "temperature_parameters", "steps", "train_seconds", "device", "paper")


@dataclass(frozen=True)
class TextRun(FinishedRun):
    """A finished run of text with its figures.

    Attributes:
        figures: by group (``training``, or a suite and ``sts`` or ``transfer``, as in ``senteval/sts``), then by task.
        variants: what the data were, if they were not the published ones.
    """

    figures: Mapping[str, Row]
    variants: Sequence[str] = ()

    def line(self) -> str:
        """The line of a file of runs."""
        record = {name: self.record[name] for name in _KEPT if name in self.record}
        settings = {name: v for name, v in {**self.settings, "seed": self.seed}.items() if v is not None}
        corpus = {name: self.record["corpus"][name] for name in ("sentences", "sha256")}
        found = {"name": self.folder.name, **record, "settings": settings, "corpus": corpus}
        return json.dumps({**found, "figures": self.figures, "variants": self.variants})


def read_text_runs(places: Sequence[Path]) -> tuple[list[TextRun], list[str]]:
    """The finished runs of text, and the names of those that are not finished.

    Args:
        places: runs, folders of runs, or files of runs (``.jsonl``).
    """
    files = [place for place in places if place.suffix == ".jsonl"]
    finished, unfinished = read_finished([place for place in places if place not in files], (TEXT_PROGRAM,))
    return [*map(_with_figures, finished), *(run for file in files for run in _of_file(file))], unfinished


def _of_file(file: Path) -> list[TextRun]:
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [TextRun(Path(line["name"]), line, line["figures"], line["variants"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is not a file of runs: {error!r}") from error


def _with_figures(run: FinishedRun) -> TextRun:
    figures: dict[str, Row] = {TRAINING: run.record["trained"]}
    variants = [f"{option}: {name}" for option, name in run.record.get("data_variants", {}).items() if name]
    for file in sorted(run.folder.glob(evaluation_file(run.folder, "*", "test").name)):
        evaluation = read_json(file)
        for task, result in evaluation["tasks"].items():
            kind = "sts" if "spearman" in result or task in TASKS["sts"] else "transfer"
            figures.setdefault(f"{evaluation['suite']}/{kind}", {})[task] = figure_of(result)
        if evaluation.get("data_variant"):
            variants.append(f"evaluation: {evaluation['data_variant']}")
    return TextRun(run.folder, run.record, figures, variants)
