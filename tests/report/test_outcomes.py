"""Figures of evaluated runs of images: they draw what the files say.

The programs' own code writes the records and names the figures, so a field that changes its name fails here.
"""

from dataclasses import asdict
from functools import cache

import numpy as np
import pytest
import torch
from figure_texts import error_of
from matplotlib import pyplot as plt
from sweep_runs import record_of

from dystress_text.files.whole import write_json
from dystress_text.report.outcomes import draw_outcomes
from vision.data.shapes import make_shapes
from vision.evaluation.knn import Accuracy
from vision.evaluation.measures import geometry_of
from vision.evaluation.run import about as about_images
from vision.evaluation.settings import EvaluationSettings
from vision.resnet import ImageInput
from vision.train import parse

GEOMETRY = geometry_of(*[torch.eye(4)] * 3, torch.tensor([0, 0, 1, 1]))
GRID = {  # flags: (accuracy, uniformity, tolerance) by seed
    "--temp=0.1": [(60.0, -2.0, 0.5), (62.5, -2.1, 0.52), (58.0, -2.3, 0.56)],
    "--temp=0.5": [(61.0, -1.6, 0.6), (61.5, -1.5, 0.61), (66.0, -1.9, 0.59)],
    "--temperature=cosine": [(70.0, -2.2, 0.4), (69.0, -2.4, 0.45)],
    "--temperature=shifted_cosine --shift=-0.4": [(65.0, -2.5, 0.3)],
}


@cache
def about():
    train, test = (make_shapes(split, per_class=3) for split in ("train", "test"))
    return about_images(train, test, ImageInput(24, 1.0, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2)))


def image_run(folder, figures, flags, tasks=("knn", "linear", "geometry"), **options):
    """Make the folder of a run of images; returns it."""
    folder.mkdir()
    settings = parse(["--preset=quickstart", *flags.split(), f"--output_dir={folder}"])
    write_json(folder / "run.json", record_of(settings) | {"program": "vision/train.py", "trained": {}})
    told = EvaluationSettings(str(folder), "shapes", tasks=list(tasks), **options)
    top1, uniformity, tolerance = figures
    found = {
        "knn": {f"{told.k}-NN": asdict(Accuracy(top1, 99.0)), "1-NN L2": asdict(Accuracy(1.0, None))},
        "linear": asdict(Accuracy(top1 + 7, 99.0)),
        "geometry": GEOMETRY | {"uniformity": uniformity, "tolerance": tolerance},
    }
    assert found["geometry"].keys() == GEOMETRY.keys()
    results = {"untrained": {}, str(folder): {task: found[task] for task in tasks}}
    write_json(folder / "vision-shapes.json", {"settings": asdict(told), "data": about(), "results": results})
    return folder


@pytest.fixture
def images(tmp_path):
    yield [
        image_run(tmp_path / f"run-{i}-seed-{seed}", figures, f"{flags} --seed={seed}")
        for i, (flags, seeds) in enumerate(GRID.items())
        for seed, figures in enumerate(seeds)
    ]
    plt.close("all")


def points(axes):
    """Middle and half-lengths of the bars of every point, (x, y, dx, dy), 0 where there is no bar."""
    return np.array([
        [*line.get_xydata()[0], *sum((np.ptp(bar.get_segments()[0], axis=0) / 2 for bar in bars), np.zeros(2))]
        for line, _, bars in axes.containers
    ])  # fmt: skip


def expected(place):
    """Means and deviations of the figure at that place and of the accuracy, by numpy."""
    chosen = [np.array(seeds)[:, [place, 0]] for seeds in GRID.values()]
    return np.array([[*s.mean(0), *(s.std(0, ddof=1) if len(s) > 1 else (0, 0))] for s in chosen])


def test_accuracy_against_geometry_is_the_files_and_the_linear_probe_can_be_asked_for(images):
    figure = draw_outcomes(images)
    for place, axes, words in zip((1, 2), figure.axes, ("uniformity", "tolerance"), strict=True):
        wanted = expected(place)
        np.testing.assert_allclose(points(axes), wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(axes.lines[-1].get_xydata(), wanted[:2, :2])  # through the constants
        assert words in axes.get_xlabel()
        assert axes.get_ylabel() == "200-NN top-1 accuracy (%)"
        assert [note.get_text() for note in axes.texts] == ["run-0", "run-1", "run-2", "run-3"]
    assert "30 training and 30 test images" in figure.get_suptitle()
    axes = draw_outcomes(images, "linear").axes[0]
    assert points(axes)[0, 1] == pytest.approx(expected(1)[0, 1] + 7)
    assert axes.get_ylabel().startswith("linear top-1 accuracy")


def test_wrong_runs_are_one_line(images, tmp_path, capsys):
    name, other = "accuracy-geometry", images[3]
    assert "no such folder: 'nowhere'" in error_of(capsys, name, "nowhere", other)
    bare = image_run(tmp_path / "bare", (60.0, -2.0, 0.5), "--temp=0.3", tasks=("knn",))
    said = error_of(capsys, name, bare, other)
    assert f"is not evaluated so ('geometry'): python vision/evaluate.py --model {bare} --tasks knn geometry\n" in said
    few = image_run(tmp_path / "few", (60.0, -2.0, 0.5), "--temp=0.3", k=20)
    assert f"not evaluated alike, in k: {few} and {other}" in error_of(capsys, name, few, other)
