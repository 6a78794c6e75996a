"""The page of a run, or of several side by side: settings, curves, tables and similarities in one file.

It holds its pictures, loads nothing, runs no script and opens offline. Needs the ``plots`` extra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystress_text.cli.extras import require
from dystress_text.core.registry import Temperature
from dystress_text.errors import UserError
from dystress_text.files.whole import write_text
from dystress_text.report.curves import RunCurves, read_curves
from dystress_text.report.run_figures import TRAINING, read_runs
from dystress_text.report.tables import Report
from dystress_text.simcse.objective import temperature_of_record
from dystress_text.training.run_folder import PAGE, PROGRAMS, SIMILARITY_LOG, read_record
from dystress_text.training.step_log import read_steps

Table = list[list[str]]
_NEEDED = {"settings", "objective", "temperature", "steps", "train_seconds", "device", "trained"}
_SURROUNDINGS = ("program", "data", "corpus", "data_variants", "device", "processes", "versions")


@dataclass(frozen=True)
class PageRun:
    """A finished run.

    Attributes:
        name: of its folder.
        record: what ``run.json`` holds.
        curves: what it wrote while training.
        watched: the lines of ``similarity.jsonl``; empty without --log_similarity.
        temperature: as a function of the similarity alone; None where it is none.
    """

    name: str
    record: Mapping[str, Any]
    curves: RunCurves
    watched: Sequence[Mapping[str, Any]]
    temperature: Temperature | None


def write_page(folder: Path, temperature: Temperature | None = None) -> Path:
    """Write a finished run's ``report.html``, and return where it is.

    Args:
        folder: of a run of ``dystress_text/train.py`` or ``vision/train.py``.
        temperature: what was trained with; None for the one that a text run's record says.

    Raises:
        UserError: the folder holds no finished run, something in it cannot be read, or the extra is not installed.
        OSError: the page cannot be written.
    """
    run = _read(folder, temperature)
    if run.record["program"] == PROGRAMS[0]:
        report = Report(*read_runs([folder]), baselines=(), resamples=0)
        page = _page([run], report.sections(but=TRAINING), report.notes())  # what training measured has its own table
    else:
        page = _page([run], [], [])
    write_text(folder / PAGE, page)
    return folder / PAGE


def leave_page(folder: Path, temperature: Temperature | None = None) -> str:
    """The same at the end of a run, which no page may fail: returns a line that says where it is, or why it is not."""
    try:
        return f"{write_page(folder, temperature)} shows the run."
    except (UserError, OSError) as error:
        return f"no {PAGE}: {error}"


def page_of(report: Report) -> str:
    """The page of a report's runs.

    Raises:
        UserError: something in their folders cannot be read, or the extra is not installed.
    """
    return _page([_read(run.folder) for run in report.runs], report.sections(), report.notes())


def _read(folder: Path, temperature: Temperature | None = None) -> PageRun:
    record = read_record(folder)
    if record.get("program") not in PROGRAMS or not record.keys() >= _NEEDED:
        raise UserError(f"{str(folder)!r} holds no finished run")
    if temperature is None and record["program"] == PROGRAMS[0]:
        temperature = temperature_of_record(record)
    if temperature is not None and (temperature.needs_progress or temperature.needs_mean_positive):
        temperature = None  # no curve over the similarity
    log = folder / SIMILARITY_LOG
    watched = list(read_steps(log)) if log.is_file() else []
    return PageRun(folder.resolve().name, record, read_curves(folder), watched, temperature)


def _page(runs: Sequence[PageRun], tables: Sequence[tuple[str, Table]], notes: Sequence[str]) -> str:
    require("plots", "a page")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from dystress_text.report.page_drawings import galleries

    several = len(runs) > 1
    environment = Environment(
        loader=PackageLoader("dystress_text.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    options = {run.name: run.record["settings"] for run in runs}
    page = environment.get_template("page.html").render(
        title=f"{len(runs)} runs" if several else runs[0].name,
        summary=[_summary(run, several) for run in runs],
        tables=[("Before and after training", _results(runs)), *tables],
        galleries=galleries(runs),
        notes=notes,
        differing=_by_run(options, differing=True),
        settings=_by_run(options),
        surroundings=_by_run({run.name: _flat(run.record) for run in runs}),
    )  # fmt: skip
    return page.encode("utf-8", "backslashreplace").decode()  # the name of a file may be no text


def _summary(run: PageRun, named: bool) -> str:
    record = run.record
    name = f"{run.name}: " if named else ""
    temperature = f" with {record['temperature']}" if record["temperature"] else ""
    return (
        f"{name}{record['objective']}{temperature}. {record['steps']:,} steps in "
        f"{record['train_seconds']:,.0f} s on {record['device']}."
    )


def _results(runs: Sequence[PageRun]) -> Table:
    """Each metric of each run, of the encoder as it was and of the model that was kept."""
    metrics = list(dict.fromkeys(metric for run in runs for metric in run.record["trained"]))
    lines = [["", *metrics]]
    for run in runs:
        untrained = run.record.get("untrained") or {}
        untrained = untrained.get(run.record["settings"].get("pooler_type"), untrained)
        for name, figures in (("untrained", untrained), ("trained", run.record["trained"])):
            label = f"{run.name}, {name}" if len(runs) > 1 else name
            lines.append([label, *(_number(figures.get(metric)) for metric in metrics)])
    return lines


def _by_run(options: Mapping[str, Mapping[str, Any]], differing: bool = False) -> Table:
    """A line a name, a column a run; with ``differing`` only where runs differ, and empty where none do."""
    lines = []
    for name in dict.fromkeys(name for each in options.values() for name in each):
        values = ["" if each.get(name) is None else str(each[name]) for each in options.values()]
        if not differing or len(set(values)) > 1:
            lines.append([name, *values])
    return [["", *(options if len(options) > 1 else ["value"])], *lines] if lines else []


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run ran on, by names such as ``versions: torch``."""
    flat: dict[str, Any] = {}
    for key in _SURROUNDINGS:
        value = record.get(key)
        flat |= {f"{key}: {name}": v for name, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
