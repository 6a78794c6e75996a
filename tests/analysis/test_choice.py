"""The answer of a sweep: the best, its rivals, the end of the range, and units that did not choose."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sweep_runs import write_run

from dystress_text.analysis import tables
from dystress_text.analysis.compared_models import read_compared_models
from dystress_text.analysis.tables import by_halves, end_of_range
from dystress_text.evaluation.results import RESULTS, Result, append
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
MEASURED = {  # similarities by temperature, then by seed
    "0.05": [noisy(4), noisy(4)],
    "0.1": [noisy(1), noisy(1)],
    "0.2": [noisy(0.9), noisy(0.9)],
}


def result(model, values):
    entry = {"spearman": round(correlation(values), 2), "sha256": "a"}
    similarities = {"model": values, "lexical": LEXICAL, "scores": SCORES}
    each = {name: column.tolist() for name, column in similarities.items()}
    measured = Result.of_entry(entry, "pairs", "mine", {"model": model})
    return replace(measured, each=each, lexical={"spearman": round(correlation(LEXICAL), 2)})


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "untrained").mkdir()
    append(folder / "untrained" / RESULTS, result("x/untrained", UNTRAINED))
    for tau, of_seeds in MEASURED.items():
        for seed, values in enumerate(of_seeds):
            options = ["--preset=own-text", f"--loss=dcl({tau})"]
            run = write_run(folder, f"dcl-{tau}", seed, 0.0, options, tasks=())
            append(run / RESULTS, result(str(run), values))
            steps = '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n'
            (run / "metrics.jsonl").write_text(steps)
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
    lead = figures(best) - figures(second)
    found = re.search(rf"; dcl\(0\.2\) - dcl\({second}\): ([+-][\d.]+) \((.*?) to (.*?);", lines[0])
    assert float(found[1]) == pytest.approx(lead, abs=0.051)
    low, high = map(float, found.group(2, 3))
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


def test_choosing_and_measuring_on_the_same_queries_flatters():
    """Of equal models the best on all queries is above their mean, that by halves is not."""
    entry = Result.of_entry({"nDCG@10": 0.0}, "retrieval", "c", {"model": "m"})
    drawn = np.random.default_rng(1).uniform(size=(50, 20, 40))  # studies, models, queries
    flattered, fair = [], []
    for study in drawn:
        results = {}
        for name, values in enumerate(study):
            results[str(name)] = [replace(entry, each={"model": values.tolist()})]
        (line,) = by_halves(results)
        fair.append(float(line.split()[0]))
        flattered.append(100 * study.mean(1).max())
    assert np.mean(flattered) > 56
    assert np.mean(fair) == pytest.approx(50, abs=1.5)


@pytest.mark.parametrize("constant", ["model", "scores"])
def test_a_half_of_equal_values_has_no_figure(constant):
    """The units of one half are equal, which has no rank correlation; all units have one."""
    values = {"model": SCORES.copy(), "scores": SCORES.copy()}
    values[constant][np.random.default_rng(0).permutation(PAIRS)[::2]] = 1.0
    assert np.isfinite(stats.spearmanr(values["model"], values["scores"]).statistic)
    entry = Result.of_entry({"spearman": 50.0}, "pairs", "mine", {"model": "m"})
    each = {name: column.tolist() for name, column in values.items()}
    assert by_halves({name: [replace(entry, each=each)] for name in "ab"}) == []


@pytest.mark.parametrize("each", [{}, {"model": [0.5]}, {"model": [0.5], "scores": [1.0]}])
def test_too_few_units_for_halves(each):
    entry = Result.of_entry({"nDCG@10": 50.0}, "retrieval", "c", {"model": "m"})
    assert by_halves({name: [replace(entry, each=each)] for name in "ab"}) == []


@pytest.mark.parametrize(
    ("losses", "best", "end"),
    [
        (["dcl(0.05)", "dcl(0.1)", "dcl(0.2)"], 2, "largest"),
        (["dcl(0.05)", "dcl(0.1)", "dcl(0.2)"], 0, "smallest"),
        (["dcl(0.05)", "dcl(0.1)", "dcl(0.2)"], 1, None),
        (["infonce(cosine(0.03, 0.05))", "infonce(cosine(0.03, 0.1))"], 1, "largest"),
        (["infonce(cosine(0.03, 0.05))", "infonce(cosine(0.04, 0.1))"], 1, None),
        (["infonce(temo(0.05, alpha=-2))", "infonce(temo(0.05, alpha=1e-3))"], 0, "smallest"),
        (["dcl(0.05)", "infonce(0.1)"], 1, None),
    ],
)
def test_end_of_the_range(losses, best, end):
    found = end_of_range({loss: {"loss": loss, "epochs": 1} for loss in losses}, losses[best])
    assert (end in found[0].split()) if end else found == []


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
    intervals = dict(zip(names, shapes[::2], strict=True))
    dots = dict(zip(names, shapes[1::2], strict=True))
    assert dots["untrained"] == pytest.approx(correlation(UNTRAINED))
    for tau in MEASURED:
        low, high = intervals[f"dcl({tau})"]
        assert low < figures(tau) < high
    assert not [title for title in drawn if title.startswith("loss")]  # of three objectives
