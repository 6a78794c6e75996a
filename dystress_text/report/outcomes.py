"""Accuracy of evaluated runs of images against uniformity and tolerance. Needs the ``plots`` extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from dystress_text.errors import UserError
from dystress_text.report.comparison import spread
from dystress_text.report.plots import GREY, STYLES, WIDTH, style
from dystress_text.report.runs import FinishedRun, by_configuration, read_finished
from dystress_text.training.run_folder import IMAGE_PROGRAM, read_json, vision_file

MEASURES = {
    "uniformity": "uniformity (lower: more spread out)",
    "tolerance": "tolerance (higher: classes tighter)",
}


def draw_outcomes(folders: Sequence[Path], accuracy: str = "knn") -> Figure:
    """A point for each configuration with bars over its seeds; a line through the constant temperatures.

    Args:
        folders: runs named ``NAME-seed-N``, or folders of them.
        accuracy: ``knn`` or ``linear``.

    Raises:
        UserError: no finished run, or runs that were not evaluated, or not alike.
    """
    runs, _ = read_finished(folders, (IMAGE_PROGRAM,))
    evaluated = {run.folder: _evaluation(run, accuracy) for run in runs}
    first, (_, about) = next(iter(evaluated.items()))
    for folder, (_, setup) in evaluated.items():
        if differs := [name for name in about if setup[name] != about[name]]:
            raise UserError(f"not evaluated alike, in {', '.join(differs)}: {first} and {folder}")
    configurations = by_configuration(runs)
    what = "linear" if accuracy == "linear" else f"{about['k']}-NN"
    with style():
        figure, grid = plt.subplots(len(MEASURES), figsize=(WIDTH, 5.4))
        for axes, (measure, words) in zip(grid, MEASURES.items(), strict=True):
            constants: dict[float, tuple[float, float]] = {}
            for name, members in configurations.items():
                figures = [evaluated[run.folder][0] for run in members]
                x, y = (spread([figure[column] for figure in figures]) for column in (measure, "accuracy"))
                kind, values = members[0].temperature
                colour, marker = STYLES[1][0], "s"
                if kind == "ConstantTemperature":
                    colour, marker = STYLES[0][0], "o"
                    constants[values["tau"]] = x.mean, y.mean
                axes.errorbar(
                    x.mean, y.mean, y.deviation, x.deviation, fmt=marker, color=colour, markersize=4.5, capsize=2
                )
                place = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 7, "color": colour}
                axes.annotate(name, (x.mean, y.mean), **place)
            line = [constants[tau] for tau in sorted(constants)]
            axes.plot([x for x, _ in line], [y for _, y in line], color=GREY, linewidth=0.8, zorder=1)
            axes.set(xlabel=words, ylabel=f"{what} top-1 accuracy (%)")
            axes.margins(0.16)
        images = f"{about['name']}, {about['train_images']:,} training and {about['test_images']:,} test images"
        variant = f" (a variant: {about['variant']})" if about["variant"] else ""
        figure.suptitle(f"{images}{variant}; bars: standard deviation over seeds", fontsize=8)
        figure.draw_without_rendering()
    return figure


def _evaluation(run: FinishedRun, accuracy: str) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures of a run, and how it was evaluated."""
    try:
        content = read_json(vision_file(run.folder, run.record["settings"]["dataset"]))
        settings, data = content["settings"], content["data"]
        found = content["results"][settings["model"]]
        result = found["linear"] if accuracy == "linear" else found["knn"][f"{settings['k']}-NN"]
        setup = {name: settings[name] for name in ("k", "limit")} | {"probe": result.get("probe")}
        setup |= {name: data[name] for name in ("name", "variant", "train_images", "test_images", "image_size")}
        return {"accuracy": float(result["top1"]), **{name: float(found["geometry"][name]) for name in MEASURES}}, setup
    except (KeyError, TypeError, AttributeError, UserError) as error:
        command = f"python vision/evaluate.py --model {run.folder} --tasks {accuracy} geometry"
        raise UserError(f"{run.folder} is not evaluated so ({error}): {command}") from error
