"""The page of a run, and of several."""

import base64
import html
import json
import re

import pytest
from sweep_runs import PRESET, a_run

from dystress_text.analysis.compared_models import read_compared_models
from dystress_text.analysis.finished_run import FinishedRun, leave_report
from dystress_text.analysis.page import render_page
from dystress_text.analysis.tables import text_page
from dystress_text.programs.report import main
from dystress_text.training.run_record import RunRecord

CURVE = "Temperature and logit over the similarity of a pair"


def pictures(page):
    """What each picture shows, and its SVG."""
    found = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)">', page)
    return {html.unescape(alt): base64.b64decode(source).decode() for source, alt in found}


def page_of(run):
    return text_page(read_compared_models([run]))


def cells(page):
    found = re.findall(r'<t[hd](?: class="text")?>(.*?)</t[hd]>', page)
    return [html.unescape(cell) for cell in found]


@pytest.fixture(scope="module")
def page(tmp_path_factory, galleries):
    """The page of a run with all that a page shows, and with names that are not HTML."""
    run = a_run(tmp_path_factory.mktemp("page"), device="1 x <b>cpu</b> & more caf\udce9")
    run = run.rename(run.with_name("<script>alert(1)<script>"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dystress_text.analysis.page.galleries", galleries)
        return page_of(run)


def test_contents(page):
    found = cells(page)
    assert found[:3] == ["", "untrained", "trained"]
    assert found[3:6] == ["STS-B dev: Spearman x 100, higher is better", "31.25", "75.00"]
    # not measured before training
    assert found[6:9] == ["STS-B dev: uniformity, lower is better", "-", "-2.00"]
    assert {"STS12", "70.00", "learning_rate", "versions: torch", "2.13"} <= set(found)
    logged = ("loss", "sts_b_dev_spearman", "tau_effective", "positive", "negative")
    scored = "Similarities of scored pairs before and after training"
    assert set(pictures(page)) == {*(f"{name} over the steps" for name in logged), CURVE, scored}


def test_loads_nothing_and_escapes_names(page):
    assert "default-src 'none'" in page
    assert not re.search(r"<script|<link|<iframe|javascript:|\son\w+=|@import|url\(|<b>", page)
    assert set(re.findall(r'(?:src|href)="([^:"]*:?)', page)) == {"data:"}
    links = re.findall(r'(?:href|src)="([^"]*)"', "".join(pictures(page).values()))
    assert all(link.startswith("#") for link in links)
    assert "caf\\udce9" in page
    assert "&lt;script&gt;alert(1)" in page


def test_best_untrained_pooler(tmp_path):
    measured = {"avg": {"sts_b_dev_spearman": 40.0}, "cls": {"sts_b_dev_spearman": 31.25}}
    found = cells(page_of(a_run(tmp_path, untrained=measured)))
    assert found[1:4] == ["untrained, best pooler avg", "untrained", "trained"]
    assert found[5:8] == ["40.00", "31.25", "75.00"]
    assert found[9:12] == ["-", "-", "-2.00"]


@pytest.mark.usefixtures("with_pictures")
def test_several_runs(tmp_path, capsys):
    a_run(tmp_path)
    a_run(tmp_path, name="sts-macl", watched=False)
    assert main([str(tmp_path), "--format=html"]) == 0
    page = capsys.readouterr().out
    assert "<h1>2 runs: bert-base-uncased trained on 3,000 texts of Wiki1M</h1>\n<p>" in page
    assert " scores highest on avg (STS, Spearman x 100): " in page
    rows = dict(re.findall(r"<tr><td>(\w+)</td><td>(.*?)</td>", page[: page.index("All settings")]))
    assert rows["loss"] == "macl(alignment_adaptive(0.05, alpha=2, a_0=0.8))"
    assert not {"learning_rate", "seed"} & rows.keys()
    drawn = pictures(page)
    assert all(name in drawn["sts_b_dev_spearman over the steps"] for name in (PRESET, "sts-macl"))
    assert "loss over the steps" not in drawn  # two losses have no scale in common
    assert CURVE in drawn


@pytest.mark.usefixtures("with_pictures")
def test_curve_of_a_single_run(tmp_path, monkeypatch):
    drawn = {}

    def keep(figure):
        axes = figure.axes[0]
        drawn[axes.get_title()] = {line.get_label(): line.get_data() for line in axes.lines}
        return ""

    monkeypatch.setattr("dystress_text.analysis.page._uri", keep)
    metric = "sts_b_dev_spearman"
    run = a_run(
        tmp_path,
        options=[f"--metric_for_best_model={metric}"],
        untrained={"avg": {metric: 40.0}, "cls": {metric: 31.25}},
        lexical={metric: 50.0},
        best_step=10,
    )
    page_of(run)
    lines = drawn["STS-B dev\nSpearman x 100, higher is better"]
    steps, values = lines["this run"]
    assert list(steps) == [0, 10, 20]
    assert list(values) == [31.25, 70, 80]  # of the run's own pooler
    assert list(lines["kept"][0]) == [10, 10]
    assert set(lines["TF-IDF/BM25"][1]) == {50.0}
    density = drawn["STS-B dev, before training"]["random pairs"][1]
    assert density.mean() * 2 == pytest.approx(1)  # over [-1, 1]


@pytest.mark.usefixtures("with_pictures")
def test_a_constant_temperature_is_not_drawn(tmp_path):
    run = a_run(tmp_path, name="sts-constant-0.05")
    first = {"step": 1, "tau_effective": 0.05, "positive": 0.5, "negative": 0.1}
    second = {"step": 2, "tau_effective": 0.05 + 1e-9, "positive": 0.6, "negative": 0.1}
    log = f"{json.dumps(first)}\n{json.dumps(second)}\n"
    (run / "similarity.jsonl").write_text(log)
    drawn = pictures(page_of(run))
    assert "positive over the steps" in drawn
    assert "tau_effective over the steps" not in drawn
    assert CURVE not in drawn


def test_columns_of_text_are_left_aligned_with_their_headers(tmp_path):
    """Short texts in the column too; figures are not."""
    texts = [["a text", "one", "two", "three"], ["x " * 40, "one", "two", "three"]]
    run = a_run(tmp_path, samples={"untrained": texts, "trained": texts})
    page = page_of(run)
    for name in ("text", "untrained", "trained"):
        assert f'<th class="text">{name}</th>' in page
    assert '<td class="text">a text</td>' in page
    assert '<td class="text">70' not in page


@pytest.mark.parametrize(
    ("counts", "options", "title"),
    [
        (
            {"columns": 2, "samples": 2697},
            ["--preset=own-text", "--train_file=tickets.csv"],
            "word vectors trained on 2,697 rows of tickets.csv",
        ),
        ({"columns": 1}, [], "bert-base-uncased trained on 6,000 texts of Wiki1M"),
    ],
)
def test_title_counts_what_was_trained_on(tmp_path, counts, options, title):
    """Records of earlier versions have no number of samples."""
    corpus = {"sentences": 6000, "sha256": "0" * 64, **counts}
    assert f"<h1>{title}</h1>" in page_of(a_run(tmp_path, corpus=corpus, options=options))


def test_image_run_without_temperature(tmp_path):
    record = {
        "program": "vision/train.py",
        "settings": {"dataset": "shapes", "loss": "byol()"},
        "steps": 2,
        "untrained": {"": {"knn20": 50.0}},
        "trained": {"knn20": 60.0},
    }
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    page = render_page([FinishedRun(tmp_path, RunRecord.from_json(record))])
    assert "<h1>image encoder on shapes</h1>" in page
    assert cells(page)[:6] == ["", "untrained", "trained", "knn20", "50.00", "60.00"]


def test_failed_page_is_one_line(tmp_path):
    run = a_run(tmp_path)
    (run / "run.json").write_text("{")
    assert leave_report(run, lambda: page_of(run)).startswith("no report.html: ")
    assert not (run / "report.html").exists()
