"""Tables of runs against NumPy and SciPy."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sweep_runs import error_of, write_results, write_run

from dystress_text.analysis.tables import (
    Comparisons,
    sections,
    verdict,
)
from dystress_text.analysis.text_runs import TRAINING, read_text_runs
from dystress_text.evaluation.catalogue import TASKS
from dystress_text.evaluation.retrieval import METRICS
from dystress_text.programs.report import main

CONSTANT, SHIFTED = "sts-constant-0.05", "sts-shifted-0.4-0.05-0.07"
# by configuration and seed: each task's figure is this plus its place in the table
FIGURES = {
    CONSTANT: [70.0, 71.0, 72.5],
    "sts-macl": [71.0, 70.0, 73.5],
    SHIFTED: [70.5, 72.0, 73.0],
}


@pytest.fixture
def sweep(tmp_path):
    for name, figures in FIGURES.items():
        for seed, figure in enumerate(figures):
            write_run(tmp_path / "sweep", name, seed, figure)
    return tmp_path / "sweep"


def compared(folder, *baselines):
    return Comparisons(*read_text_runs([folder]), baselines)


def tables(folder, *baselines):
    """The tables by title, each by the first cells of its lines."""
    found = sections(compared(folder, *baselines))
    return {
        title: [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
        for title, lines in found
    }


@pytest.fixture
def printed(capsys):
    """What the program prints."""

    def of(*argv):
        assert main([*map(str, argv)]) == 0
        return capsys.readouterr().out

    return of


def interval(*differences, level=0.95):
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(level)
    return f"{low:+.2f} to {high:+.2f}"


def test_means_deviations_and_paper_figures(sweep):
    lines = tables(sweep)["STS, Spearman x 100"]
    assert [line[""] for line in lines][::3] == [
        f"{name}, 3 seeds" for name in FIGURES
    ]  # in the paper's order
    ours, paper, gap = lines[6:]
    figures = np.array(FIGURES[SHIFTED]) + 1
    assert ours["STS13"] == f"{figures.mean():.2f} ± {figures.std(ddof=1):.2f}"
    assert (paper[""], paper["STS13"], paper["avg"]) == (
        "  paper: DySTreSS* 0.05/0.07",
        "80.61",
        "76.37",
    )
    assert gap["STS13"] == f"{figures.mean() - 80.61:+.2f}"
    assert ours["avg"].startswith(f"{np.mean(FIGURES[SHIFTED]) + 3:.2f} ")
    assert lines[4]["avg"] == "75.45"  # of its figures, not as printed


def test_differences_are_paired_by_seed(sweep):
    found = {(each.name, each.baseline): each.difference for each in compared(sweep).comparisons}
    shifted, macl = found[SHIFTED, CONSTANT], found["sts-macl", CONSTANT]
    p = [
        stats.ttest_1samp(differences, 0).pvalue
        for differences in ([0.5, 1.0, 0.5], [1.0, -1.0, 1.0])
    ]
    assert (shifted.n, shifted.p, shifted.corrected) == pytest.approx((3, p[0], 2 * p[0]))
    assert str(shifted) == f"+0.67 ({interval(0.5, 1.0, 0.5)})"
    assert (macl.p, macl.corrected) == pytest.approx((p[1], p[1]))
    for name, figures in (("0.07", (70.0, 70.9)), ("0.04", (9.0,)), ("0.03", (85.0, 86.1, 87.3))):
        for seed, figure in enumerate(figures):
            write_run(sweep, f"sts-constant-{name}", seed, figure)
    against = compared(sweep).comparisons
    assert [(one.baseline, one.difference.n) for one in against if one.name == SHIFTED] == [
        (CONSTANT, 3),
        ("sts-constant-0.07", 2),
    ]
    assert {one.baseline for one in compared(sweep, "sts-macl").comparisons} == {"sts-macl"}
    lines = verdict(compared(sweep))
    (higher,) = [line for line in lines if ": significant" in line]
    corrected = interval(15.0, 15.1, 14.8, level=1 - 0.05 / 5)  # five have two seeds
    assert (
        f"; sts-constant-0.03 - {CONSTANT} = +14.97 (95 % CI {corrected}; 3 seeds; p = " in higher
    )
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("seeds", "line"),
    [(3, f"+0.67 (95 % CI {interval(0.5, 1.0, 0.5)}; 3 seeds; p = {{:.3f}}): not significant"),
     (2, f"+0.75 (95 % CI {interval(0.5, 1.0)}; 2 seeds; p = {{:.3f}}): not significant"),
     (1, "+0.50 (1 seed, no interval)")],
)  # fmt: skip
def test_few_seeds(tmp_path, printed, seeds, line):
    for seed in range(seeds):
        for name in (CONSTANT, SHIFTED):
            write_run(tmp_path, name, seed, FIGURES[name][seed])
    p = stats.ttest_1samp([0.5, 1.0, 0.5][:seeds], 0).pvalue
    mean = np.mean(FIGURES[SHIFTED][:seeds]) + 3
    said = f"{SHIFTED} scores highest on avg (STS, Spearman x 100): {mean:.2f}; "
    said += f"{SHIFTED} - {CONSTANT} = {line.format(p)}."
    assert verdict(compared(tmp_path)) == [said]
    assert printed(tmp_path).startswith(f"{said}\n\n")  # the tables follow


def test_configurations_with_other_differences(tmp_path, printed):
    write_run(tmp_path, "small", 0, 70.0, ["--preset=small"])
    write_run(tmp_path, CONSTANT, 0, 36.0)
    nothing, differ = verdict(compared(tmp_path))
    assert "model_name_or_path, pooler_type," in differ
    assert "--baseline" in nothing
    assert compared(tmp_path).comparisons == []
    difference, last = verdict(compared(tmp_path, CONSTANT))
    assert last == differ
    assert difference.endswith(f"small - {CONSTANT} = +34.00 (1 seed, no interval).")
    text = printed(tmp_path)
    assert "Setup of small: bert-mini-wiki, avg, 20 steps of 64, learning rate 0.0001, " in text
    assert text.count("  paper: ") == 1
    write_run(tmp_path / "b", CONSTANT, 0, 36.0)
    write_run(tmp_path / "b", "sts-macl", 0, 36.0, corpus={"sentences": 3000, "sha256": "f" * 64})
    assert compared(tmp_path / "b").away(CONSTANT, "sts-macl") == ["training text"]


OWN = {"0.05": [36.0, 37.0, 35.5], "0.1": [39.0, 38.5, 39.5], "0.2": [38.2, 37.1, 38.7]}


def own_pairs(folder, *taus):
    """Runs of the preset own-text with DCL, the untrained model, and the lexical baseline."""
    folder.mkdir(exist_ok=True)
    for name, model, figure in (("lexical", "lexical", 36.3), ("untrained", "x/untrained", 20.0)):
        write_results(
            folder / name, {"mine": {"spearman": figure, "sha256": "a"}}, "pairs", model=model
        )
    for tau in taus:
        for seed, figure in enumerate(OWN.get(tau, OWN["0.2"])):
            options = ["--preset=own-text", f"--loss=dcl({tau})"]
            run = write_run(folder, f"dcl-{tau}", seed, 0.0, options, tasks=())
            write_results(run, {"mine": {"spearman": figure, "sha256": "a"}}, "pairs")
    return folder


def test_own_pairs_and_the_presets_loss(tmp_path, printed):
    folder = own_pairs(tmp_path / "runs", *OWN)
    found = {each.name: each for each in compared(folder).comparisons}
    assert {name: each.baseline for name, each in found.items()} == {
        "dcl(0.05)": "dcl(0.1)",
        "dcl(0.2)": "dcl(0.1)",
    }
    for tau in ("0.05", "0.2"):
        wanted = stats.ttest_rel(OWN[tau], OWN["0.1"]).pvalue
        assert found[f"dcl({tau})"].difference.p == pytest.approx(wanted)
    answer, other = verdict(compared(folder))
    assert answer.startswith("dcl(0.1) scores highest on mine (Own pairs, Spearman x 100): 39.00; ")
    assert " dcl(0.2) - dcl(0.1) = -1.00 (95 % CI " in answer
    assert answer.endswith("TF-IDF/BM25 scores 36.30. untrained scores 20.00.")
    assert "dcl(0.05) - dcl(0.1) = -2.83 (" in other
    text = printed(folder)
    assert re.search(r"^TF-IDF/BM25 +36\.30$", text, re.MULTILINE)
    assert "Compared with dcl(0.1): the preset's own loss; --baseline names others" in text
    (tmp_path / "runs.jsonl").write_text(printed(folder, "--format=jsonl"))
    assert printed(tmp_path / "runs.jsonl") == text


@pytest.mark.parametrize(
    ("taus", "named", "pairs"),
    [(OWN, "dcl(0.05)", {("0.1", "0.05"), ("0.2", "0.05")}),
     (OWN, "dcl-0.05", {("0.1", "0.05"), ("0.2", "0.05")}),
     (("0.05", "0.2"), None, {("0.2", "0.05")}),  # SimCSE's temperature
     (("0.2", "0.3", "0.4"), None, {("0.2", "0.3"), ("0.2", "0.4"), ("0.3", "0.4")})],
)  # fmt: skip
def test_baselines(tmp_path, taus, named, pairs):
    found = compared(own_pairs(tmp_path, *taus), *([named] if named else [])).comparisons
    names = {(each.name, each.baseline) for each in found}
    assert names == {(f"dcl({name})", f"dcl({other})") for name, other in pairs}


def sts(figure, sums="a"):
    return {"STS-B": {"spearman": figure, "sha256": {"sts-test.csv": sums}}}


def cisi(figure, sums="a"):
    return {"cisi": dict.fromkeys(METRICS, 9.0) | {"nDCG@10": figure, "sha256": sums}}


@pytest.mark.parametrize(
    ("ours", "theirs", "about", "why"),
    [(sts(70), sts(60), {}, None),
     (sts(70), sts(60, "b"), {}, "other data (STS-B)"),
     ({"STS-B": {"spearman": 7.0}}, sts(60), {}, "other data (STS-B)"),  # one is not known
     (sts(70), sts(60), {"dtype": "bf16"}, "other dtype (STS-B)"),
     (cisi(9.0), cisi(7.0, "b"), {"group": "retrieval"}, "other data (cisi nDCG@10)")],
)  # fmt: skip
def test_other_measurements_are_not_compared(tmp_path, printed, ours, theirs, about, why):
    group = {name: about[name] for name in about.keys() & {"group"}}
    for seed in range(3):
        write_results(write_run(tmp_path / "runs", SHIFTED, seed, 0.0, tasks=()), ours, **about)
        write_results(write_run(tmp_path / "runs", CONSTANT, seed, 0.0, tasks=()), theirs, **group)
    lines = verdict(compared(tmp_path / "runs"))
    (tmp_path / "runs.jsonl").write_text(printed(tmp_path / "runs", "--format=jsonl"))
    assert verdict(compared(tmp_path / "runs.jsonl")) == lines  # the sums go along
    if why is None:
        assert f"{SHIFTED} - {CONSTANT} = +10.00 " in lines[0]
    else:
        refused = f"{SHIFTED} - {CONSTANT} not compared: measured with {why}"
        assert lines[-1].endswith(refused)
        assert not any("= " in line for line in lines)


def test_newest_results_in_test_mode(tmp_path):
    run = write_run(tmp_path, CONSTANT, 0, 70.0, tasks=())
    mr = {name: {"MR": {"accuracy": figure}} for name, figure in (("test", 80.0), ("fast", 79.0))}
    write_results(run, sts(50), weights="old")
    write_results(run, {"STS12": {"spearman": 1.0}}, weights="old")
    for mode in ("test", "fast"):
        write_results(run, mr[mode], "senteval/transfer", weights="new", mode=mode)
    write_results(run, sts(60), weights="new")
    write_results(run, sts(61, "b"), weights="new")
    write_results(run, sts(9), weights="new", pooler_type="cls")  # not the model as it is saved
    (found,) = read_text_runs([run])[0]
    shown = {group: row for group, row in found.figures.items() if group != TRAINING}
    assert shown == {"senteval/sts": {"STS-B": 61}, "senteval/transfer": {"MR": 80.0}}
    assert found.measured["senteval/transfer"]["MR"]["mode"] == "test"


@pytest.mark.parametrize(
    ("options", "group", "tasks", "chose"),
    [("", "senteval/sts", [], None),  # the development set alone was measured
     ("--eval_set=stsb_test", "senteval/sts", ["STS12", "STS-B"], "STS-B"),
     ("--eval_transfer=MR", "senteval/transfer", ["MR"], "MR"),
     ("--eval_retrieval=x/cisi", "retrieval", ["cisi"], "cisi nDCG@10")],
)  # fmt: skip
def test_sets_that_selected_the_checkpoint(tmp_path, printed, options, group, tasks, chose):
    metrics = {"stsb_test": "sts_b_test_spearman", "MR": "mr_dev_accuracy", "x/cisi": "cisi_mrr@10"}
    metric = metrics.get(options.partition("=")[2], "sts_b_dev_spearman")
    for seed in range(3):
        for name, figure in ((SHIFTED, 90.0), (CONSTANT, 10.0)):
            argv = [*options.split(), f"--metric_for_best_model={metric}"]
            place = write_run(tmp_path, name, seed, 0.0, argv, tasks=(), trained={metric: figure})
            entry = dict.fromkeys(("spearman", "accuracy", *METRICS), figure)
            write_results(place, dict.fromkeys(tasks, entry), group)
    lines = verdict(compared(tmp_path))
    assert "dystress senteval --model FOLDER" in lines[0]
    assert not any("= " in line for line in lines)
    assert [line.partition(": ")[2].partition(": ")[2] for line in lines[1:]] == (
        [f"{chose} selected the checkpoint"] if chose else []
    )
    (tmp_path / "runs.jsonl").write_text(printed(tmp_path, "--format=jsonl"))
    assert verdict(compared(tmp_path / "runs.jsonl")) == lines


def test_evaluated_models(sweep, tmp_path, monkeypatch, printed, capsys):
    for name, model, pooler, figure in (
        ("base", "x/base", "cls", 30.0),
        ("here", "owner/of-the-hub", None, 40.0),
    ):
        variant = {"data_variant": f"of {model}"}
        tasks = {task: {"spearman": figure + i, **variant} for i, task in enumerate(TASKS["sts"])}
        write_results(tmp_path / name, tasks, model=model, pooler_type=pooler)
    monkeypatch.chdir(tmp_path / "here")
    places = "../base", "results.jsonl", sweep
    text = printed(*places)
    rows = dict(re.findall(r"^(base, cls|of-the-hub) +([\d. ]+)$", text, re.MULTILINE))
    assert rows["base, cls"].split() == [f"{figure:.2f}" for figure in (*range(30, 37), 33)]
    assert rows["of-the-hub"].split() == [f"{figure:.2f}" for figure in (*range(40, 47), 43)]
    assert "evaluation: of owner/of-the-hub" in text
    (tmp_path / "runs.jsonl").write_text(printed(*places, "--format=jsonl"))
    assert printed(tmp_path / "runs.jsonl") == text
    assert "base, cls" in printed(tmp_path)  # of a folder of models
    assert "of-the-hub" in printed(".")
    assert "--format" in error_of(capsys, ".", "--format=html", main=main)


def test_styles_and_notes(sweep, printed):
    markdown, latex, text = (
        printed(sweep, f"--format={style}") for style in ("markdown", "latex", "text")
    )
    assert "## STS, Spearman x 100\n\n| " in markdown
    assert "% STS, Spearman x 100\n\\begin{tabular}{lrrrrrrrr}" in latex
    assert r"71.50 $\pm$ 1.80 & " in latex  # 71, 70, 73.5
    assert "paired t test" in text
    write_run(sweep, "sts-macl", 7, 70.0, unfinished=True)
    write_run(sweep, "short", 0, 70.0, ["--preset=sts-macl", "--max_steps=20"], tasks=("STS12",))
    write_run(
        sweep, "grid-temp=0.2", 0, 70.0, ["--temp=0.2"], data_variants={"train_file": "a sample"}
    )
    text = printed(sweep)
    for said in (
        "--max_steps 20",
        "train_file: a sample\n",
        "sts-macl-seed-7\n",
        ": bert-base-uncased, cls, 20 steps of 64, learning rate 3e-05, 3,000 sentences (sha256 0123",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("options", "row"),
    [
        ("--preset=paper", "DySTreSS* 0.05/0.07"),
        ("--preset=sts-macl", "MACL (repro.)"),
        ("--preset=sts-macl --do_mlm", None),
        ("--preset=sts-macl --temp=0.05", None),
        ("--preset=sts-macl --model_name_or_path=x/bert-mini", None),
        ("--preset=sts-macl --train_file=mine.txt", None),
        ("--preset=small", None),
    ],
)
def test_paper_rows(tmp_path, options, row):
    write_run(tmp_path, "mine", 0, 70.0, options.split())
    ((run,), *_) = read_text_runs([tmp_path])
    assert getattr(run.paper_row, "name", None) == row
    assert replace(run, variants=["a sample"]).paper_row is None


def test_missing_tasks(tmp_path):
    write_run(tmp_path / "a", CONSTANT, 0, 70.0)
    write_run(tmp_path / "a", CONSTANT, 1, 70.0, tasks=TASKS["sts"][:2])
    line, *_ = tables(tmp_path / "a")["STS, Spearman x 100"]
    assert (line["STS13"], line["STS14"], line["avg"]) == (
        "71.00 ± 0.00",
        "72.00 (1 of 2)",
        "73.00 (1 of 2)",
    )
    write_run(tmp_path / "b", CONSTANT, 0, 70.0, tasks=("STS12", "STS-B"))
    ours, paper, _ = tables(tmp_path / "b")["STS, Spearman x 100"]
    assert [*ours][1:] == ["STS12", "STS-B", "avg of 2"]
    assert (ours["avg of 2"], paper["avg of 2"]) == ("70.50", f"{(65.10 + 76.47) / 2:.2f}")


@pytest.mark.parametrize(
    ("spoil", "argv", "name"),
    [(lambda folder: write_run(folder, CONSTANT, 0, 1.0, ["--max_steps=9"]), "a b", "max_steps"),
     (lambda folder: write_run(folder, CONSTANT, 1, 1.0), "a b", "seed"),
     (lambda folder: write_run(folder, "x", 1, 1.0, program="vision/train.py"), "a b", "run.json"),
     (lambda folder: (write_run(folder, "x", 1, 1.0) / "run.json").write_text("{"), "a b", "run.json"),
     (lambda folder: write_run(folder, "x", 0, 1.0, unfinished=True), "b", "x-seed-0"),
     (lambda folder: folder.write_text('{"name": "a"}'), "a b.jsonl", "b.jsonl: line 1"),
     (lambda folder: folder.write_text('\n{'), "a b.jsonl", "b.jsonl: line 2"),
     (lambda folder: None, "a --baseline nobody", "--baseline")],
)  # fmt: skip
def test_invalid_places(tmp_path, monkeypatch, spoil, argv, name, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", CONSTANT, 1, 70.0)
    spoil(tmp_path / argv.split()[-1])
    assert name in error_of(capsys, *argv.split(), main=main)
