"""Reports of sweeps: figures by configuration, the paper's figures, tests, notes, and all styles."""

import csv
import io

import numpy as np
import pytest
from scipy import stats
from sweep_runs import GOLD, write_run

from dystress_text.evaluation.catalogue import TASKS
from dystress_text.report.__main__ import main
from dystress_text.report.groups import groups_of, paper_row
from dystress_text.report.notes import not_the_papers
from dystress_text.report.runs import PAIRS, read_text_runs
from dystress_text.report.tables import ONE_SEED

CONSTANT, SHIFTED = "sts-constant-0.05", "sts-shifted-0.4-0.05-0.07"
# by configuration and seed: each task's figure is this plus its place in the table
FIGURES = {CONSTANT: [70.0, 71.0, 72.5], "sts-macl": [71.0, 70.0, 73.5], SHIFTED: [70.5, 72.0, 73.0]}


@pytest.fixture
def sweep(tmp_path):
    rng = np.random.default_rng(0)
    noise = {CONSTANT: 3.0, "sts-macl": 3.0, SHIFTED: 1.0}
    for name, figures in FIGURES.items():
        for seed, figure in enumerate(figures):
            write_run(tmp_path / "sweep", name, seed, figure, pairs=GOLD + rng.normal(0, noise[name], len(GOLD)))
    return tmp_path / "sweep"


