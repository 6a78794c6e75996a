"""Finished runs of text or images: model, settings, logs and outcome."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.cli.text_table import TextTable, cell, lay_out
from dystress_text.errors import UserError
from dystress_text.io.atomic import write_text
from dystress_text.training import run_folder
from dystress_text.training.run_record import BASE, FINISHED, RunRecord
from dystress_text.training.settings import CONFIGURATION_FREE

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

LogLine = Mapping[str, Any]  # its step, and values by name


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of text or images.

    Attributes:
        folder: the folder with the model, the logs and the page.
        record: the content of ``run.json``.

    Examples:
        >>> from dystress_text.training.run_record import RunRecord
        >>> record = RunRecord(trained={"sts_b_dev_spearman": 79.1})
        >>> FinishedRun(Path("mine"), record).evaluation
        {'sts_b_dev_spearman': 79.1}
    """

    folder: Path
    record: RunRecord

    def __repr__(self) -> str:
        """Return at most five lines: settings, results and folder."""
        record = self.record
        trained = f"{record.settings.get('preset')}, {record.loss}, {record.steps} steps"
        return "\n".join([trained, *outcome_lines(record)[:3], f"in {self.folder}"])

    def _repr_html_(self) -> str:
        """Return the lines of ``repr`` and a table of all metrics, for notebooks."""
        return f"<pre>{escape(repr(self))}</pre>{lay_out(results_table(self.record), 'html')}"

    @property
    def evaluation(self) -> dict[str, float]:
        """Metrics of the trained model by name."""
        return dict(self.record.trained)

    @cached_property
    def model(self) -> SentenceTransformer:
        """The trained model of a run on text."""
        from dystress_text.models.loading import load_sentence_transformer  # slow to import

        return load_sentence_transformer(str(self.folder), device=None)

    @property
    def seed(self) -> int:
        return int(self.record.settings["seed"])

    @property
    def configuration(self) -> str:
        """The folder's name without the seed; the loss, if the folder is named after the loss."""
        name = re.sub(r"(?<=.)-seed-\d+$", "", self.folder.name)
        return self.record.loss if name == as_folder(self.record.loss) else name

    @property
    def settings(self) -> dict[str, Any]:
        """The options that define a configuration, and the checksum of the training text."""
        options = {**self.record.settings, "training text": self.record.corpus.get("sha256")}
        return {
            name: value
            for name, value in options.items()
            if name not in CONFIGURATION_FREE and name != "seed"
        }

    def metrics(self) -> list[LogLine]:
        return list(run_folder.read_steps(self.folder / run_folder.LOG))

    def similarities(self) -> list[LogLine]:
        """Return the lines of the similarity log; [] for a run without one."""
        log = self.folder / run_folder.SIMILARITY_LOG
        return list(run_folder.read_steps(log)) if log.is_file() else []


def as_folder(loss: str) -> str:
    """Return the folder name of a loss, such as ``dcl-0.05`` for ``dcl(0.05)``."""
    return re.sub(r"[^\w.=+]+", "-", loss).strip("-")


def differing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between dictionaries; a missing value counts as None."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if any(each.get(key) != settings[0].get(key) for each in settings)]


def read_finished_runs(folders: Iterable[Path]) -> tuple[list[FinishedRun], list[str]]:
    """Return the finished text runs in folders, and the names of unfinished ones.

    Raises:
        UserError: a folder contains no run, no finished one, or one of images.
    """
    runs = []
    unfinished = []
    for folder in run_folder.run_folders(folders):
        record = run_folder.read_record(folder)
        if record.program != run_folder.TEXT_PROGRAM:
            file = folder / run_folder.RECORD
            raise UserError(f"{file} is not the record of a text run; name only text runs")
        if record.state == FINISHED:
            runs.append(FinishedRun(folder.absolute(), record))
        else:
            unfinished.append(folder.name)
    if unfinished and not runs:
        names = ", ".join(unfinished)
        raise UserError(f"no run has finished: {names}; resume one first")
    return runs, unfinished


