"""Figures of evaluated runs: they draw what the files say, names can be read, errors are one line.

The programs' own dataclasses write the records and evaluations, so a field that changes its name fails here.
"""

import json
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from figure_texts import check_texts, error_of
from matplotlib import pyplot as plt
from matplotlib.text import Annotation, Text

from dystress_text.evaluation.run import Results as TextResults
from dystress_text.evaluation.sts import StsTaskResult
from dystress_text.figures import main
from dystress_text.files.whole import write_json
from dystress_text.report import drawings, outcome_drawings, outcomes
from dystress_text.report.figures import OF_RUNS
from dystress_text.report.point_labels import PointLabel, label_points
from dystress_text.report.runs import temperature_values
from dystress_text.simcse.arguments import parse as parse_text
from dystress_text.simcse.objective import objective_of
from dystress_text.training.build_loss import build_objective
from vision.data.loading import Splits
from vision.data.shapes import make_shapes
from vision.evaluation.accuracy import Accuracy
from vision.evaluation.geometry import Geometry, draw_geometry
from vision.evaluation.run import Results as ImageResults
from vision.evaluation.settings import EvaluationSettings
from vision.pretraining.loss_defaults import VISION
from vision.train import parse as parse_images

IMAGES, TEXT = ("uniformity", "tolerance"), ("uniformity", "alignment")
COSINE = ("--temperature=cosine", "--tau_min=0.07", "--tau_max=0.2")
SHIFTED = ("--temperature=shifted_cosine", "--tau_min=0.07", "--tau_max=0.2", "--shift=-0.4")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def splits():
    train, test = (make_shapes(split, per_class=3) for split in ("train", "test"))
    return Splits(train, test, 24, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


def record_of(program, options, objective):
    return {"program": program, "settings": options, "objective": type(objective).__name__,
            "temperature": repr(objective.temperature), "trained": {}}  # fmt: skip


@pytest.fixture
def image_run(tmp_path, splits):
    """Make the folder of a run of images; returns it."""

    def make(name, top1, uniformity, tolerance, *flags, seed=0, tasks=("knn", "linear", "geometry"), **options):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        settings = parse_images(["--preset=quickstart", *flags, f"--seed={seed}", f"--output_dir={folder}"])
        objective = build_objective(settings.loss, VISION)
        write_json(folder / "run.json", record_of("vision/train.py", settings.options(), objective))
        told = EvaluationSettings(str(folder), "shapes", tasks=list(tasks), **options)
        found = {
            "knn": {f"{told.k}-NN": asdict(Accuracy(top1, 99.0)), "1-NN L2": asdict(Accuracy(1.0, None))},
            "linear": asdict(Accuracy(top1 + 7, 99.0)),
            "geometry": asdict(Geometry(0.5, uniformity, -0.7, tolerance, (-1, 0, 1), (1, 2), (3, 4), (5, 6))),
        }
        results = ImageResults({"settings": asdict(told), "data": splits.describe()}, folder / "vision-shapes.json")
        results.encoders = {"untrained": {}, str(folder): {task: found[task] for task in tasks}}
        results.write()
        return folder

    return make


@pytest.fixture
def text_run(tmp_path):
    """Make the folder of a run of text; returns it."""

    def make(name, sts, uniformity, alignment, *flags, seed=0, geometry=True, suite="senteval"):
        folder = tmp_path / name
        folder.mkdir()
        settings = parse_text(["--preset=quickstart", *flags, f"--seed={seed}", f"--output_dir={folder}"])
        write_json(
            folder / "run.json",
            record_of("dystress_text/train.py", settings.options(), objective_of(settings)),
        )
        tasks = {task: StsTaskResult(sts, sts, sts, {}, {}) for task in outcomes.TASKS["sts"]}
        about = {"suite": suite, "data_variant": None}
        results = TextResults(about, {"sts": list(tasks)}, tasks, seconds=dict.fromkeys(tasks, 1.0))
        results.checksums = {task: {} for task in tasks}
        if geometry:
            results.geometry = {"set": "STS-B dev", "alignment": alignment, "uniformity": uniformity, "spearman": 1.0}
        results.write(folder / f"senteval-{suite}-test.json")
        return folder

    return make


GRID = [  # flags, then (accuracy, uniformity, tolerance) by seed
    (("--temp=0.1",), [(60.0, -2.0, 0.5), (62.5, -2.1, 0.52), (58.0, -2.3, 0.56)]),
    (("--temp=0.5",), [(61.0, -1.6, 0.6), (61.5, -1.5, 0.61), (66.0, -1.9, 0.59)]),
    (COSINE, [(70.0, -2.2, 0.4), (69.0, -2.4, 0.45)]),
    (SHIFTED, [(65.0, -2.5, 0.3)]),
]


@pytest.fixture
def images(image_run):
    return [
        image_run(f"run-{i}-seed-{seed}", *figures, *flags, seed=seed)
        for i, (flags, seeds) in enumerate(GRID)
        for seed, figures in enumerate(seeds)
    ]


def drawn_points(axes):
    """Middle and half-lengths of the bars of every point, (x, y, dx, dy), 0 where there is no bar."""
    found = []
    for container in axes.containers:
        (line, _, bars) = container
        for i, (x, y) in enumerate(zip(line.get_xdata(), line.get_ydata(), strict=True)):
            lengths = {"x": 0.0, "y": 0.0}
            for bar in bars:
                if (
                    len(bar.get_segments()) > i
                    and len(bar.get_segments()[i])
                    and np.isfinite(bar.get_segments()[i]).all()
                ):
                    start, end = bar.get_segments()[i]
                    lengths["x" if start[1] == end[1] else "y"] = float(np.abs(end - start).max() / 2)
            found.append((float(x), float(y), lengths["x"], lengths["y"]))
    return found


def expected(place, seeds):
    """Mean and deviation of the figure at that place, by numpy."""
    values = [figures[place] for figures in seeds]
    return np.mean(values), np.std(values, ddof=1) if len(values) > 1 else 0.0


def close(found, wanted):
    np.testing.assert_allclose(np.array(found, float), np.array(wanted, float), rtol=1e-9, atol=1e-9)


# ---- values ---------------------------------------------------------------------------------------------------------


def test_accuracy_against_geometry_is_the_files(images):
    figure = outcome_drawings.make("accuracy-geometry", images)
    for place, axes, words in zip((1, 2), figure.axes, IMAGES, strict=True):
        wanted = []
        for _, seeds in GRID:
            (y, dy), (x, dx) = expected(0, seeds), expected(place, seeds)
            wanted.append((x, y, dx, dy))
        close(drawn_points(axes), wanted)
        assert words in axes.get_xlabel()
        assert axes.get_ylabel() == "200-NN top-1 accuracy (%)"
        names = {note.xy: note.get_text() for note in axes.texts}
        close(sorted(names), sorted((x, y) for x, y, _, _ in wanted))
        said = [names[min(names, key=lambda xy: abs(xy[0] - x) + abs(xy[1] - y))] for x, y, _, _ in wanted]
        assert said == ["0.1", "0.5", "cosine\n0.07 to 0.2", "shifted cosine\n0.07 to 0.2\nshift -0.4"]
    assert "30 training and 30 test images" in figure.get_suptitle()
    assert "over 1 to 3 seeds" in figure.get_suptitle()


@pytest.mark.parametrize(("name", "rows"), [("accuracy-temperature", 1), ("geometry-temperature", 3)])
def test_figures_over_the_temperature_are_the_files(images, name, rows):
    figure = outcome_drawings.make(name, images)
    for place in range(rows):
        left, right = figure.axes[2 * place : 2 * place + 2]
        wanted = [
            (x, expected(place, s)[0], 0, expected(place, s)[1]) for x, (_, s) in zip((0.1, 0.5), GRID, strict=False)
        ]
        close(drawn_points(left), wanted)
        wanted = [(x, expected(place, s)[0], 0, expected(place, s)[1]) for x, (_, s) in enumerate(GRID[2:])]
        close(drawn_points(right), wanted)
    assert left.get_xscale() == "log"
    assert [label.get_text() for label in left.get_xticklabels()] == ["0.1", "0.5"]
    assert [label.get_text().split("\n")[0] for label in right.get_xticklabels()] == ["cosine", "shifted cosine"]


def test_categories_stand_in_the_order_of_the_folders_and_need_no_constants(images):
    figure = outcome_drawings.make("accuracy-temperature", [images[-1], images[6]])
    (axes,) = figure.axes
    assert [label.get_text().split("\n")[0] for label in axes.get_xticklabels()] == ["shifted cosine", "cosine"]
    figure = outcome_drawings.make("accuracy-temperature", [*images[3:6], *images[:3]])
    (line,) = (line for line in figure.axes[0].lines if line.get_color() == drawings.GREY)
    assert line.get_xdata().tolist() == [0.1, 0.5]
    assert [len(axes.containers) for axes in figure.axes] == [2]


def test_accuracy_over_the_rate_is_the_files(image_run):
    figures = {0.001: [(60.0, 0.0, 0.0), (63.0, 0.0, 0.0)], 0.0003: [(50.0, 0.0, 0.0), (51.0, 0.0, 0.0)]}
    runs = [
        image_run(f"{t}-{rate}-{seed}", *f, f"--learning_rate={rate}", f"--temp={t}", seed=seed)
        for t in (0.1, 0.2)
        for rate, seeds in figures.items()
        for seed, f in enumerate(seeds)
    ]
    figure = outcome_drawings.make("accuracy-rate", runs)
    (axes,) = figure.axes
    wanted = [(rate, expected(0, figures[rate])[0], 0, expected(0, figures[rate])[1]) for rate in (0.0003, 0.001)]
    close(drawn_points(axes), wanted * 2)
    assert [note.get_text() for note in axes.texts] == ["0.1", "0.2"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.0003", "0.001"]


def test_text_is_drawn_with_alignment(text_run):
    seeds = [(70.0, -2.0, 0.2), (72.0, -2.2, 0.25)]
    runs = [text_run(f"{temp}-{i}", *s, f"--temp={temp}", seed=i) for temp in (0.05, 0.07) for i, s in enumerate(seeds)]
    figure = outcome_drawings.make("accuracy-geometry", runs)
    for place, axes, words in zip((1, 2), figure.axes, TEXT, strict=True):
        (y, dy), (x, dx) = expected(0, seeds), expected(place, seeds)
        close(drawn_points(axes), [(x, y, dx, dy)] * 2)
        assert words in axes.get_xlabel()
        assert axes.get_ylabel() == "STS average (Spearman $\\times$ 100)"
    assert "geometry of STS-B dev" in figure.get_suptitle()
    assert "over 2 seeds" in figure.get_suptitle()


def test_options_that_are_younger_than_a_record_set_newer_runs_apart(text_run):
    folders = [text_run("a", 70.0, -2.0, 0.2, "--temp=0.05"), text_run("b", 71.0, -2.0, 0.2, "--temp=0.05", seed=1)]
    folders += [text_run(f"mlm-{i}", 60.0, -2.0, 0.2, "--temp=0.05", "--do_mlm", seed=i) for i in range(2)]
    folders += [text_run("masked", 65.0, -2.0, 0.2, "--temp=0.05", "--mask_duplicates=yes")]
    file = folders[0] / "run.json"
    record = json.loads(file.read_text())
    for name in ("mask_duplicates", "do_mlm", "lora_rank", "learn_temperature"):
        del record["settings"][name]
    file.write_text(json.dumps(record))
    second = folders[1] / "run.json"
    second.write_text(second.read_text().replace('"mask_duplicates": true', '"mask_duplicates": false'))
    found = outcomes.read_outcomes(folders).configurations
    assert sorted((c.seeds, c.figures["accuracy"].mean) for c in found) == [
        ((0,), 65.0),
        ((0, 1), 60.0),
        ((0, 1), 70.5),
    ]


def test_the_linear_probe_can_be_asked_for(images, tmp_path):
    figure = outcome_drawings.make("accuracy-temperature", images, "linear")
    close(drawn_points(figure.axes[0])[0][1], expected(0, GRID[0][1])[0] + 7)
    assert figure.axes[0].get_ylabel() == "linear top-1 accuracy (%)"
    assert main(["accuracy-geometry", str(tmp_path), "--accuracy", "linear", "--output", str(tmp_path / "x.png")]) == 0


def test_what_else_differs_is_said_and_does_not_merge(image_run):
    runs = [image_run(f"a-{t}", 60.0, -2.0, 0.5, f"--temp={t}") for t in (0.1, 0.2)]
    runs.append(image_run("b", 50.0, -2.0, 0.5, "--temp=0.2", "--max_steps=7"))
    figure = outcome_drawings.make("accuracy-temperature", runs)
    close(drawn_points(figure.axes[0]), [(0.1, 60, 0, 0), (0.2, 60, 0, 0), (0.2, 50, 0, 0)])
    assert [note.get_text() for note in figure.axes[0].texts] == ["max_steps 7"]
    assert "max_steps 150 where none is named" in figure.get_suptitle()
    assert [len(line.get_xdata()) for line in figure.axes[0].lines if line.get_color() == drawings.GREY] == [2, 1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--temp=0.1",), "constant 0.1"),
        (COSINE, "cosine\n0.07 to 0.2"),
        (SHIFTED, "shifted cosine\n0.07 to 0.2\nshift -0.4"),
        ((*SHIFTED, "--scale=0.6"), "shifted cosine\n0.07 to 0.2\nshift -0.4\nscale 0.6"),
        (("--temperature=monotonic_cosine",), "monotonic cosine\n0.07 to 0.2"),
        (("--temperature=even_ode",), "even ode\n0.07 to 0.2"),
        (("--temperature=exponential",), "exponential\n0.07 to 0.2\nsharpness 3.5"),
        (("--temperature=scheduled",), "scheduled\n0.07 to 0.2\nhalf_period 200\nunit epoch"),
        (("--objective=macl",), "alignment adaptive\ntau_0 0.1\nalpha 0.5\na_0 0.0"),
    ],
)
def test_temperatures_in_words(flags, words):
    settings = parse_images(
        ["--preset=quickstart", *(["--temperature=constant"] if "temp=" in flags[0] else []), *flags]
    )
    options = settings.loss
    if flags[0].startswith(("--temperature=scheduled", "--objective")):
        options = replace(options, tau_min=None, tau_max=None)
    if flags[0] == "--objective=macl":
        options = replace(options, temperature=None)
    assert (
        outcomes.temperature_words(temperature_values(repr(build_objective(options, VISION).temperature)))[0] == words
    )


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OF_RUNS if name != "training"])
def test_no_text_is_clipped_small_or_on_another(name, images, image_run):
    generator = torch.Generator().manual_seed(0)
    for i, tau in enumerate((0.05, 0.07, 0.2, 0.22, 1.0)):  # a crowd
        near = (1e-2 * torch.randn(3, generator=generator)).tolist()
        figures = (61 + near[0], -2.0 + near[1], 0.5 + near[2])
        images.append(image_run(f"crowd-{i}", *figures, f"--temp={tau}", "--learning_rate=0.002"))
    for high in (0.3, 0.5):
        images.append(image_run(f"c-{high}", 61.0, -2.0, 0.5, *COSINE[:2], f"--tau_max={high}"))
    figure = outcome_drawings.make(name, images)
    texts = check_texts(figure)
    for note in texts:
        if isinstance(note, Annotation) and note.axes is not None:
            box, inside = Text.get_window_extent(note), note.axes.get_window_extent()
            assert inside.x0 <= box.x0 + 1, note
            assert box.x1 - 1 <= inside.x1, note
            at = note.axes.transData.transform(note.xy)
            away = np.hypot(max(box.x0 - at[0], 0, at[0] - box.x1), max(box.y0 - at[1], 0, at[1] - box.y1))
            assert away < 10 or note.arrow_patch is not None, note


