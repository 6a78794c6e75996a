"""The page of a run (its ``report.html``) or of several side by side: settings, curves, tables and
similarities.

It is one file with its pictures inside: it loads nothing, runs no script and opens offline. It
knows no task: what a task measured comes as tables. Needs the ``plots`` extra.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from dystress_text.training.run_folder import REPORT, untrained_of

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
    below: Sequence[tuple[str, Table]] = (),
) -> str:
    """The page of a run, or of several side by side, as HTML; tables and pictures of examples have
    titles.

    What came of the run, or the verdict on several, comes first, and the tables ``below`` follow
    the pictures. Notes are what a reader of the tables must know.
    """
    require("plots", "a page")
    from jinja2 import StrictUndefined, Template

    from dystress_text.report import page_drawings

    names, metrics = labels(runs), {metric for run in runs for metric in run.record["trained"]}
    said = verdict if len(runs) > 1 else outcome(runs[0].record)
    results = [("Before and after training", _results(runs, names))]
    above, under = ([], results) if len(runs) > 1 else (results, [])
    settings = [run.record["settings"] for run in runs]
    surroundings = [_surroundings(run.record) for run in runs]
    source = Path(__file__).with_name(REPORT).read_text(encoding="utf-8")
    page: str = Template(
        source, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).render(
        title=title(runs),
        summaries=list({run.configuration: _summary(run) for run in reversed(runs)}.values())[::-1],
        tables=_not_empty([*above, *tables], metrics),
        galleries=[*examples, *page_drawings.galleries(runs)],
        notes=notes,
        verdict=said,
        below=_not_empty([*under, *below], metrics),
        differing=_by_run(names, settings, differing(runs)),
        settings=_by_run(names, settings, chain(*settings)),
        surroundings=_by_run(names, surroundings, chain(*surroundings)),
    )
    return page.encode(
        "utf-8", "backslashreplace"
    ).decode()  # a file name may hold bytes that are not UTF-8


def raster(pixels: NDArray[np.uint8], width: int) -> str:
    """An image (height, width, 3), made so wide at most and of 256 colours, as a URI that holds it."""
    from PIL import Image  # which comes with the extra

    image = Image.fromarray(pixels)
    image.thumbnail((width, width))
    with io.BytesIO() as drawn:
        image.quantize(256, kmeans=1).save(drawn, "PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode("ascii")


def _summary(run: FinishedRun) -> str:
    record, row = run.record, said_of(run.record)
    name = f"{run.configuration}: " * (run.configuration != record["loss"])
    return (
        f"{name}loss {record['loss']}. {record['steps']:,} steps in {record['train_seconds']:,.0f} s on "
        f"{record['device']}.{f' Preset of {row}.' if row else ''}"
    )


def _not_empty(
    tables: Sequence[tuple[str, Table]], metrics: Collection[str]
) -> list[tuple[str, Table]]:
    """The tables that hold something, with metrics called by words in header and first column."""

    def words(cell: str) -> str:
        return metric_title(cell).replace("\n", ": ") if cell in metrics else cell

    return [
        (of, [[*map(words, lines[0])], *([words(line[0]), *line[1:]] for line in lines[1:])])
        for of, lines in tables
        if lines[1:] and lines[0][1:]
    ]


def _results(runs: Sequence[FinishedRun], names: Sequence[str]) -> Table:
    """Each metric of each run: before training, of the best pooler and of the run's own, after it,
    and of words.

    Of a run alone, which has few columns then, in lines.
    """
    metrics = dict.fromkeys(metric for run in runs for metric in run.record["trained"])
    lines = [["", *metrics]]
    for run, label in zip(runs, names, strict=True):
        own = ("", run.record["settings"].get("pooler_type"))
        untrained = [
            ("untrained" + f", best pooler {name}" * (name not in own), figures)
            for name, figures in untrained_of(run.record).items()
        ]
        words = [("words alone", run.record["words"])] if run.record.get("words") else []
        for name, figures in (*untrained, ("trained", run.record["trained"]), *words):
            cells = (
                "-" if figures.get(metric) is None else f"{figures[metric]:.2f}"
                for metric in metrics
            )
            lines.append([f"{label}, " * (len(runs) > 1) + name, *cells])
    return lines if len(runs) > 1 else [list(column) for column in zip(*lines, strict=True)]


def _by_run(
    runs: Sequence[str], options: Sequence[Mapping[str, Any]], names: Iterable[str]
) -> Table:
    """A line for each name of an option, and a column for each run."""
    values = {name: [each.get(name) for each in options] for name in names}
    return [
        ["", *runs],
        *([name, *("" if v is None else str(v) for v in row)] for name, row in values.items()),
    ]


def _surroundings(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run ran on, by names such as ``versions: torch``."""
    options: dict[str, Any] = {}
    for key in _SURROUNDINGS:
        value = record.get(key)
        options |= (
            {f"{key}: {name}": v for name, v in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
    return options
