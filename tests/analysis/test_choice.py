"""The answer of a sweep: the best, its rivals, the end of the range, and units that did not choose."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sweep_runs import write_run, write_units

from dystress_text.analysis import tables
from dystress_text.analysis.compared_models import read_compared_models
from dystress_text.analysis.tables import by_halves, end_of_range
from dystress_text.evaluation.results import Result
from dystress_text.programs.report import main

PAIRS = 60
random = np.random.default_rng(5)
SCORES = random.uniform(0, 5, PAIRS)


def noisy(noise):
    return np.round(SCORES + random.normal(0, noise, PAIRS), 6)


def correlation(values, units=slice(None)):
    return 100 * stats.spearmanr(values[units], SCORES[units]).statistic


LEXICAL = noisy(8)
UNTRAINED = noisy(9)
RESULT = Result.of_entry({"nDCG@10": 50.0}, "retrieval", "c", {"model": "m"})
MEASURED = {  # similarities by temperature, then by seed
    "0.05": [noisy(4), noisy(4)],
    "0.1": [noisy(1), noisy(1)],
    "0.2": [noisy(0.9), noisy(0.9)],
}


def measured(folder, values):
    """Write a result of the pairs, with the lexical baseline's."""
    lexical = {"spearman": correlation(LEXICAL)}
    write_units(folder, values, SCORES, more_each={"lexical": LEXICAL.tolist()}, lexical=lexical)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    measured(folder / "untrained", UNTRAINED)
    for tau, of_seeds in MEASURED.items():
        for seed, values in enumerate(of_seeds):
            options = ["--preset=own-text", f"--loss=dcl({tau})"]
            run = write_run(folder, f"dcl-{tau}", seed, 0.0, options, tasks=())
            measured(run, values)
            (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n')
    return folder


def figures(tau, units=slice(None)):
    return float(np.mean([correlation(values, units) for values in MEASURED[tau]]))


@pytest.fixture(scope="module")
def lines(sweep):
    return tables.verdict(read_compared_models([sweep]))


def test_the_best_against_the_second_and_the_models(lines):
    best, second = sorted(MEASURED, key=figures)[:0:-1]
    assert best == "0.2"
    start = "Of the trained models dcl(0.2) scores highest on mine (Own pairs, Spearman x 100): "
    assert lines[0].startswith(f"{start}{figures(best):.1f} (")
    number = r"([+-]?[\d.]+)"
    interval = rf"; dcl\(0\.2\) - dcl\({second}\): {number} \({number} to {number};"
    lead, low, high = map(float, re.search(interval, lines[0]).groups())
    assert lead == pytest.approx(figures(best) - figures(second), abs=0.051)
    assert low < lead < high
    contains = "contains" if low <= 0 <= high else "does not contain"
    assert lines[0].endswith(f": the interval {contains} 0.")
    for name, values in (("untrained", UNTRAINED), ("TF-IDF/BM25", LEXICAL)):
        (line,) = [line for line in lines if f"dcl(0.2) - {name}: " in line]
        shown = float(re.search(r": ([+-][\d.]+) \(", line)[1])
        assert shown == pytest.approx(figures(best) - correlation(values), abs=0.051)


def test_units_that_did_not_choose(lines):
    order = np.random.default_rng(0).permutation(PAIRS)
    halves = order[::2], order[1::2]
    measured = []
    for choosing, other in (halves, halves[::-1]):
        chosen = max(MEASURED, key=lambda tau: figures(tau, choosing))
        measured.append(figures(chosen, other))
    (line,) = [line for line in lines if "chosen on one half" in line]
    assert f": {np.mean(measured):.1f} if chosen" in line


def with_units(**columns):
    """A result with the similarity and score of each pair, or each query's nDCG@10."""
    return replace(RESULT, each={name: values.tolist() for name, values in columns.items()})


def test_choosing_and_measuring_on_the_same_queries_flatters():
    """Of equal models the best on all queries is above their mean, that by halves is not."""
    studies = np.random.default_rng(1).uniform(size=(50, 20, 40))  # studies, models, queries
    by_half = []
    for study in studies:
        (line,) = by_halves({str(row[0]): [with_units(model=row)] for row in study})
        by_half.append(float(line.split()[0]))
    assert 100 * studies.mean(2).max(1).mean() > 56
    assert np.mean(by_half) == pytest.approx(50, abs=1.5)


@pytest.mark.parametrize("constant", ["model", "scores"])
def test_a_half_of_equal_values_has_no_figure(constant):
    """The units of one half are equal, which has no rank correlation; all units have one."""
    values = {"model": SCORES.copy(), "scores": SCORES.copy()}
    values[constant][np.random.default_rng(0).permutation(PAIRS)[::2]] = 1.0
    assert np.isfinite(stats.spearmanr(values["model"], values["scores"]).statistic)
    assert by_halves({name: [with_units(**values)] for name in "ab"}) == []


@pytest.mark.parametrize(("units", "lines"), [(0, 0), (9, 0), (10, 1)])
def test_too_few_units_for_halves(units, lines):
    result = with_units(model=SCORES[:units]) if units else with_units()
    assert len(by_halves({name: [result] for name in "ab"})) == lines


@pytest.mark.parametrize(
    ("losses", "ends"),
    [
        ("dcl(0.05) dcl(0.1) dcl(0.2)", ["smallest", None, "largest"]),
        ("infonce(cosine(0.03,0.05)) infonce(cosine(0.03,0.1))", ["smallest", "largest"]),
        ("infonce(cosine(0.03,0.05)) infonce(cosine(0.04,0.1))", [None, None]),
        ("infonce(temo(0.05,alpha=-2)) infonce(temo(0.05,alpha=1e-3))", ["smallest", "largest"]),
        ("dcl(0.05) infonce(0.1)", [None, None]),
    ],
)
def test_end_of_the_range(losses, ends):
    settings = {loss: {"loss": loss, "epochs": 1} for loss in losses.split()}
    for loss, end in zip(settings, ends, strict=True):
        lines = end_of_range(settings, loss)
        assert [line.split()[3] for line in lines] == ([end] if end else [])


def test_end_of_the_range_of_an_option():
    settings = {str(rate): {"loss": "dcl(0.05)", "learning_rate": rate} for rate in (1e-5, 3e-5)}
    assert "largest" in end_of_range(settings, "3e-05")[0]


@pytest.mark.usefixtures("with_pictures")
def test_the_page_draws_the_answer(sweep, lines, capsys, monkeypatch):
    drawn = {}

    def keep(figure):
        for axes in figure.axes:
            names = [text.get_text() for text in axes.texts]
            drawn[axes.get_title()] = names, [line.get_xdata() for line in axes.lines]
        return ""

    monkeypatch.setattr("dystress_text.analysis.page._uri", keep)
    assert main([str(sweep), "--format=html"]) == 0
    page = html.unescape(capsys.readouterr().out)
    assert lines[0] in page
    names, shapes = drawn["mine (Own pairs, Spearman x 100)"]
    assert names == ["dcl(0.05)", "dcl(0.1)", "dcl(0.2)", "untrained", "TF-IDF/BM25"]
    assert shapes[7] == pytest.approx(correlation(UNTRAINED))  # a dot after each interval
    for tau, (low, high) in zip(MEASURED, shapes[::2], strict=False):
        assert low < figures(tau) < high
    assert not [title for title in drawn if title.startswith("loss")]  # of three objectives