def test_a_name_hides_no_point(images):
    figure = outcome_drawings.make("accuracy-geometry", images)
    figure.draw_without_rendering()
    for axes in figure.axes:
        points = axes.transData.transform([point[:2] for point in drawn_points(axes)])
        for note in axes.texts:
            assert Text.get_window_extent(note).count_contains(points) == 0, note


def test_a_name_hides_bars_rather_than_a_point():
    figure, axes = plt.subplots()
    axes.set(xlim=(0, 100), ylim=(0, 100))
    figure.draw_without_rendering()
    x, y = (grid.ravel() for grid in np.meshgrid(np.arange(0, 101, 2.0), np.arange(0, 101, 2.0)))
    free = (x > 50) & (abs(y - 50) < 5)  # right of the first point, where the second one stands
    labels = [PointLabel(at, 50, "a name", "black") for at in (50, 54)]
    label_points(axes, labels, [np.column_stack([x, y])[~free]], 7)
    figure.draw_without_rendering()  # or the names' extents are of another place
    marks = axes.transData.transform([(label.x, label.y) for label in labels])
    assert [Text.get_window_extent(note).count_contains(marks) for note in axes.texts] == [0, 0]


def test_histograms_of_pairs_are_the_counts():
    geometry = Geometry(0.5, -2.0, -0.7, 0.6, (-1, -0.5, 0, 0.5, 1), (0, 0, 1, 3), (1, 1, 1, 1), (5, 3, 2, 0))
    with drawings.style():
        figure = draw_geometry({"untrained": geometry, "out/a_$long_{name" * 4: geometry}, "shapes, 30 test images")
    for axes in figure.axes:
        shares = [stairs.get_data().values.tolist() for stairs in axes.patches]
        assert shares == [[0, 0, 25, 75], [25] * 4, [50, 30, 20, 0]]
        assert "tolerance 0.600" in axes.get_title()
    check_texts(figure)
    with drawings.style():
        check_texts(draw_geometry({"run-" * 20: geometry}, "shapes, 30 test images"), least=8)


