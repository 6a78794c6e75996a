"""Figures: the curves against closed forms, the files, the errors."""

import json
import math
import shutil
import struct
from functools import cache

import pytest
import torch
from figure_texts import check_texts, error_of
from matplotlib import pyplot as plt
from PIL import Image

from dystress_text.core.temperature import ConstantTemperature, CosineTemperature, ShiftedCosineTemperature
from dystress_text.figures import main
from dystress_text.report import curves, drawings
from dystress_text.report.figures import FIGURES, OF_RUNS

NAMES = [name for name in FIGURES if name not in OF_RUNS]
LOW, HIGH = 0.1, 0.2


def dip(s, shift, k):
    """Algorithm 2 with the plateau above -shift for shift <= 0, below it otherwise."""
    inside = s <= -shift if shift <= 0 else s >= -shift
    return LOW + (HIGH - LOW) / 2 * (1 + math.cos(math.pi / k * (shift + s))) if inside else HIGH


def one_sided(s, plateau):
    rising = LOW + (HIGH - LOW) / 2 * (1 - math.cos(math.pi * (s + 1) / (plateau + 1)))
    return rising if s < plateau else HIGH


def ode_branch(x):
    return x / math.log1p(x / LOW) if x > 0 else LOW


CLOSED = {
    "cosine": lambda s: LOW + (HIGH - LOW) / 2 * (1 + math.cos(math.pi * (1 + s))),
    "linear": lambda s: LOW + (HIGH - LOW) * abs(s),
    "exponential": lambda s: LOW + (HIGH - LOW) * (1 - math.exp(-3.5 * abs(s))) / (1 - math.exp(-3.5)),
    "monotonic cosine": lambda s: LOW + (HIGH - LOW) / 2 * (1 + math.sin(math.pi * s / 2)),
    "even ODE": lambda s: LOW + (HIGH - LOW) * (ode_branch(abs(s)) - LOW) / (ode_branch(1) - LOW),
    "constant, 0.15": lambda s: 0.15,
    "1a": lambda s: dip(s, 0.2, 0.6),
    "1b": lambda s: dip(s, 0.4, 0.7),
    "2a": lambda s: dip(s, -0.2, 0.6),
    "2b": lambda s: dip(s, -0.4, 0.7),
    "-0.6": lambda s: dip(s, -0.6, 0.8),
    "3a": lambda s: one_sided(s, -0.2),
    "3b": lambda s: one_sided(s, -0.4),
    "= 0,": lambda s: dip(s, 0.0, 0.5),
}


