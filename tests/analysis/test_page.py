"""The page of a run."""

import base64
import html
import re
import subprocess
import sys

import pytest
from sweep_runs import PRESET, a_run

from dystress_text.analysis.page import render_page
from dystress_text.analysis.runs import FinishedRun
from dystress_text.analysis.text_page import leave_text_report
from dystress_text.programs.report import main
from dystress_text.training.run_folder import read_run
from dystress_text.training.run_record import RunRecord

CURVE = "Temperature and logit over the similarity of a pair"


def pictures(page):
    """What each picture shows, and its SVG."""
    found = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)">', page)
    return {html.unescape(alt): base64.b64decode(source).decode() for source, alt in found}


def page_of(run):
    leave_text_report(run)
    return (run / "report.html").read_text()


def cells(page):
    return [
        html.unescape(cell) for cell in re.findall(r'<t[hd](?: class="text")?>(.*?)</t[hd]>', page)
    ]


@pytest.fixture(autouse=True, scope="module")
def drawn(galleries):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dystress_text.analysis.page_drawings.galleries", galleries)
        yield


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run with all that a page shows, and with names that are not HTML."""
    run = a_run(tmp_path_factory.mktemp("page"), device="1 x <b>cpu</b> & more caf\udce9")
    return page_of(run.rename(run.with_name("<script>alert(1)<script>")))


def test_contents(page):
    found = cells(page)
    assert found[:3] == ["", "untrained", "trained"]
    assert found[3:6] == [
        "STS-B dev: Spearman x 100, higher is better",
        "31.25",
        "75.00",
    ]
    assert found[6:9] == [
        "STS-B dev: uniformity, lower is better",
        "-",
        "-2.00",
    ]  # not measured before training
    assert {"STS12", "70.00", "76.37", "learning_rate", "versions: torch", "2.13"} <= set(
        found
    )  # 76.37: the paper's
    assert list(pictures(page)) == [
        "loss over the steps",
        "sts_b_dev_spearman over the steps",
        *(
            f"{name} over the steps"
            for name in ("tau_effective", "high_gradient", "high_share", "positive", "negative")
        ),
        CURVE,
        "Similarities of scored pairs before and after training",
        "Similarities of the pairs of the first and the last training batches",
    ]


def test_best_untrained_pooler(tmp_path):
    measured = {
        "avg": {"sts_b_dev_spearman": 40.0},
        "cls": {"sts_b_dev_spearman": 31.25},
        "last": {},
    }
    run = a_run(tmp_path, watched=False, similarities=False, untrained=measured)
    found = cells(page_of(run))
    assert found[1:4] == ["untrained, best pooler avg", "untrained", "trained"]
    assert [found[5:8], found[9:12]] == [["40.00", "31.25", "75.00"], ["-", "-", "-2.00"]]
    assert list(read_run(run).untrained_best_and_own) == ["avg", "cls"]  # of console and card


def test_loads_nothing_and_escapes_names(page):
    assert "default-src 'none'" in page
    assert not re.search(r"<script|<link|<iframe|javascript:|\son\w+=|@import|url\(|<b>", page)
    assert set(re.findall(r'(?:src|href)="([^:"]*:?)', page)) == {"data:"}
    links = re.findall(r'(?:href|src)="([^"]*)"', "".join(pictures(page).values()))
    assert all(link.startswith("#") for link in links)
    assert "caf\\udce9" in page
    assert "&lt;script&gt;alert(1)" in page


def test_page_without_similarity_log(tmp_path):
    page = page_of(a_run(tmp_path / "bare", watched=False, similarities=False))
    logs = ["loss over the steps", "sts_b_dev_spearman over the steps"]
    assert list(pictures(page)) == [*logs, CURVE]
    bare = page_of(a_run(tmp_path / "bare", name="sts-macl", watched=False, similarities=False))
    assert list(pictures(bare)) == logs
    assert "Similarities and temperature" not in bare


def test_several_runs(tmp_path, capsys):
    first, second = a_run(tmp_path), a_run(tmp_path, name="sts-constant-0.05")
    second = second.rename(tmp_path / "_of $x_{")  # neither hidden nor a formula
    assert main([str(first), str(second), "--format=html"]) == 0
    page = capsys.readouterr().out
    names = PRESET, "_of $x_{"
    difference = re.escape(f"{names[0]} - {names[1]} = +0.00 (1 seed")
    heading = "<h1>2 runs: bert-base-uncased on 3,000 texts of Wiki1M</h1>"
    assert re.search(rf"{heading}\n<p>.*{difference}", page)
    rows = dict(re.findall(r"<tr><td>(\w+)</td><td>(.*?)</td>", page[: page.index("All settings")]))
    assert rows["loss"] == "infonce(shifted_cosine(0.05, 0.07, shift=-0.4))"
    assert not {"learning_rate", "seed"} & rows.keys()
    assert page.count(f"<figcaption>{PRESET}</figcaption>") == 2
    curves = pictures(page)["loss over the steps"]
    assert all(f"<!-- {name} -->" in curves for name in (PRESET, "./_of $x_{"))  # the legend
    assert len(pictures(page)) == 10  # curves once for both; similarities by run


def test_curve_of_a_single_run(tmp_path, monkeypatch):
    drawn = {}

    def _picture(figure):
        axes = figure.axes[0]
        drawn[axes.get_title()] = [(line.get_label(), *line.get_data()) for line in axes.lines]
        return ""

    monkeypatch.setattr("dystress_text.analysis.page_drawings.picture", _picture)
    measured = {"avg": {"sts_b_dev_spearman": 40.0}, "cls": {"sts_b_dev_spearman": 31.25}}
    more = {"untrained": measured, "lexical": {"sts_b_dev_spearman": 50.0}, "best_step": 10}
    page_of(
        a_run(
            tmp_path,
            0,
            False,
            False,
            options=["--metric_for_best_model=sts_b_dev_spearman"],
            **more,
        )
    )
    (run, steps, values), kept, lexical = drawn["STS-B dev\nSpearman x 100, higher is better"]
    assert (run, [*steps], [*values]) == (
        "this run",
        [0, 10, 20],
        [31.25, 70, 80],
    )  # of the run's own pooler
    assert (kept[0], [*kept[1]], [*kept[2]]) == ("kept: step 10", [10], [70])
    assert (lexical[0], {*lexical[2]}) == ("TF-IDF/BM25", {50.0})
    ((_, steps, _),) = drawn["training loss\nlower is better"]
    assert [*steps] == [10, 20]


def test_image_run_without_temperature(tmp_path):
    record = {
        "program": "vision/train.py", "version": "2", "settings": {"dataset": "shapes"}, "loss": "byol()", "steps": 2,
        "train_seconds": 1.0, "device": "1 x cpu", "untrained": {"knn20": 50.0},
        "trained": {"knn20": 60.0},
    }  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    page = render_page([FinishedRun(tmp_path, RunRecord.from_json(record))])
    assert "<h1>image encoder on shapes</h1>" in page
    accuracy = "20 nearest neighbours: accuracy x 100, higher is better"
    assert cells(page)[:6] == ["", "untrained", "trained", accuracy, "50.00", "60.00"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", '{"program": "dystress_text/train.py", "version": ""}'),
        ("metrics.jsonl", "no log"),
    ],
)
def test_failed_page_is_one_line(tmp_path, file, content):
    run = a_run(tmp_path)
    (run / file).write_text(content)
    line = leave_text_report(run)
    assert line.startswith("no report.html: ")
    assert not (run / "report.html").exists()


def test_pyplot_is_left_alone(tmp_path):
    """In a new process that has chosen a backend, as a notebook does."""
    run = a_run(tmp_path)
    script = """
import sys
import matplotlib
matplotlib.use("svg")
from matplotlib import pyplot
from dystress_text.analysis.page_drawings import galleries
from dystress_text.analysis.runs import read_finished
from pathlib import Path
runs, _ = read_finished([Path(sys.argv[1])])
assert any(pictures for _, pictures in galleries(runs))
print(matplotlib.get_backend(), pyplot.get_fignums(), matplotlib.rcParams["axes.grid"])
"""
    done = subprocess.run([sys.executable, "-c", script, run], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("svg [] False\n", 0), done.stderr
