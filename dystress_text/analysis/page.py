"""Draw a page of one run or of several: settings, tables and plots; and draw losses.

The page is a single file that contains its plots and works offline; it has no scripts. Each kind
of run passes its measurements as tables. Importing this module needs the ``plots`` extra.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
import torch
from jinja2 import StrictUndefined, Template
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dystress_text.analysis.finished_run import (
    FinishedRun,
    differing_keys,
    outcome_lines,
    results_table,
)
from dystress_text.cli.text_table import TextTable
from dystress_text.losses.objectives import Objective, parse_loss
from dystress_text.losses.registry import LossError
from dystress_text.training.run_folder import REPORT, TEXT_PROGRAM
from dystress_text.training.run_record import RunRecord

if TYPE_CHECKING:
    from dystress_text.evaluation.statistics import Estimate

Picture = tuple[str, str]  # description, and the picture as a URI
Curve = dict[int, float]  # a value by step; None in JSON, and a gap here, if it was not finite
WIDTH = 9 / 2.54  # inches of a plot: it fits the screen of a phone
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
_NOT_DRAWN = {"step", "learning_rate", "samples_per_second"}
_SIMILARITY_CURVES = {  # of the similarity log
    "tau_effective": "effective temperature",
    "positive": "mean similarity of positives",
    "negative": "mean similarity of negatives",
}


def render_page(
    runs: Sequence[FinishedRun],
    tables: Sequence[tuple[str, TextTable]] = (),
    notes: Sequence[str] = (),
    verdict: Sequence[str] = (),
    estimates: Mapping[str, Mapping[str, Estimate]] | None = None,
    examples: Sequence[tuple[str, Sequence[Picture]]] = (),
) -> str:
    """Return an HTML page of one or several runs.

    Args:
        runs: the runs to show.
        tables: tables by title.
        notes: notes below the tables.
        verdict: the first lines of the page; for a single run they follow its outcome.
        estimates: figures to draw with intervals, by set and then by name.
        examples: further pictures, by heading.

    Raises:
        UserError: a log is damaged.
    """
    options = [run.settings for run in runs]
    if len(runs) == 1:
        tables = [("Before and after training", results_table(runs[0].record)), *tables]
        verdict = [*outcome_lines(runs[0].record), *verdict]
    source = Path(__file__).with_name(REPORT).read_text(encoding="utf-8")
    form = Template(source, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page: str = form.render(
        title=_title(runs),
        names=_names(runs),
        tables=[(name, lines) for name, lines in tables if lines[1:] and lines[0][1:]],
        intervals=draw_estimates(estimates or {}),
        galleries=[*examples, *galleries(runs)],
        notes=notes,
        verdict=verdict,
        defining=options,
        differing=differing_keys(options),
        settings=[run.record.settings for run in runs],
        environment=[_environment(run.record) for run in runs],
    )
    # a file name may hold bytes that are not UTF-8
    return page.encode("utf-8", "backslashreplace").decode()


def _names(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the configuration of each run; its folder if several runs have one configuration."""
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
    if model == "static":  # without a base model
        model = "word vectors"
    samples = corpus.get("samples", corpus["sentences"])  # earlier versions did not record samples
    return f"{model} trained on {samples:,} {unit} of {files}"


def _environment(record: RunRecord) -> dict[str, Any]:
    """Return data, device and versions in one mapping, with keys such as ``versions: torch``."""
    options: dict[str, Any] = {}
    for key in _ENVIRONMENT:
        value = getattr(record, key)
        if isinstance(value, Mapping):
            options |= {f"{key}: {name}": entry for name, entry in value.items()}
        else:
            options[key] = value
    return options


def galleries(runs: Sequence[FinishedRun]) -> list[tuple[str, list[Picture]]]:
    """Return the plots of a page by heading; the list of a heading may be empty."""
    curves = [_curves(run) for run in runs]
    metrics = {name for each in curves for name, curve in each.items() if _varies(curve)}
    if len({run.record.loss for run in runs}) > 1:
        metrics.discard("loss")  # those of different objectives have no common scale
    with style():
        over_steps = [
            (f"{metric} over the steps", _draw_curves(metric, runs, curves))
            for metric in sorted(metrics)
        ]
        similarities = _losses(runs)
        if len(runs) == 1:
            similarities += _histograms(runs[0].record)
    return [("Over training", over_steps), ("Similarities and temperature", similarities)]