@cache
def drawn(name):
    """A figure that needs no run; tests only look at it."""
    return drawings.make(name)


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture
def runs(tmp_path):
    folders = []
    for index, name in enumerate(("constant-seed-0", "shifted_cosine-seed-0")):
        folder = tmp_path / name
        folder.mkdir()
        lines = [{"step": 5 * i, "loss": 1 / i + index, "learning_rate": 0.1} for i in range(1, 9)]
        for kind, values in (("spearman", 60), ("alignment", 0.2), ("uniformity", -2)):
            lines += [{"step": 10 * i, f"sts_b_dev_{kind}": values + 0.1 * i} for i in range(1, 5)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        folders.append(folder)
    return folders


# ---- curves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", CLOSED)
def test_the_drawn_profiles_are_the_closed_forms(key):
    name = "shifts" if key not in curves.profiles() else "profiles"
    axes = next(a for a in drawn(name).axes if key in a.get_title())
    line = next(line for line in axes.lines if line.get_color() == drawings.STYLES[0][0])
    s = torch.as_tensor(line.get_xdata())
    assert (float(s[0]), float(s[-1]), s.dtype) == (-1, 1, torch.float64)
    close(torch.as_tensor(line.get_ydata()), [CLOSED[key](x) for x in s.tolist()])


def test_the_drawn_ranges_are_the_paper_s():
    figure = drawn("ranges")
    images, text = figure.axes
    found = {tuple(map(float, line.get_label().split(" to "))): line for line in images.lines}
    assert set(found) == {(0.07, 0.1), (0.07, 0.5), (0.07, 0.2), (0.1, 0.2)}
    for (low, high), line in found.items():
        expected = [low + (high - low) / 2 * (1 - math.cos(math.pi * s)) for s in line.get_xdata().tolist()]
        close(torch.as_tensor(line.get_ydata()), expected)
    assert {tuple(map(float, line.get_label().split(" to "))) for line in text.lines} == {
        (0.03, 0.05), (0.02, 0.05), (0.05, 0.07), (0.04, 0.05)
    }  # fmt: skip
    for line in text.lines:
        low, high = map(float, line.get_label().split(" to "))
        y = torch.as_tensor(line.get_ydata())
        close(y.min(), low, 1e-6)
        close(y[[0, -1]], [high, high])


def test_ode_solutions_solve_the_equation_and_meet_their_ends():
    s = torch.cat([torch.linspace(-1, -1e-3, 4001), torch.linspace(1e-3, 1, 4001)]).double().requires_grad_()
    for delta, k in curves.ODE_PRODUCTS:
        solutions = curves.ode_solutions(delta, k, s)
        low, _, _, printed, high = (tau.detach() for tau in solutions.values())
        assert float(low[0]) == pytest.approx(0.2, rel=1e-9)
        assert float(high[-1]) == pytest.approx(0.2, rel=1e-9)
        assert float(printed[-1]) < 0.2 * (1 - 1e-4)  # the sign of delta K in c+ is a slip
        for tau in solutions.values():
            valid = tau.isfinite() & (tau > 0.05) & (tau < 2)
            assert valid.any()
            (slope,) = torch.autograd.grad(tau[valid].sum(), s, retain_graph=True)
            tau, at = tau[valid].detach(), s.detach()[valid]
            expected = tau / at * (1 - tau * delta * k * torch.exp(-at / tau))
            torch.testing.assert_close(slope[valid], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("low", "high", "shift"), [(0.05, 0.07, -0.4), (0.02, 0.05, -0.4), (0.07, 0.5, None)])
def test_logit_and_gradient_factor(low, high, shift):
    s = curves.similarities(400)  # no point at a kink or at 0
    x, span = s, high - low
    if shift is None:
        temperature = next(t for name, t in curves.logits().items() if "cosine 0.07" in name)
        tau = low + span / 2 * (1 - torch.cos(math.pi * x))
        slope = span / 2 * math.pi * torch.sin(math.pi * x)
    else:
        temperature = next(t for name, t in curves.logits().items() if f"shifted {low}" in name)
        inside = x <= 0.4
        tau = torch.where(inside, low + span / 2 * (1 + torch.cos(math.pi / 0.7 * (x - 0.4))), high)
        slope = torch.where(inside, -span / 2 * math.pi / 0.7 * torch.sin(math.pi / 0.7 * (x - 0.4)), 0.0)
    torch.testing.assert_close(curves.logit(temperature, s), x / tau, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(curves.gradient_factor(temperature, s, True), 1 / tau, rtol=1e-12, atol=1e-12)
    factor = (tau - x * slope) / tau**2
    torch.testing.assert_close(curves.gradient_factor(temperature, s, False), factor, rtol=1e-9, atol=1e-9)
    assert bool((factor < 0).any()) == ((low, high) != (0.05, 0.07))


def test_the_marked_region_is_where_the_logit_falls():
    figure = drawn("logit")
    above = figure.axes[:3]
    for axes, temperature in zip(above, curves.logits().values(), strict=True):
        s, y = (torch.as_tensor(v) for v in axes.lines[0].get_data())
        falling = (s[1:][y.diff() < 0]).tolist()
        paths = [path for path in axes.collections[0].get_paths() if len(path.vertices)]
        ends = sorted((p.vertices[:, 0].min(), p.vertices[:, 0].max()) for p in paths)
        assert bool(falling) == bool(ends), temperature
        if ends:
            assert ends[0][0] == pytest.approx(min(falling), abs=0.01)
            assert ends[-1][1] == pytest.approx(max(falling), abs=0.01)
        assert all(any(a - 0.01 <= x <= b + 0.01 for a, b in ends) for x in falling)


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize(
    "temperature", [ConstantTemperature(0.05), CosineTemperature(0.1, 0.2), ShiftedCosineTemperature(0.03, 0.05)]
)
def test_the_gradient_field_is_the_paper_s(temperature, detached):
    generator = torch.Generator().manual_seed(0)
    positive, negative = 2 * torch.rand(2, 50, generator=generator, dtype=torch.float64) - 1
    pull, push = curves.gradient_field(temperature, detached, positive, negative)
    mass = [
        [math.exp(a / ta), 63 * math.exp(b / tb)]
        for a, ta, b, tb in zip(
            positive.tolist(), temperature(positive).tolist(), negative.tolist(), temperature(negative).tolist(),
            strict=True,
        )
    ]  # fmt: skip
    p = torch.tensor([n / (a + n) for a, n in mass], dtype=torch.float64)  # of all negatives together, 1 - p of Eq. a
    factors = [curves.gradient_factor(temperature, s, detached) for s in (positive, negative)]
    torch.testing.assert_close(pull, factors[0] * p, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(push, factors[1] * p, rtol=1e-9, atol=1e-12)


def test_sets_are_called_as_on_the_terminal(runs):
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "sick_r_dev_spearman": 50.0, "sts_b_test_spearman": 50.0}\n')
    titles = [axes.get_title().splitlines()[0] for axes in drawings.make("training", runs).axes]
    assert {"SICK-R dev", "STS-B test"} <= set(titles)


def test_training_curves_are_the_log_s(runs):
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "sts_b_dev_spearman": null}\n')
    figure = drawings.make("training", runs)
    titles = [axes.get_title() for axes in figure.axes]
    for title, words in zip(titles, ("loss", "STS-B dev\nSpearman", "alignment", "uniformity"), strict=True):
        assert words in title
    loss, spearman, *_ = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [run.name for run in runs]
    assert loss.lines[1].get_xdata().tolist() == [5.0 * i for i in range(1, 9)]
    close(torch.as_tensor(loss.lines[1].get_ydata()), [1 / i + 1 for i in range(1, 9)])
    y = spearman.lines[0].get_ydata()
    close(torch.as_tensor(y[:4]), [60.1, 60.2, 60.3, 60.4])
    assert math.isnan(y[4])
    assert len({(line.get_color(), line.get_linestyle()) for line in loss.lines}) == 2


def test_runs_of_one_name_are_told_apart_and_any_name_can_be_drawn(runs, tmp_path):
    folders = [tmp_path / place for place in ("a/out", "b/out", "_$x_{")]
    for folder in folders:
        folder.parent.mkdir(exist_ok=True)
        shutil.copytree(runs[0], folder)
    figure = drawings.make("training", folders)
    found = [text.get_text() for text in figure.legends[0].get_texts()]
    assert found == [str(folders[0]), str(folders[1]), "./_\\$x_{"]
    drawings.save(figure, tmp_path / "runs.svg")


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "training"])
def test_no_text_is_clipped_small_or_on_another(name, runs):
    check_texts(drawings.make(name, runs))


