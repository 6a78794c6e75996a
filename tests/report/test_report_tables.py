"""Tables of a sweep: figures against numpy and SciPy, the paper's beside them, and what is said
below.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sweep_runs import error_of, record_of, write_run

from dystress_text.evaluation.catalogue import TASKS
from dystress_text.evaluation.retrieval import METRICS
from dystress_text.evaluation.run import Results
from dystress_text.programs.report import main
from dystress_text.report.tables import (
    Comparisons,
    groups_of,
    not_the_papers,
    paper_row,
    sections,
    verdict,
)
from dystress_text.report.text_runs import TRAINING, TextRun, read_text_runs
from dystress_text.simcse.arguments import parse
from dystress_text.training.run_folder import evaluation_file

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


def interval(*differences):
    low, high = stats.ttest_1samp(differences, 0).confidence_interval()
    return f"{low:+.2f} to {high:+.2f}"


def test_means_deviations_and_the_papers_figures(sweep):
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


def test_differences_are_paired_by_seed_tested_and_put_into_words(sweep, printed):
    title, where = "STS, Spearman x 100: differences over seeds", "avg (STS, Spearman x 100)"
    macl, shifted = (list(line.values()) for line in tables(sweep)[title])
    p = [
        stats.ttest_1samp(differences, 0).pvalue
        for differences in ([0.5, 1.0, 0.5], [1.0, -1.0, 1.0])
    ]
    assert shifted == [
        SHIFTED,
        CONSTANT,
        "3",
        "+0.67",
        interval(0.5, 1.0, 0.5),
        f"{p[0]:.3f}",
        f"{2 * p[0]:.3f}",
    ]
    assert [macl[0], *macl[5:]] == ["sts-macl", f"{p[1]:.3f}", f"{p[1]:.3f}"]
    for name, figures in (("0.07", (70.0, 70.9)), ("0.04", (9.0,)), ("0.03", (85.0, 86.1, 87.3))):
        for seed, figure in enumerate(figures):
            write_run(sweep, f"sts-constant-{name}", seed, figure)
    against = [list(line.values()) for line in tables(sweep)[title]]
    assert [line[1:3] for line in against if line[0] == SHIFTED] == [
        [CONSTANT, "3"],
        ["sts-constant-0.07", "2"],
    ]
    assert [line[4:6] for line in against if line[0] == "sts-constant-0.04"] == [
        ["one seed: no interval", "-"]
    ]
    assert {line["baseline"] for line in tables(sweep, "sts-macl")[title]} == {"sts-macl"}
    told, merged, empty = printed(sweep).splitlines()[:3]
    low, high = stats.ttest_1samp([15.0, 15.1, 14.8], 0).confidence_interval(
        1 - 0.05 / 5
    )  # five have two seeds
    told_from = f"sts-constant-0.03 is 14.97 above {CONSTANT} in {where}; 3 seeds can tell: the 95 % interval, "
    corrected = f"corrected for 5 comparisons (Holm), is {low:+.2f} to {high:+.2f}."
    assert (told, empty) == (told_from + corrected, "")  # the tables follow
    assert merged == f"5 of 6 differences in {where} are not told from none."


@pytest.mark.parametrize(
    ("seeds", "words"),
    [(3, f"= +0.67 in {{}} (95 % CI {interval(0.5, 1.0, 0.5)}; 3 seeds): not significant."),
     (2, f"= +0.75 in {{}} (95 % CI {interval(0.5, 1.0)}; 2 seeds): 2 seeds are too few to tell."),
     (1, "= +0.50 in {} (one seed: no interval).")],
)  # fmt: skip
def test_a_verdict_says_when_seeds_cannot_tell_and_claims_nothing_then(
    tmp_path, printed, seeds, words
):
    for seed in range(seeds):
        for name in (CONSTANT, SHIFTED):
            write_run(tmp_path, name, seed, FIGURES[name][seed])
    line = words.format("avg (STS, Spearman x 100)")
    assert verdict(compared(tmp_path)) == [f"{SHIFTED} - {CONSTANT} {line}"]
    assert not re.search("above|higher|better", printed(tmp_path))


def test_configurations_that_differ_in_more_are_no_comparison_of_temperatures(tmp_path, printed):
    write_run(tmp_path, "small", 0, 70.0, ["--preset=small"])
    write_run(tmp_path, CONSTANT, 0, 36.0)
    differ, nothing = verdict(compared(tmp_path))
    assert differ.startswith(
        "The configurations differ in more than the temperature: model_name_or_path, pooler_type,"
    )
    assert nothing.startswith(
        "Nothing is compared: there is no constant that differs in nothing else"
    )
    difference = (
        f"small - {CONSTANT} = +34.00 in avg (STS, Spearman x 100) (one seed: no interval)."
    )
    doing = " It is no temperature's doing alone: they differ in model_name_or_path, "
    assert difference + doing in printed(tmp_path, "--baseline", CONSTANT)
    text = printed(tmp_path)
    assert "Setup of small: bert-mini-wiki, avg, 20 steps of 64, learning rate 0.0001, " in text
    assert text.count("  paper: ") == 1  # bert-mini-wiki has no row
    write_run(tmp_path / "b", CONSTANT, 0, 36.0)
    write_run(tmp_path / "b", "sts-macl", 0, 36.0, corpus={"sentences": 3000, "sha256": "f" * 64})
    first, *_ = verdict(compared(tmp_path / "b"))
    assert first == "The configurations differ in more than the temperature: training text."


def evaluation(place, suite="senteval", tasks=(), **about):
    """The result file of an evaluation that a run or a model has."""
    content = {
        "suite": suite,
        "mode": "test",
        "dtype": "fp32",
        "pooler_type": None,
        "data_variant": None,
        **about,
    }
    place.mkdir(exist_ok=True)
    (place / f"senteval-{suite}-{content['mode']}.json").write_text(
        json.dumps({**content, "tasks": dict(tasks)})
    )


def result(figure, sums="a"):
    return {"STS-B": {"spearman": figure, "sha256": {"sts-test.csv": sums}}}


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [({"tasks": result(70)}, {"tasks": result(60)}, None),
     ({"tasks": result(70)}, {"tasks": result(60, "b")}, "other data (STS-B)"),
     ({"tasks": {"STS-B": {"spearman": 7.0}}}, {"tasks": result(60)}, "other data (STS-B)"),  # one is not known
     ({"tasks": result(70), "dtype": "bf16"}, {"tasks": result(60)}, "other dtype (STS-B)"),
     ({"retrieval": {"cisi": {"nDCG@10": 9.0, "MRR@10": 9.0, "recall@100": 9.0, "sha256": "a"}}},
      {"retrieval": {"cisi": {"nDCG@10": 7.0, "MRR@10": 9.0, "recall@100": 9.0, "sha256": "b"}}},
      "other data (cisi nDCG@10)")],
)  # fmt: skip
def test_what_was_measured_otherwise_is_not_compared_and_a_line_says_why(
    tmp_path, printed, ours, theirs, why
):
    for seed in range(3):
        for name, about in ((SHIFTED, ours), (CONSTANT, theirs)):
            evaluation(write_run(tmp_path / "runs", name, seed, 0.0, tasks=()), **about)
    first = printed(tmp_path / "runs").splitlines()[0]
    (tmp_path / "runs.jsonl").write_text(printed(tmp_path / "runs", "--format=jsonl"))
    assert printed(tmp_path / "runs.jsonl").splitlines()[0] == first  # the sums go along
    if why is None:
        assert f"{SHIFTED} is 10.00 above {CONSTANT}" in first
    else:
        assert re.fullmatch(
            rf"{re.escape(SHIFTED)} and {CONSTANT} are not compared in .*: measured with {re.escape(why)}\.",
            first,
        )
        assert " above " not in printed(tmp_path / "runs")


def test_tables_say_where_figures_of_one_name_are_of_other_data_modes_or_development_sets(
    tmp_path, printed
):
    evaluation(tmp_path / "base", model="x/base", tasks=result(60, "b"))
    both = result(60) | {"MR": {"accuracy": 80.0, "sha256": {"pos": "a"}}}
    evaluation(tmp_path / "fast", model="x/fast", tasks=both, mode="fast")
    for name, more in (
        ("mine", {"eval_sha256": {"sts_b_dev": "a"}}),
        ("yours", {"eval_sha256": {"sts_b_dev": "b"}}),
    ):
        evaluation(write_run(tmp_path, name, 0, 0.0, tasks=(), **more), tasks=both)
    of_runs = "Development set, by the model that was kept: figures of one name were measured with other data ("
    assert f"{of_runs}sts_b_dev_spearman, sts_b_dev_uniformity), and do not compare." in printed(
        tmp_path
    )
    sts = "STS, Spearman x 100: figures of one name were measured with other data (STS-B), and do not compare."
    assert sts in printed(tmp_path / "mine-seed-0", tmp_path / "base")
    mode = "Transfer, accuracy x 100: figures of one name were measured with other mode (MR), and do not compare."
    text = printed(tmp_path / "mine-seed-0", tmp_path / "fast" / "senteval-senteval-fast.json")
    assert mode in text
    assert "STS, Spearman x 100: figures of one name" not in text


@pytest.mark.parametrize(
    ("options", "about", "chose"),
    [("", {"tasks": {}}, None),  # the development set alone was measured
     ("--eval_set=stsb_test", {"tasks": {"STS12": {"spearman": 0}, "STS-B": {"spearman": 0}}}, "STS-B"),
     ("--eval_transfer=MR", {"tasks": {"MR": {"accuracy": 0}}}, "MR"),
     ("--eval_retrieval=x/cisi", {"retrieval": {"cisi": dict.fromkeys(METRICS, 0)}}, "cisi nDCG@10")],
)  # fmt: skip
def test_a_set_that_chose_the_step_judges_nothing(tmp_path, printed, options, about, chose):
    metrics = {"stsb_test": "sts_b_test_spearman", "MR": "mr_dev_accuracy", "x/cisi": "cisi_mrr@10"}
    metric = metrics.get(options.partition("=")[2], "sts_b_dev_spearman")
    for seed in range(3):
        for name, figure in ((SHIFTED, 90.0), (CONSTANT, 10.0)):
            words = [*options.split(), f"--metric_for_best_model={metric}"]
            place = write_run(tmp_path, name, seed, 0.0, words, tasks=(), trained={metric: figure})
            higher = json.loads(json.dumps(about).replace(": 0", f": {figure}"))
            evaluation(place, **higher)
    text = printed(tmp_path)
    assert " above " not in text
    assert "; dystress senteval --model FOLDER measures test sets." in text
    assert (f": {chose} chose the step that was kept." in text) == (chose is not None)
    (tmp_path / "runs.jsonl").write_text(printed(tmp_path, "--format=jsonl"))
    assert printed(tmp_path / "runs.jsonl").splitlines()[:2] == text.splitlines()[:2]


def test_a_model_that_is_no_run_stands_beside_the_runs(
    sweep, tmp_path, monkeypatch, printed, capsys
):
    for name, model, pooler, figure in (
        ("base", "x/base", "cls", 30.0),
        ("here", "owner/of-the-hub", None, 40.0),
    ):
        about = {"suite": "senteval", "model": model, "pooler_type": pooler}
        variant = {"data_variant": f"of {model}"}
        tasks = {task: {"spearman": figure + i, **variant} for i, task in enumerate(TASKS["sts"])}
        Results(about, tasks).write(evaluation_file(tmp_path / name, "senteval", "test"))
    monkeypatch.chdir(tmp_path / "here")
    places = "../base", "senteval-senteval-test.json", sweep
    text = printed(*places)
    rows = dict(re.findall(r"^(base, cls|of-the-hub) +([\d. ]+)$", text, re.MULTILINE))
    assert rows["base, cls"].split() == [f"{figure:.2f}" for figure in (*range(30, 37), 33)]
    assert rows["of-the-hub"].split() == [f"{figure:.2f}" for figure in (*range(40, 47), 43)]
    assert "a variant: evaluation: of owner/of-the-hub." in text
    (tmp_path / "runs.jsonl").write_text(printed(*places, "--format=jsonl"))
    assert printed(tmp_path / "runs.jsonl") == text
    assert "base, cls" in printed(tmp_path)  # of a folder of models
    assert "of-the-hub" in printed(".")
    assert "a page shows runs, and there is none" in error_of(
        capsys, ".", "--format=html", main=main
    )


def test_an_evaluated_model_inside_a_run_does_not_hide_the_run(tmp_path, printed):
    run = write_run(tmp_path, CONSTANT, 0, 70.0)
    (run / "model").mkdir()
    tasks = {task: {"spearman": 1.0} for task in TASKS["sts"]}
    about = {"suite": "senteval", "model": "x/inside"}
    Results(about, tasks).write(evaluation_file(run / "model", "senteval", "test"))
    text = printed(run)
    assert re.search(rf"^{CONSTANT}, 1 seed ", text, re.MULTILINE)
    assert "inside" not in text


def test_what_a_reader_must_know_is_said_in_each_style(sweep, printed):
    markdown, latex, text = (
        printed(sweep, f"--format={style}") for style in ("markdown", "latex", "text")
    )
    assert "## STS, Spearman x 100\n\n| " in markdown
    assert "% STS, Spearman x 100\n\\begin{tabular}{lrrrrrrrr}" in latex
    assert r"71.50 $\pm$ 1.80 & " in latex  # 71, 70, 73.5
    assert "p is that of the two-sided paired t test" in text
    write_run(sweep, "sts-macl", 7, 70.0, unfinished=True)
    write_run(sweep, "short", 0, 70.0, ["--preset=sts-macl", "--max_steps=20"], tasks=("STS12",))
    write_run(
        sweep, "grid-temp=0.2", 0, 70.0, ["--temp=0.2"], data_variants={"train_file": "a sample"}
    )
    text = printed(sweep)
    for said in (
        "Not the paper's setup (num_train_epochs, max_steps): the lines 'ours - paper' are not about its claims.",
        "Not the published data but a variant: train_file: a sample.",
        "One seed: no interval over seeds, and no claim about a temperature: grid-temp=0.2, short.",
        "Not finished and left out: sts-macl-seed-7.",
        "Setup: bert-base-uncased, cls, 20 steps of 64, learning rate 3e-05, 3,000 sentences (sha256 0123",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("name", "options", "row", "away"),
    [("mine", "", "DySTreSS* 0.05/0.07", []),  # its options make a row, not its name
     ("its-own", "--preset=sts-macl --mlp_only_train", "MACL (repro.)", []),  # SimCSE's scripts name it
     ("both", "--preset=sts-macl --do_mlm --mlp_only_train no", "MACL (repro.)", ["do_mlm", "mlp_only_train"]),
     ("sts-macl", "--temp=0.05", None, []),
     ("both-views", "--preset=sts-macl --loss=macl(0.05,alpha=2,a_0=0.8,both_views=True)", None, []),
     ("of-mini", "--preset=sts-macl --model_name_or_path=x/bert-mini", None, ["model_name_or_path"]),
     ("of-mine", "--preset=sts-macl --train_file=mine.txt", None, ["train_file"]),
     ("of-sample", "--preset=sts-macl", None, [])],
)  # fmt: skip
def test_a_papers_row_stands_beside_runs_of_its_loss_encoder_and_data(
    tmp_path, name, options, row, away
):
    variants = {"train_file": "a sample"} if name == "of-sample" else {}
    write_run(tmp_path, name, 0, 70.0, options.split(), data_variants=variants)
    runs, *_ = read_text_runs([tmp_path])
    assert getattr(paper_row(runs[0]), "name", None) == row
    assert not_the_papers(runs) == away


def test_missing_tasks_leave_no_average_and_a_few_stand_beside_the_papers_same_few(tmp_path):
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
    ("spoil", "words", "message"),
    [(lambda folder: write_run(folder, CONSTANT, 0, 1.0, ["--max_steps=9"]), "a b", "one name and differ in num_"),
     (lambda folder: write_run(folder, CONSTANT, 1, 1.0), "a b", "are one configuration with one seed"),
     (lambda folder: write_run(folder, "x", 1, 1.0, program="vision/train.py"), "a b", "is not the record of a run"),
     (lambda folder: (write_run(folder, "x", 1, 1.0) / "run.json").write_text("{"), "a b", "cannot be read: "),
     (lambda folder: write_run(folder, "x", 0, 1.0, unfinished=True), "b", "no finished run: x-seed-0"),
     (lambda folder: folder.write_text('{"name": "a"}'), "a b.jsonl", "is not a file of runs"),
     (None, "a --baseline nobody", f"--baseline: no 'nobody'; known are {CONSTANT}")],
)  # fmt: skip
def test_what_cannot_be_reported_is_refused_in_a_line(
    tmp_path, monkeypatch, spoil, words, message, capsys
):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", CONSTANT, 1, 70.0)
    if spoil:
        spoil(tmp_path / words.split()[-1])
    assert message in error_of(capsys, *words.split(), main=main)


def test_a_figure_that_is_no_number_is_not_compared():
    figures = {0: math.nan, 1: 1.0}
    runs = [
        TextRun(
            Path(f"a-seed-{seed}"),
            record_of(parse(["--preset=paper", f"--seed={seed}"])),
            {TRAINING: {"x": x}},
        )
        for seed, x in figures.items()
    ]
    (group,) = groups_of(runs)
    assert Comparisons(runs).by_seed("a", group, "x") == {1: 1.0}