def draw_estimates(estimates: Mapping[str, Mapping[str, Estimate]]) -> list[Picture]:
    """Draw one plot per set of data, with a dot and a 95 % interval for each name."""
    pictures = []
    with style():
        for where, of_set in estimates.items():
            figure = Figure(figsize=(WIDTH, 0.8 + 0.3 * len(of_set)))
            axes = figure.subplots()
            for row, (name, each) in enumerate(of_set.items()):
                low, high = each.interval or (each.mean, each.mean)
                axes.plot([low, high], [row, row], "-", color="C0")
                axes.plot([each.mean], [row], "o", color="C0", markersize=4)
                left = axes.get_yaxis_transform()
                axes.annotate(name, (0, row), (3, 4), left, "offset points", size=6.5)
            axes.set(title=where, yticks=[], xlabel="95 % interval of each alone")
            axes.set_ylim(len(of_set) - 0.5, -0.9)  # the first at the top
            pictures.append((f"Intervals: {where}", _uri(figure)))
    return pictures


def _curves(run: FinishedRun) -> dict[str, Curve]:
    """Return the logged curves by name, with the metrics before training at step 0."""
    curves: dict[str, Curve] = {}
    untrained = {"step": 0, **run.record.untrained.get(run.record.pooler, {})}
    # from the log: after a resume, memory lacks the steps of earlier processes
    for line in (untrained, *run.metrics()):
        for name in line.keys() - _NOT_DRAWN:
            curves.setdefault(name, {})[line["step"]] = line[name]
    for line in run.similarities():
        for name in _SIMILARITY_CURVES:
            curves.setdefault(name, {})[line["step"]] = line[name]
    return curves


def _varies(curve: Curve) -> bool:
    """Return whether a curve varies; that of a constant temperature is not worth drawing."""
    return len({value and round(value, 6) for value in curve.values()}) > 1


def _draw_curves(
    metric: str, runs: Sequence[FinishedRun], curves: Sequence[Mapping[str, Curve]]
) -> str:
    """Draw the curve of a metric for each run, with one line style per configuration."""
    names = dict.fromkeys(run.configuration for run in runs)
    looks = dict(zip(names, cycle(mpl.rcParams["axes.prop_cycle"]), strict=False))
    figure = Figure(figsize=(WIDTH, 2.1))
    axes = figure.subplots()
    labelled = set()
    for run, of_run in zip(runs, curves, strict=True):
        name = run.configuration
        curve = of_run.get(metric, {})
        label = "_" if name in labelled else name
        labelled.add(name)
        values = np.array(list(curve.values()), float)  # None is NaN
        axes.plot(list(curve), values, label=label, **looks[name])
    if len(runs) == 1:
        _mark(axes, runs[0].record, metric)
    title = _SIMILARITY_CURVES.get(metric) or runs[0].record.metric(metric).full_title
    axes.set(title=title.replace(": ", "\n"), xlabel="optimiser steps")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if len(axes.lines) > 1:
        figure.legend(loc="outside lower center", ncols=3 if len(runs) == 1 else 1)
    return _uri(figure)


def _mark(axes: Axes, record: RunRecord, metric: str) -> None:
    """Mark the step that was kept, and the figure of the lexical baseline."""
    axes.lines[0].set_label("this run")
    if record.best_step is not None and record.settings.get("metric_for_best_model") == metric:
        axes.axvline(record.best_step, color="C3", linestyle=":", label="kept")
    if metric in record.lexical:
        axes.axhline(record.lexical[metric], color="C3", linestyle="--", label=record.lexical_label)