@pytest.mark.parametrize(("name", "ending"), [("training", "png"), ("profiles", "svg"), ("training", "pdf")])
def test_each_format_is_written_and_not_blank(tmp_path, runs, capsys, name, ending):
    extra = [str(run) for run in runs] if name == "training" else []
    contents = []
    for again in "ab":
        file = tmp_path / f"{again}.{ending}"
        assert main([name, "--output", str(file), *extra]) == 0
        contents.append(file.read_bytes())
    assert contents[0] == contents[1]
    content = contents[0]
    if ending == "png":
        width, height = struct.unpack(">II", content[16:24])
        assert abs(width / 200 * 2.54 - 12) < 0.05  # centimetres
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        dark = sum(Image.open(tmp_path / "a.png").convert("L").histogram()[:200]) / (width * height)
        assert 0.01 < dark < 0.5
    else:
        assert content.startswith(b"%PDF" if ending == "pdf" else b"<?xml")
        assert content.count(b"<path") > 50 or ending == "pdf"
    assert capsys.readouterr().out.split() == [str(tmp_path / f"{again}.{ending}") for again in "ab"]


def test_all_draws_all_that_need_no_run(tmp_path, capsys):
    assert main(["all", "--output", str(tmp_path / "new" / "folder")]) == 0
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert [file.stem for file in files] == sorted(NAMES)
    assert all(len(Image.open(file).convert("RGB").getcolors(1 << 20)) > 10 for file in files)
    assert all(file.stat().st_size < 60_000 for file in files)


def test_the_list_names_all(capsys):
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(FIGURES)


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_one_line(tmp_path, runs, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "profiles, ranges" in error_of(capsys)
    assert "unknown figure 'profile'" in error_of(capsys, "profile")
    assert "training RUN" in error_of(capsys, "training")
    assert "takes no folders" in error_of(capsys, "ode", runs[0])
    assert "takes no folders" in error_of(capsys, "all", runs[0])
    assert ".png, .svg, .pdf" in error_of(capsys, "ode", "--output", "ode.jpg")
    assert "No such file" in error_of(capsys, "ode", "--output", "nowhere/ode.png")
    assert "cannot make" in error_of(capsys, "all", "--output", runs[0] / "metrics.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == [run.name for run in runs]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no run in"),
        ("", "no step yet"),
        ('{"step": 1, "loss": 2}\nnonsense\n', "line 2"),
        ('{"loss": 2}\n', "line 1"),
        ("[1]\n", "line 1"),
        ('{"step": 1, "loss": "x"}\n', "step 1"),
        ("\x00\xff\n", "line 1"),
    ],
)
def test_a_folder_that_is_no_run_is_one_line(tmp_path, capsys, content, words):
    folder = tmp_path / "run"
    folder.mkdir()
    if content is not None:
        (folder / "metrics.jsonl").write_text(content)
    error = error_of(capsys, "training", folder, "--output", tmp_path / "x.png")
    assert words in error
    assert str(folder) in error


def test_without_matplotlib_the_install_command_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dystress_text.cli.extras.find_spec", lambda name: None)
    error = error_of(capsys, "ode", "--output", tmp_path / "ode.png")
    assert "a figure needs matplotlib and jinja2: pip install 'dystress-text[plots]'" in error
