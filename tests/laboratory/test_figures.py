"""The paper's figures: the drawn curves against closed forms, the files, the errors."""

import math
from functools import cache

import pytest
import torch
from matplotlib.figure import Figure
from sweep_runs import error_of

from dystress_text.core.temperature import CosineTemperature, ShiftedCosineTemperature
from dystress_text.laboratory import drawings
from dystress_text.programs.figures import FIGURES, main
from dystress_text.report.plots import STYLES


@cache
def drawn(name):
    """A figure; tests only look at it."""
    return drawings.make(name)


def test_the_drawn_profiles_are_the_closed_forms():
    """The temperatures' own tests have the other forms; here each panel has its curve, and the
    curve its place.
    """
    assert [len(drawn(name).axes) for name in ("profiles", "shifts")] == [6, 9]
    for name, title, form in (
        ("profiles", "cosine", lambda s: 0.15 + 0.05 * torch.cos(math.pi * (1 + s))),
        (
            "shifts",
            "2b",
            lambda s: torch.where(
                s <= 0.4, 0.15 + 0.05 * torch.cos(math.pi / 0.7 * (s - 0.4)), 0.2
            ),
        ),
    ):
        axes = next(a for a in drawn(name).axes if a.get_title().startswith(title))
        line = next(line for line in axes.lines if line.get_color() == STYLES[0][0])
        s, tau = torch.as_tensor(line.get_xdata()), torch.as_tensor(line.get_ydata())
        assert (float(s[0]), float(s[-1]), s.dtype) == (-1, 1, torch.float64)
        torch.testing.assert_close(tau, form(s), rtol=1e-9, atol=1e-9)


def test_ode_solutions_meet_their_ends():
    """The tests of the core solve the equation."""
    s = torch.linspace(-1, 1, 8002, dtype=torch.float64)
    for delta, k in drawings.ODE_PRODUCTS:
        solutions = drawings.ode_solutions(delta, k, s).values()
        assert all((tau.isfinite() & (tau > 0.05) & (tau < 2)).any() for tau in solutions)
        low, _, _, printed, high = solutions
        assert (float(low[0]), float(high[-1])) == pytest.approx((0.2, 0.2), rel=1e-9)
        assert float(printed[-1]) < 0.2 * (1 - 1e-4)  # the sign of delta K in c+ is a slip


@pytest.mark.parametrize(
    ("temperature", "falls"),
    [(ShiftedCosineTemperature(0.05, 0.07, -0.4), False), (CosineTemperature(0.07, 0.5), True)],
)
def test_the_slope_of_the_logit(temperature, falls):
    x, h = torch.linspace(-1, 1, 400, dtype=torch.float64), 1e-5  # no point at a kink or at 0
    torch.testing.assert_close(drawings.slope(temperature, x, True), 1 / temperature(x))
    above, below = ((x + d) / temperature(x + d) for d in (h, -h))
    full = drawings.slope(temperature, x, False)
    torch.testing.assert_close(full[1:-1], ((above - below) / (2 * h))[1:-1], rtol=1e-5, atol=1e-5)
    assert bool((full < 0).any()) == falls


@pytest.mark.parametrize(
    ("name", "ending"),
    [("default", "png"), ("profiles", "svg"), ("shifts", "pdf"), ("ode", "svg"), ("logit", "png")],
)
def test_each_figure_and_format_is_written_and_the_same_twice(tmp_path, name, ending):
    files = [tmp_path / f"{again}.{ending}" for again in "ab"]
    assert [main([name, "--output", str(file)]) for file in files] == [0, 0]
    content = files[0].read_bytes()
    assert content == files[1].read_bytes()
    assert content.startswith(
        {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    )


def test_all_draws_all_and_the_list_names_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(drawings, "make", lambda name: Figure())
    assert main(["all", "--output", str(tmp_path / "new" / "folder")]) == 0
    assert sorted(file.stem for file in (tmp_path / "new" / "folder").iterdir()) == sorted(FIGURES)
    capsys.readouterr()
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(FIGURES)


def test_wrong_arguments_are_one_line(capsys, monkeypatch):
    assert "name a figure: default, profiles" in error_of(capsys)
    assert "got 'profile'" in error_of(capsys, "profile")
    assert "--output: 'ode.jpg' must end in one of .png, .svg, .pdf" in error_of(
        capsys, "ode", "--output", "ode.jpg"
    )
    monkeypatch.setattr(
        "dystress_text.cli.extras.find_spec", lambda name: None if name == "matplotlib" else name
    )
    assert "a figure needs matplotlib: pip install -c " in error_of(capsys, "ode")