def _losses(runs: Sequence[FinishedRun]) -> list[Picture]:
    """Draw the losses of runs if one of them has a temperature that varies or a reweighting.

    A loss whose temperature is learned has no fixed curve and is left out.
    """
    losses = {}
    for run in runs:
        if run.record.learned_temperature:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # training has given the warning
                losses[run.configuration] = parse_loss(run.record.loss)
        except LossError:  # the class is not loaded here
            continue
    parts = [getattr(each, "reweighting", None) for each in losses.values()]
    if all(part is None or isinstance(part.as_argument(), float) for part in parts):
        return []
    figure = draw_losses(losses, (2, 1), (WIDTH, 3 + 0.15 * len(losses)))
    if figure is None:
        return []
    return [("Temperature and logit over the similarity of a pair", _uri(figure))]


def _histograms(record: RunRecord) -> list[Picture]:
    """Draw histograms of the similarities of scored pairs before and after training.

    The record contains counts in equal bins over [-1, 1].
    """
    scored = record.similarities
    if not scored:
        return []
    above = f"{scored['positive_above']:g}"
    kinds = {
        "random": "random pairs",
        "others": f"pairs scored {above} or less",
        "alike": f"pairs scored above {above}",
    }
    figure = Figure(figsize=(WIDTH, 3))
    panels = figure.subplots(2, 1, sharex=True)
    for axes, time in zip(panels, ("before", "after"), strict=True):
        for kind, label in kinds.items():
            counts = np.array(scored[time][kind])
            edges = np.linspace(-1, 1, len(counts) + 1)
            density = counts / max(counts.sum() * (edges[1] - edges[0]), 1e-12)
            middles = (edges[1:] + edges[:-1]) / 2
            axes.plot(middles, density, drawstyle="steps-mid", label=label)
        axes.set(ylabel="density", title=f"{scored['set']}, {time} training", xlim=(-1, 1))
    panels[-1].set_xlabel("cosine similarity s")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center")
    return [("Similarities of scored pairs before and after training", _uri(figure))]


def _uri(figure: Figure) -> str:
    """Return a matplotlib figure as a data URI."""
    with io.BytesIO() as drawn:
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        content = base64.b64encode(drawn.getvalue()).decode("ascii")
    return f"data:image/svg+xml;base64,{content}"


def style() -> AbstractContextManager[None]:
    """Return a context that sets the colours, text sizes and layout of plots."""
    return matplotlib.style.context(Path(__file__).with_name("figures.mplstyle"))


def draw_losses(
    losses: Mapping[str, Objective], panels: tuple[int, int], size: tuple[float, float]
) -> Figure | None:
    """Draw the temperature and the logit of losses over the similarity of a pair, in two panels.

    The logit of negatives is drawn in a paler colour. Losses whose temperature depends on more than
    the similarity are left out.

    Args:
        losses: the losses by their names in the legend.
        panels: the arrangement of the two panels, (rows, columns).
        size: width and height in inches.

    Returns:
        The figure; None if all losses are left out.
    """
    similarity = torch.linspace(-1, 1, 1201, dtype=torch.float64)
    figure = Figure(figsize=size)
    of_tau, of_logit = figure.subplots(*panels)
    for name, loss in losses.items():
        reweighting = getattr(loss, "reweighting", None)
        temperature = getattr(loss, "temperature", None)
        if reweighting is None or temperature is None:
            continue
        if temperature.needs_progress or temperature.needs_mean_positive:
            continue
        tau = temperature(similarity).detach().expand_as(similarity)
        (line,) = of_tau.plot(similarity, tau, label=name)
        look = {"color": line.get_color(), "linestyle": line.get_linestyle()}
        negative = reweighting.logits(similarity, tau)[0]
        of_logit.plot(similarity, negative.detach(), alpha=0.4, **look)
        positive = reweighting.positive_logit(similarity, tau)
        of_logit.plot(similarity, positive.detach(), **look)
    if not of_tau.lines:
        return None
    of_tau.margins(y=0.1)
    of_tau.set(ylabel="τ(s)", title="temperature of a pair")
    of_logit.set(ylabel="logit", title="its logit (pale: a negative's)")
    for axes in (of_tau, of_logit):
        axes.set(xlabel="cosine similarity s", xlim=(-1, 1))
    if len(of_tau.lines) > 1:
        figure.legend(*of_tau.get_legend_handles_labels(), loc="outside lower center")
    return figure