def check_alike(first: FinishedRun, second: FinishedRun) -> None:
    """Refuse two runs of one configuration with the same seed or different settings."""
    both = f"{first.folder} and {second.folder}"
    if first.seed == second.seed:
        raise UserError(f"{both} are one configuration with one seed; name one of them")
    changed = differing_keys([first.settings, second.settings])
    if changed:
        different = ", ".join(changed)
        raise UserError(f"{both} have one name but differ in {different}; rename a folder")


def outcome_lines(record: RunRecord) -> list[str]:
    """Describe the outcome of a run: its figures, and the checkpoint that was kept."""
    return [
        *collapse_lines(record),
        _main_figures(record),
        *held_out_lines(record),
        *baseline_lines(record),
        _kept_step(record),
    ]


def collapse_lines(record: RunRecord) -> list[str]:
    """Return a line if the embeddings collapsed, else []."""
    if record.collapsed_step is None:
        return []
    kept = "no model was saved before"
    if record.best_step is not None and record.best_step < record.collapsed_step:
        kept = f"the model of step {record.best_step:,} is kept"
    return [
        f"Collapsed: at step {record.collapsed_step:,} all samples have one embedding (mean cosine "
        f"1.0000); {kept}. Lower the learning rate or raise the temperature"
    ]


def held_out_lines(record: RunRecord) -> list[str]:
    """Return the gain on held-out rows and what it measures; [] for a run without them."""
    held = record.held_out
    if held is None:
        return []
    before = BASE if BASE in record.untrained else record.start
    gain = f"{held.gain:+z.1f}"
    if held.error is not None:
        half = 1.96 * held.error
        low, high = max(held.gain - half, -100), min(held.gain + half, 100)
        gain += f" ({low:z.1f} to {high:z.1f}; {held.texts} held-out samples, paired)"
    return [
        f"recall@1 of held-out pairs x 100: trained - {before}: {gain}",
        "This measures whether an anchor retrieves its positive among those of the held-out rows; "
        "among more texts it is harder.",
    ]


def baseline_lines(record: RunRecord) -> list[str]:
    """Return a line for each metric on which the trained model does not beat a baseline."""
    return [
        f"not above {baseline}: {name} {record.trained[name]:.1f}, {baseline} {floor:.1f}"
        for name, baseline, floor in record.not_above_baseline
    ]


def _main_figures(record: RunRecord) -> str:
    """Describe the metric that selected the checkpoint, or the first one."""
    if not record.trained:
        shown = len(record.samples.get("trained", ()))
        if shown:
            return f"{shown} texts are shown with their nearest three before and after training"
        return "No metric was measured"
    metric = str(record.settings.get("metric_for_best_model"))
    if metric not in record.trained:
        metric = next(iter(record.trained))
    figures = record.compared.items()
    known = [f"{label} {each[metric]:.2f}" for label, each in figures if metric in each]
    return f"{record.metric(metric).full_title}: {', '.join(known)}; 1 seed"


def _kept_step(record: RunRecord) -> str:
    chose = record.step_chosen_by
    if chose is None or record.best_step is None:
        return f"Kept: the last step, {record.steps:,}"
    step = f"step {record.best_step:,} of {record.steps:,}"
    return f"Kept: {step}, chosen by {chose} (not a test score)"


def results_table(record: RunRecord) -> TextTable:
    """Return a row for each metric: before and after training, and of the lexical baseline."""
    figures = record.compared
    lines = [["", *figures]]
    for metric in record.trained:
        cells = [cell(each.get(metric)) for each in figures.values()]
        lines.append([record.metric(metric).full_title, *cells])
    return lines


def leave_report(folder: Path, render: Callable[[], str], shown: str = "the run") -> str:
    """Write the page of a run or a sweep, and return a line that says so.

    Args:
        folder: the folder to write ``report.html`` into.
        render: makes the page. If it raises an error, the line describes the error.
        shown: what the page shows, for the line.
    """
    try:
        write_text(folder / run_folder.REPORT, render())
        return f"{folder / run_folder.REPORT} shows {shown}."
    except (UserError, OSError) as error:
        return f"no {run_folder.REPORT}: {error}"