def table(*argv, capsys):
    assert main([*map(str, argv), "--format=csv", "--resamples=100"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_means_deviations_and_the_papers_figures(sweep, capsys):
    rows = {(r["group"], r["configuration"], r["task"]): r for r in table(sweep, capsys=capsys)}
    one = rows["senteval/sts", SHIFTED, "STS13"]
    figures = np.array(FIGURES[SHIFTED]) + 1
    assert float(one["mean"]) == pytest.approx(figures.mean(), abs=1e-4)
    assert float(one["deviation"]) == pytest.approx(figures.std(ddof=1), abs=1e-4)
    assert (one["seeds"], float(one["paper"])) == ("3", 80.61)
    assert float(one["difference_from_paper"]) == pytest.approx(figures.mean() - 80.61, abs=1e-4)
    average = rows["senteval/sts", SHIFTED, "avg"]
    assert float(average["mean"]) == pytest.approx(np.mean(FIGURES[SHIFTED]) + 3, abs=1e-4)
    assert float(average["paper"]) == 76.37
    assert float(rows["senteval/sts", "sts-macl", "avg"]["paper"]) == 75.45  # of its figures, not as printed
    assert rows["training", SHIFTED, "sts_b_dev_spearman"]["paper"] == ""


def test_differences_are_paired_by_seed_and_tested(sweep, capsys):
    rows = {(r["configuration"], r["task"]): r for r in table(sweep, capsys=capsys)}
    one = rows[SHIFTED, "avg"]
    d = np.array(FIGURES[SHIFTED]) - FIGURES[CONSTANT]
    interval = stats.ttest_1samp(d, 0).confidence_interval()
    assert (one["baseline"], one["common_seeds"], one["exact"]) == (CONSTANT, "3", "True")
    assert float(one["difference"]) == pytest.approx(d.mean(), abs=1e-4)
    assert (float(one["low"]), float(one["high"])) == pytest.approx(tuple(interval), abs=1e-4)
    assert float(one["p"]) == 0.25  # all three above: the least that three seeds can give
    assert rows[CONSTANT, "avg"]["baseline"] == ""


def test_intervals_over_pairs_are_where_pairs_are_stored(sweep, capsys):
    rows = {(r["configuration"], r["task"]): r for r in table(sweep, capsys=capsys)}
    clear, nothing = rows[SHIFTED, "STS-B"], rows["sts-macl", "STS-B"]
    assert 0 < float(clear["pairs_low"]) < float(clear["pairs_high"])
    assert float(nothing["pairs_low"]) < 0 < float(nothing["pairs_high"])
    assert rows[SHIFTED, "STS12"]["pairs_low"] == ""


def test_one_seed_is_marked_in_every_style(tmp_path, capsys):
    write_run(tmp_path, CONSTANT, 0, 70.0)
    write_run(tmp_path, SHIFTED, 0, 72.0)
    for style in ("text", "markdown", "latex"):
        assert main([str(tmp_path), f"--format={style}"]) == 0
        printed = capsys.readouterr().out
        assert f"{SHIFTED}, 1 seed " in printed
        assert ONE_SEED in printed
        assert f"One seed: no interval, and no claim about a temperature: {CONSTANT}, {SHIFTED}." in printed
        assert "+2.00" in printed
        assert "±" not in printed.split("One seed")[0]
    assert {row["note"] for row in table(tmp_path, capsys=capsys)} == {ONE_SEED}


def test_styles(sweep, capsys):
    assert main([str(sweep), "--format=markdown", "--resamples=0"]) == 0
    markdown = capsys.readouterr().out
    assert "## STS, Spearman x 100\n\n| " in markdown
    assert "| sts-macl, 3 seeds " in markdown
    assert "71.50 ± 1.80" in markdown  # 71, 70, 73.5
    assert "sentence pairs" not in markdown
    assert main([str(sweep), "--format=latex", "--resamples=0"]) == 0
    latex = capsys.readouterr().out
    assert "% STS, Spearman x 100\n\\begin{tabular}{lrrrrrrrr}" in latex
    assert r"71.50 $\pm$ 1.80 & " in latex
    assert all(line.endswith(r"\\") or line.startswith(("%", "\\")) or not line for line in latex.splitlines())
    assert main([str(sweep), "--resamples=50"]) == 0
    text = capsys.readouterr().out
    assert "95 % intervals of the differences over sentence pairs" in text
    assert "at least 0.25 with 3 seeds" in text
    assert "Intervals over sentence pairs are for the models at hand" in text


def test_the_table_is_in_the_papers_order(sweep, capsys):
    names = list(dict.fromkeys(row["configuration"] for row in table(sweep, capsys=capsys)))
    assert names == [CONSTANT, "sts-macl", SHIFTED]


def test_each_profile_is_held_against_its_own_constant_too(sweep, capsys):
    for seed in range(2):
        write_run(sweep, "sts-constant-0.07", seed, 71.0 + seed)
        write_run(sweep, "sts-constant-0.03", seed, 71.0 + seed)
    rows = [row for row in table(sweep, capsys=capsys) if row["task"] == "avg"]
    against = {(row["configuration"], row["baseline"], row["common_seeds"]) for row in rows}
    assert {pair for pair in against if pair[0] == SHIFTED} == {
        (SHIFTED, CONSTANT, "3"), (SHIFTED, "sts-constant-0.07", "2"),
    }  # fmt: skip
    assert {pair[1] for pair in against if pair[0] == "sts-constant-0.03"} == {CONSTANT}
    named = table(sweep, "--baseline", "sts-macl", capsys=capsys)
    assert {row["baseline"] for row in named if row["configuration"] != "sts-macl"} == {"sts-macl"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--do_mlm"], ["do_mlm"]),
        (["--lora_rank=8", "--bidirectional"], ["bidirectional", "lora_rank"]),
        (["--mlp_only_train", "no"], ["mlp_only_train"]),
        (["--mlp_only_train"], []),  # SimCSE's scripts name it
    ],
)
def test_another_way_of_training_is_not_the_papers(tmp_path, options, named):
    write_run(tmp_path, CONSTANT, 0, 70.0, options)
    assert not_the_papers(read_text_runs([tmp_path])[0]) == named


def test_what_a_reader_must_know_is_said(sweep, capsys):
    write_run(sweep, "sts-macl", 7, 70.0, unfinished=True)
    write_run(sweep, "grid-temp=0.1", 0, 70.0, ["--temp=0.1", "--max_steps=20"], tasks=())
    write_run(sweep, "grid-temp=0.2", 0, 70.0, ["--temp=0.2"], data_variants={"train_file": "a sample"})
    assert main([str(sweep), "--resamples=0"]) == 0
    printed = capsys.readouterr().out
    assert "Not the paper's setup (max_steps): the lines 'ours - paper' say nothing about its claims." in printed
    assert "The configurations differ in more than the temperature: max_steps." in printed
    assert "Not the published data but a variant: train_file: a sample." in printed
    assert "Not evaluated: grid-temp=0.1-seed-0." in printed
    assert "Not finished and left out: sts-macl-seed-7." in printed
    assert "Setup: bert-base-uncased, cls, 20 steps of 64, learning rate 3e-05, 3,000 sentences (sha256 0123" in printed


def test_a_row_is_known_by_its_temperature_not_its_name(tmp_path):
    names = ["--temperature=shifted_cosine", "--tau_min=0.05", "--tau_max=0.07", "--shift=-0.4"]
    write_run(tmp_path, "mine", 0, 70.0, names)
    write_run(tmp_path, "other", 0, 70.0, [*names, "--detach_temperature=false"])
    write_run(tmp_path, "sts-macl", 0, 70.0, ["--temp=0.05"])
    write_run(tmp_path, "both-views", 0, 70.0, ["--preset=sts-macl", "--rows=ntxent"])
    runs = {run.configuration: run for run in read_text_runs([tmp_path])[0]}
    assert paper_row(runs["mine"]).name == "DySTreSS* 0.05/0.07"
    assert paper_row(runs["other"]) is None
    assert paper_row(runs["sts-macl"]) is paper_row(runs["both-views"]) is None
    assert (runs["mine"].temperature.parameters["tau_max"], runs["mine"].constant) == (0.07, None)


def test_a_temperature_is_read_from_values_and_from_the_words_of_older_records(tmp_path):
    values = {"tau_min": 0.05, "tau_max": 0.07, "shift": -0.4, "scale": 0.7}
    write_run(tmp_path, SHIFTED, 0, 70.0)
    write_run(tmp_path, "mine", 0, 70.0, [f"--preset={SHIFTED}"], temperature_parameters=values)
    first, second = read_text_runs([tmp_path])[0]
    assert first.temperature.parameters == second.temperature.parameters == values
    assert paper_row(first) is paper_row(second) is not None


def test_missing_tasks_leave_no_average(tmp_path, capsys):
    write_run(tmp_path, CONSTANT, 0, 70.0)
    write_run(tmp_path, CONSTANT, 1, 70.0, tasks=TASKS["sts"][:2])
    rows = {row["task"]: row for row in table(tmp_path, capsys=capsys)}
    assert (rows["STS13"]["seeds"], rows["STS14"]["seeds"], rows["avg"]["seeds"]) == ("2", "1", "1")
    main([str(tmp_path)])
    assert "72.00 (1 of 2)" in capsys.readouterr().out


def test_a_few_tasks_are_averaged_beside_the_papers_same_few(tmp_path):
    write_run(tmp_path, CONSTANT, 0, 70.0, tasks=("STS12", "STS-B"))
    runs = read_text_runs([tmp_path])[0]
    group = next(group for group in groups_of(runs) if group.key == "senteval/sts")
    assert (group.columns, group.headline) == (("STS12", "STS-B", "avg of 2"), "avg of 2")
    assert group.row(runs[0])["avg of 2"] == 70.5
    assert group.paper(runs[0])["avg of 2"] == pytest.approx((65.10 + 76.47) / 2, abs=0.006)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: write_run(folder / "b", CONSTANT, 0, 1.0, ["--max_steps=9"]),
            "have one name and differ in max_",
        ),
        (lambda folder: write_run(folder / "b", CONSTANT, 1, 1.0), "are one configuration with one seed"),
        (lambda folder: (folder / "b" / "x").mkdir(parents=True), "no run in "),
        (
            lambda folder: write_run(folder / "b", "x", 1, 1.0, program="vision/train.py"),
            "is not the record of a run of dystress",
        ),
        (lambda folder: (write_run(folder / "b", "x", 1, 1.0) / PAIRS).write_bytes(b"PK broken"), "cannot be read: "),
        (lambda folder: (write_run(folder / "b", "x", 1, 1.0) / "run.json").write_text("{"), "cannot be read: "),
    ],
)
def test_what_cannot_be_reported_is_refused_in_a_line(tmp_path, spoil, message, capsys):
    write_run(tmp_path / "a", CONSTANT, 1, 70.0)
    spoil(tmp_path)
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dystress report: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_unknown_baselines_and_no_finished_run(tmp_path, capsys):
    write_run(tmp_path / "a", CONSTANT, 0, 70.0)
    assert main([str(tmp_path / "a"), "--baseline", "nobody"]) == 2
    assert "--baseline: no 'nobody'; there are sts-constant-0.05" in capsys.readouterr().err
    write_run(tmp_path / "b", CONSTANT, 0, 70.0, unfinished=True)
    assert main([str(tmp_path / "b")]) == 2
    assert "no finished run: sts-constant-0.05-seed-0" in capsys.readouterr().err


def test_a_run_that_differs_from_its_row_is_noted(tmp_path, capsys):
    row = "Table stsresall, row MACL (repro.)"
    changed = {"rows": [row], "differs": "--max_steps 5 (row: -1)"}
    write_run(tmp_path, "sts-macl", 0, 70.0, ["--max_steps=5"], paper=changed)
    write_run(tmp_path, SHIFTED, 0, 70.0, paper={"rows": ["Table stsresall, row DySTreSS* 0.05/0.07"], "differs": ""})
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"sts-macl: preset of {row}; differs from the row in --max_steps 5 (row: -1)." in printed
    assert printed.count("differs from the row") == 1
