"""The page of a run (its ``report.html``) or of several side by side: settings, curves, tables and similarities.

It is one file with its pictures inside: it loads nothing, runs no script and opens offline. It knows no task: what a
task measured comes as tables. Needs the ``plots`` extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dystress_text.cli.extras import require
from dystress_text.core.registry import Temperature
from dystress_text.errors import UserError
from dystress_text.files.whole import write_text
from dystress_text.report.history import RunHistory, read_history
from dystress_text.training.presets import said_of
from dystress_text.training.run_folder import REPORT

Table = list[list[str]]
_SURROUNDINGS = ("program", "data", "corpus", "data_variants", "device", "processes", "versions")


def write_report(
    folder: Path,
    temperature: Temperature | None = None,
    tables: Callable[[Mapping[str, Any]], Sequence[tuple[str, Table]]] = lambda record: (),
) -> Path:
    """Write the ``report.html`` of a finished run from its record and logs, and return where it is.

    Args:
        folder: of a run of text or images.
        temperature: what was trained with; None for no curve of it.
        tables: more tables of a record, each a title and its cells, the header first.
    """
    history = read_history(folder)
    write_text(folder / REPORT, render_page([(history, temperature)], tables(history.record)))
    return folder / REPORT


def leave_report(
    folder: Path,
    temperature: Temperature | None = None,
    write: Callable[[Path, Temperature | None], Path] = write_report,
) -> str:
    """The same at the end of a run, which must not fail for its page: a line says where it is, or why there is none."""
    try:
        return f"{write(folder, temperature)} shows the run."
    except (UserError, OSError) as error:
        return f"no {REPORT}: {error}"


def render_page(
    runs: Sequence[tuple[RunHistory, Temperature | None]],
    tables: Sequence[tuple[str, Table]] = (),
    notes: Sequence[str] = (),
) -> str:
    """The page of runs, as HTML.

    Args:
        runs: one, or several side by side, each with its temperature.
        tables: more tables, each a title and its cells, the header first.
        notes: what a reader of the tables must know.
    """
    require("plots", "a page")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from dystress_text.report.page_drawings import galleries
    from dystress_text.report.plots import metric_title

    records = {run.name: run.record for run, _ in runs}
    environment = Environment(
        loader=PackageLoader("dystress_text.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    settings = {name: record["settings"] for name, record in records.items()}
    page = environment.get_template(REPORT).render(
        title=f"{len(runs)} runs" if len(runs) > 1 else runs[0][0].name,
        summary=[f"{name}: " * (len(runs) > 1) + _summary(record) for name, record in records.items()],
        tables=[("Before and after training", _results(records, metric_title)), *tables],
        galleries=galleries(runs),
        notes=notes,
        differing=_by_run(settings, differing=True),
        settings=_by_run(settings),
        surroundings=_by_run({name: _flat(record) for name, record in records.items()}),
    )  # fmt: skip
    return page.encode("utf-8", "backslashreplace").decode()  # a file name may hold bytes that are not UTF-8


def _summary(record: Mapping[str, Any]) -> str:
    temperature = f" with {record['temperature']}" if record["temperature"] else ""
    row = said_of(record)
    return (
        f"{record['objective']}{temperature}. {record['steps']:,} steps in {record['train_seconds']:,.0f} s on "
        f"{record['device']}.{f' Preset of {row}.' if row else ''}"
    )


def _results(records: Mapping[str, Mapping[str, Any]], title: Callable[[str], str]) -> Table:
    """Each metric of each run, for the untrained encoder and for the best model; ``title`` says it in words."""
    metrics = list(dict.fromkeys(metric for record in records.values() for metric in record["trained"]))
    lines = [["", *(title(metric).replace("\n", ", ").replace("$\\times$", "x") for metric in metrics)]]
    for run, record in records.items():
        untrained = record.get("untrained") or {}
        untrained = untrained.get(record["settings"].get("pooler_type"), untrained)  # text: of each pooler
        for name, figures in (("untrained", untrained), ("trained", record["trained"])):
            cells = ("-" if figures.get(metric) is None else f"{figures[metric]:.2f}" for metric in metrics)
            lines.append([f"{run}, " * (len(records) > 1) + name, *cells])
    return lines


def _by_run(options: Mapping[str, Mapping[str, Any]], differing: bool = False) -> Table:
    """A line for each name and a column for each run; with ``differing`` only the lines in which runs differ."""
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
