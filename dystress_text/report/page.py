"""The page of a run (its ``report.html``) or of several side by side: settings, curves, tables and
similarities.

It is one file with its pictures inside: it loads nothing, runs no script and opens offline. It
knows no task: what a task measured comes as tables. Needs the ``plots`` extra.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.cli.extras import require
from dystress_text.errors import UserError
from dystress_text.files.whole import write_text
from dystress_text.report.outcome import metric_title, outcome, title
from dystress_text.report.runs import FinishedRun, differing, labels
from dystress_text.training.presets import said_of
from dystress_text.training.run_folder import REPORT
from dystress_text.training.run_record import RunRecord

Table = list[list[str]]  # cells as text, the header first
Pictures = list[tuple[str, str, str]]  # what is to be seen, a caption or "", and the picture
_SURROUNDINGS = ("program", "data", "corpus", "data_variants", "device", "processes", "versions")


def leave_report(folder: Path, render: Callable[[], str]) -> str:
    """Write the page at the end of a run, which must not fail for it: a line says where it is, or
    why there is none.
    """
    try:
        write_text(folder / REPORT, render())
        return f"{folder / REPORT} shows the run."
    except (UserError, OSError) as error:
        return f"no {REPORT}: {error}"


def render_page(
    runs: Sequence[FinishedRun],
    tables: Sequence[tuple[str, Table]] = (),
    notes: Sequence[str] = (),
    verdict: Sequence[str] = (),
    examples: Sequence[tuple[str, Pictures]] = (),
) -> str:
    """Return the page of a run, or of several side by side, as HTML.

    Tables and pictures of examples have titles. The outcome of the run, or the verdict on several,
    comes first. Notes are what a reader of the tables must know.
    """
    require("plots", "a page")
    from jinja2 import StrictUndefined, Template

    from dystress_text.report import page_drawings

    names = labels(runs)
    alone = len(runs) == 1
    measured = ("Before and after training", _results(runs, names))
    source = Path(__file__).with_name(REPORT).read_text(encoding="utf-8")
    form = Template(source, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    settings = [run.record.settings for run in runs]
    page: str = form.render(
        title=title(runs),
        summaries=list({run.configuration: _summary(run) for run in runs}.values()),
        tables=_not_empty([measured, *tables] if alone else [*tables, measured]),
        galleries=[*examples, *page_drawings.galleries(runs)],
        notes=notes,
        verdict=outcome(runs[0].record) if alone else verdict,
        differing=_by_run(names, settings, differing(runs)),
        settings=_by_run(names, settings),
        surroundings=_by_run(names, [_surroundings(run.record) for run in runs]),
    )
    # a file name may hold bytes that are not UTF-8
    return page.encode("utf-8", "backslashreplace").decode()


def raster(pixels: NDArray[np.uint8], width: int) -> str:
    """An image (height, width, 3), made so wide at most and of 256 colours, as a URI that holds it."""
    from PIL import Image  # which comes with the extra

    image = Image.fromarray(pixels)
    image.thumbnail((width, width))
    with io.BytesIO() as drawn:
        image.quantize(256, kmeans=1).save(drawn, "PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode("ascii")


def _summary(run: FinishedRun) -> str:
    record, row = run.record, said_of(run.record.paper)
    parts = [
        f"{run.configuration}: {record.loss}",
        f"{record.steps:,} steps in {record.train_seconds or 0:,.0f} s",
        str(record.device),
    ]
    return ", ".join([*parts, f"preset of {row}"] if row else parts)


def _not_empty(tables: Iterable[tuple[str, Table]]) -> list[tuple[str, Table]]:
    """Drop tables without a line or without a column."""
    return [(name, lines) for name, lines in tables if lines[1:] and lines[0][1:]]


def _results(runs: Sequence[FinishedRun], names: Sequence[str]) -> Table:
    """Each metric of each run: before training, of the best pooler and of the run's own, after it,
    and of the lexical baseline. A run alone, which has few columns, has the metrics in lines.
    """
    metrics = dict.fromkeys(metric for run in runs for metric in run.record.trained)
    titles = [": ".join(filter(None, metric_title(metric))) for metric in metrics]
    rows = [["", *titles]]
    for run, label in zip(runs, names, strict=True):
        record = run.record
        figures = {
            "untrained" if name == record.pooler else f"untrained, best pooler {name}": of
            for name, of in record.untrained_best_and_own.items()
        }
        figures["trained"] = record.trained
        if record.words:
            figures["TF-IDF/BM25"] = record.words
        for name, of in figures.items():
            cells = ["-" if of.get(metric) is None else f"{of[metric]:.2f}" for metric in metrics]
            rows.append([f"{label}, {name}" if len(runs) > 1 else name, *cells])
    return rows if len(runs) > 1 else [list(column) for column in zip(*rows, strict=True)]


def _by_run(
    runs: Sequence[str], options: Sequence[Mapping[str, Any]], names: Iterable[str] | None = None
) -> Table:
    """A line for each option, or those named, and a column for each run."""
    shown = dict.fromkeys(chain(*options) if names is None else names)
    cells = {name: [each.get(name) for each in options] for name in shown}
    rows = [[name, *("" if v is None else str(v) for v in row)] for name, row in cells.items()]
    return [["", *runs], *rows]


def _surroundings(record: RunRecord) -> dict[str, Any]:
    """What a run ran on, by names such as ``versions: torch``."""
    options: dict[str, Any] = {}
    for key in _SURROUNDINGS:
        value = getattr(record, key)
        if isinstance(value, Mapping):
            options |= {f"{key}: {name}": entry for name, entry in value.items()}
        else:
            options[key] = value
    return options