# ---- the program ----------------------------------------------------------------------------------------------------


def test_a_folder_of_runs_is_drawn_and_an_unfinished_run_is_named(images, tmp_path, capsys, recwarn):
    record = json.loads((images[0] / "run.json").read_text())
    del record["trained"]
    (images[0] / "run.json").write_text(json.dumps(record))
    (images[0] / "vision-shapes.json").unlink()
    file = tmp_path / "x.svg"
    assert main(["accuracy-geometry", str(tmp_path), "--output", str(file)]) == 0
    assert [str(warning.message) for warning in recwarn] == [f"not finished and left out: {images[0]}"]
    assert capsys.readouterr().out.split() == [str(file)]
    first = file.read_bytes()
    assert first.count(b"<path") > 50
    assert main(["accuracy-geometry", str(tmp_path), "--output", str(file)]) == 0
    assert file.read_bytes() == first


def test_wrong_runs_are_one_line(images, image_run, text_run, tmp_path, capsys):
    name, other = "accuracy-geometry", images[3]
    assert "accuracy-geometry RUN" in error_of(capsys, name)
    assert "no such folder: 'nowhere'" in error_of(capsys, name, "nowhere", other)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no run in" in error_of(capsys, name, empty, other)
    assert "two configurations or more; this is one run," in error_of(capsys, name, other)
    assert "two configurations or more; this is 3 seeds of" in error_of(capsys, name, *images[:3])
    text = text_run("text", 70.0, -2.0, 0.2, "--temp=0.05")
    assert f"{text} is of text, {other} of images" in error_of(capsys, name, text, other)
    assert "--accuracy is for runs of images" in error_of(capsys, name, text, text, "--accuracy", "knn")
    assert "--accuracy: profiles has none" in error_of(capsys, "profiles", "--accuracy", "knn")
    bare = image_run("bare", 60.0, -2.0, 0.5, "--temp=0.3", tasks=("knn",))
    said = error_of(capsys, name, bare, other)
    assert f"without geometry: python vision/evaluate.py --model {bare} --tasks knn geometry\n" in said
    assert "without linear" in error_of(capsys, "accuracy-rate", bare, other, "--accuracy", "linear")
    assert "share one learning rate: 0.001" in error_of(capsys, "accuracy-rate", bare, other)
    (bare / "vision-shapes.json").unlink()
    assert f"{bare} is not evaluated: python vision/evaluate.py --model {bare}" in error_of(capsys, name, bare, other)
    few = image_run("few", 60.0, -2.0, 0.5, "--temp=0.3", k=20)
    assert f"not evaluated alike, k is 20 in {few} and 200 in {other}" in error_of(capsys, name, few, other)
    again = tmp_path / "again"
    shutil.copytree(other, again)
    content = (again / "vision-shapes.json").read_text()
    assert "are one configuration with one seed" in error_of(capsys, name, other, again)
    rate = image_run("rate", 60.0, -2.0, 0.5, "--temp=0.5", "--learning_rate=0.1")
    assert "share one temperature: 0.5" in error_of(capsys, "accuracy-temperature", rate, other)
    for damaged, words in (
        ("{", "cannot be read"),
        ("{}", "is not an evaluation of images"),
        (content.replace('"tolerance": 0.6', '"tolerance": null'), "tolerance is not a finite number but None"),
        (content.replace('"tolerance": 0.6', '"tolerance": NaN'), "tolerance is not a finite number but nan"),
    ):
        (again / "vision-shapes.json").write_text(damaged)
        assert words in error_of(capsys, name, again, images[0])
    (other / "run.json").write_text('{"program": "another"}')
    assert "is not the record of a run" in error_of(capsys, name, other, images[0])


def test_wrong_text_runs_are_one_line(text_run, capsys):
    name = "accuracy-geometry"
    good = text_run("good", 70.0, -2.0, 0.2, "--temp=0.05")
    bare = text_run("bare", 70.0, -2.0, 0.2, "--temp=0.03", geometry=False)
    said = error_of(capsys, name, good, bare)
    assert f"without geometry: dystress senteval --model {bare} --tasks sts --geometry dev\n" in said
    assert main(["accuracy-temperature", str(good), str(bare), "--output", str(good / "x.png")]) == 0
    capsys.readouterr()
    mini = text_run("mini", 70.0, -2.0, 0.2, "--temp=0.04", suite="mini")
    assert "not evaluated alike, suite is senteval" in error_of(capsys, name, good, mini)
    (bare / "senteval-senteval-test.json").unlink()
    assert f"{bare} is not evaluated: dystress senteval" in error_of(capsys, name, good, bare)
