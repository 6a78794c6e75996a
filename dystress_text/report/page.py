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

    Raises:
        UserError: the folder holds no finished run, something in it cannot be read, or the extra is not installed.
        OSError: the page cannot be written.
    """
    history = read_history(folder, temperature)
    write_text(folder / REPORT, render_page([history], tables(history.record)))
    return folder / REPORT


def leave_report(
    folder: Path,
    temperature: Temperature | None = None,
    write: Callable[[Path, Temperature | None], Path] = write_report,
) -> str:
    """The same at the end of a run, which must not fail for its page.

    Args:
        folder: of the run.
        temperature: what was trained with.
        write: what writes the page.

    Returns:
        A line that says where the page is, or why there is none.
    """
    try:
        return f"{write(folder, temperature)} shows the run."
    except (UserError, OSError) as error:
        return f"no {REPORT}: {error}"


def render_page(
    runs: Sequence[RunHistory],
    tables: Sequence[tuple[str, Table]] = (),
    notes: Sequence[str] = (),
) -> str:
    """The page of runs, as HTML.

    Args:
        runs: one, or several side by side.
        tables: more tables, each a title and its cells, the header first.
        notes: what a reader of the tables must know.

    Raises:
        UserError: the ``plots`` extra is not installed.
    """
    require("plots", "a page")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from dystress_text.report.drawings import metric_title
    from dystress_text.report.page_drawings import galleries

    several = len(runs) > 1
    environment = Environment(
        loader=PackageLoader("dystress_text.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    options = {run.name: run.record["settings"] for run in runs}
    page = environment.get_template(REPORT).render(
        title=f"{len(runs)} runs" if several else runs[0].name,
        summary=[_summary(run, several) for run in runs],
        tables=[("Before and after training", _results(runs, metric_title)), *tables],
        galleries=galleries(runs),
        notes=notes,
        differing=_by_run(options, differing=True),
        settings=_by_run(options),
        surroundings=_by_run({run.name: _flat(run.record) for run in runs}),
    )  # fmt: skip
    return page.encode("utf-8", "backslashreplace").decode()  # a file name may hold bytes that are not UTF-8


def _summary(run: RunHistory, named: bool) -> str:
    record = run.record
    name = f"{run.name}: " if named else ""
    temperature = f" with {record['temperature']}" if record["temperature"] else ""
    row = said_of(record)
    return (
        f"{name}{record['objective']}{temperature}. {record['steps']:,} steps in "
        f"{record['train_seconds']:,.0f} s on {record['device']}.{f' Preset of {row}.' if row else ''}"
    )


def _results(runs: Sequence[RunHistory], title: Callable[[str], str]) -> Table:
    """Each metric of each run, for the untrained encoder and for the best model; ``title`` says it in words."""
    metrics = list(dict.fromkeys(metric for run in runs for metric in run.record["trained"]))
    lines = [["", *(title(metric).replace("\n", ", ").replace("$\\times$", "x") for metric in metrics)]]
    for run in runs:
        untrained = run.record.get("untrained") or {}
        untrained = untrained.get(run.record["settings"].get("pooler_type"), untrained)
        for name, figures in (("untrained", untrained), ("trained", run.record["trained"])):
            label = f"{run.name}, {name}" if len(runs) > 1 else name
            lines.append([label, *(_number(figures.get(metric)) for metric in metrics)])
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


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
