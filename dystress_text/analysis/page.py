"""Write ``report.html``, the page of one run or of several: settings, tables and plots.

The page is a single file that contains its plots and works offline; it has no scripts. Each kind
of run passes its measurements as tables. Needs the ``plots`` extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.analysis.finished_run import FinishedRun, differing
from dystress_text.analysis.outcome import Table, outcome, results
from dystress_text.cli.extras import require
from dystress_text.errors import UserError
from dystress_text.io.atomic import write_text
from dystress_text.training.run_folder import REPORT, TEXT_PROGRAM
from dystress_text.training.run_record import RunRecord

if TYPE_CHECKING:
    from dystress_text.evaluation.statistics import Estimate

_ENVIRONMENT = (
    "program",
    "data",
    "corpus",
    "data_variants",
    "steps",
    "train_seconds",
    "device",
    "processes",
    "versions",
)


def leave_report(folder: Path, render: Callable[[], str], shown: str = "the run") -> str:
    """Write the page of a run, and return a line that says so.

    Args:
        folder: the folder of the run.
        render: makes the page. If it raises an error, the line describes the error.
        shown: what the page shows, for the line.
    """
    try:
        write_text(folder / REPORT, render())
        return f"{folder / REPORT} shows {shown}."
    except (UserError, OSError) as error:
        return f"no {REPORT}: {error}"


def render_page(
    runs: Sequence[FinishedRun],
    tables: Sequence[tuple[str, Table]] = (),
    notes: Sequence[str] = (),
    verdict: Sequence[str] = (),
    estimates: Mapping[str, Mapping[str, Estimate]] | None = None,
    examples: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (),
) -> str:
    """Return an HTML page of one or several runs.

    Args:
        runs: the runs to show.
        tables: tables by title.
        notes: notes below the tables.
        verdict: the first lines of the page; for a single run they follow its outcome.
        estimates: figures to draw with intervals, by set and then by name.
        examples: pictures by heading, each with its description and a URI.

    Raises:
        UserError: the extra ``plots`` is not installed, or a log is damaged.
    """
    require("plots", "a page")
    from jinja2 import StrictUndefined, Template

    from dystress_text.analysis import page_drawings

    options = [run.settings for run in runs]
    if len(runs) == 1:
        tables = [("Before and after training", results(runs[0].record)), *tables]
        verdict = [*outcome(runs[0].record), *verdict]
    source = Path(__file__).with_name(REPORT).read_text(encoding="utf-8")
    form = Template(source, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page: str = form.render(
        title=_title(runs),
        names=_names(runs),
        tables=[(name, lines) for name, lines in tables if lines[1:] and lines[0][1:]],
        intervals=page_drawings.draw_estimates(estimates or {}),
        galleries=[*examples, *page_drawings.galleries(runs)],
        notes=notes,
        verdict=verdict,
        defining=options,
        differing=differing(options),
        settings=[run.record.settings for run in runs],
        environment=[_environment(run.record) for run in runs],
    )
    # a file name may hold bytes that are not UTF-8
    return page.encode("utf-8", "backslashreplace").decode()


def _names(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the configuration of each run, or its folder if others share that."""
    configurations = [run.configuration for run in runs]
    return [
        run.folder.name if configurations.count(run.configuration) > 1 else run.configuration
        for run in runs
    ]


def _title(runs: Sequence[FinishedRun]) -> str:
    """Return the page's title: which model was trained on which data."""
    trained = "; ".join(dict.fromkeys(_trained(run.record) for run in runs))
    return trained if len(runs) == 1 else f"{len(runs)} runs: {trained}"


def _trained(record: RunRecord) -> str:
    settings = record.settings
    if record.program != TEXT_PROGRAM:
        data = record.data.get("name") or settings.get("dataset")
        images = record.data.get("images")
        if images is not None:
            data = f"{images:,} images of {data}"
        return f"{settings.get('architecture', 'image encoder')} on {data}"
    corpus = record.corpus
    unit = "rows" if corpus["columns"] > 1 else "texts"
    files = ", ".join(Path(file).name for file in record.train_files) or "Wiki1M"
    model = Path(settings["model_name_or_path"]).name
    if model == "static":  # of --model_name_or_path, without a base model
        model = "word vectors"
    samples = corpus.get("samples", corpus["sentences"])  # earlier versions did not record samples
    return f"{model} trained on {samples:,} {unit} of {files}"


def _environment(record: RunRecord) -> dict[str, Any]:
    """Return data, device and versions, under names such as ``versions: torch``."""
    options: dict[str, Any] = {}
    for key in _ENVIRONMENT:
        value = getattr(record, key)
        if isinstance(value, Mapping):
            options |= {f"{key}: {name}": entry for name, entry in value.items()}
        else:
            options[key] = value
    return options
