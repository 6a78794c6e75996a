"""Tables of a sweep: figures against numpy and SciPy, the paper's beside them, and what is said below."""

import numpy as np
import pytest
from scipy import stats
from sweep_runs import write_run

from dystress_text.evaluation.catalogue import TASKS
from dystress_text.evaluation.run import Results
from dystress_text.report.__main__ import main
from dystress_text.report.tables import Comparisons, not_the_papers, paper_row, sections, verdict
from dystress_text.report.text_runs import read_text_runs
from dystress_text.training.run_folder import evaluation_file

CONSTANT, SHIFTED = "sts-constant-0.05", "sts-shifted-0.4-0.05-0.07"
# by configuration and seed: each task's figure is this plus its place in the table
FIGURES = {CONSTANT: [70.0, 71.0, 72.5], "sts-macl": [71.0, 70.0, 73.5], SHIFTED: [70.5, 72.0, 73.0]}


@pytest.fixture
def sweep(tmp_path):
    for name, figures in FIGURES.items():
        for seed, figure in enumerate(figures):
            write_run(tmp_path / "sweep", name, seed, figure)
    return tmp_path / "sweep"


def tables(folder, *baselines):
    """The tables by title, each by the first cells of its lines."""
    found = sections(Comparisons(*read_text_runs([folder]), baselines))
    return {title: [dict(zip(lines[0], line, strict=True)) for line in lines[1:]] for title, lines in found}


def test_means_deviations_and_the_papers_figures(sweep):
    lines = tables(sweep)["STS, Spearman x 100"]
    assert [line[""] for line in lines][::3] == [f"{name}, 3 seeds" for name in FIGURES]  # in the paper's order
    ours, paper, gap = lines[6:]
    figures = np.array(FIGURES[SHIFTED]) + 1
    assert ours["STS13"] == f"{figures.mean():.2f} ± {figures.std(ddof=1):.2f}"
    assert (paper[""], paper["STS13"], paper["avg"]) == ("  paper: DySTreSS* 0.05/0.07", "80.61", "76.37")
    assert gap["STS13"] == f"{figures.mean() - 80.61:+.2f}"
    assert ours["avg"].startswith(f"{np.mean(FIGURES[SHIFTED]) + 3:.2f} ")
    assert lines[4]["avg"] == "75.45"  # of its figures, not as printed


def test_differences_are_paired_by_seed_and_tested(sweep):
    macl, shifted = tables(sweep)["STS, Spearman x 100: differences over seeds"]
    d = np.array(FIGURES[SHIFTED]) - FIGURES[CONSTANT]
    low, high = stats.ttest_1samp(d, 0).confidence_interval()
    assert list(shifted.values()) == [
        SHIFTED, CONSTANT, "3", f"{d.mean():+.2f}", f"{low:+.2f} to {high:+.2f}", "0.250", "0.500",
    ]  # fmt: skip
    assert (macl[""], macl["p"], macl["p, all rows"]) == ("sts-macl", "1.000", "1.000")


def test_each_profile_is_held_against_its_own_constant_too(sweep):
    for name, seeds in (("sts-constant-0.07", 2), ("sts-constant-0.03", 1)):
        for seed in range(seeds):
            write_run(sweep, name, seed, 71.0 + seed)
    title = "STS, Spearman x 100: differences over seeds"
    against = [(line[""], line["baseline"], line["common seeds"]) for line in tables(sweep)[title]]
    assert [pair[1:] for pair in against if pair[0] == SHIFTED] == [(CONSTANT, "3"), ("sts-constant-0.07", "2")]
    (one,) = [line for line in tables(sweep)[title] if line[""] == "sts-constant-0.03"]
    assert (one["95 % over seeds"], one["p"]) == ("one seed: no interval", "-")
    assert {line["baseline"] for line in tables(sweep, "sts-macl")[title]} == {"sts-macl"}


def said(folder, *baselines):
    return verdict(Comparisons(*read_text_runs([folder]), baselines))


def test_the_verdict_says_which_is_higher_by_how_much_and_whether_seeds_can_tell(sweep, capsys):
    where = "avg (STS, Spearman x 100)"
    for name, figures in (("sts-constant-0.07", (70.0, 70.9, 72.6)), ("sts-constant-0.03", (75.0, 76.1, 77.3))):
        for seed, figure in enumerate(figures):
            write_run(sweep, name, seed, figure)
    told, *others = said(sweep, CONSTANT)
    low, high = stats.ttest_1samp([5.0, 5.1, 4.8], 0).confidence_interval()
    interval = f"the 95 % interval is {low:+.2f} to {high:+.2f}."
    assert told == f"sts-constant-0.03 is 4.97 above {CONSTANT} in {where}; 3 seeds can tell: {interval}"
    low, high = stats.ttest_1samp([0.5, 1.0, 0.5], 0).confidence_interval()
    interval = f"the 95 % interval is {low:+.2f} to {high:+.2f}."
    assert f"{SHIFTED} is 0.67 above {CONSTANT} in {where}, but 3 seeds cannot tell: {interval}" in others
    assert main([str(sweep)]) == 0
    first, second, third = capsys.readouterr().out.splitlines()[:3]
    assert (first, third) == (told, "")  # the tables follow
    assert second == f"4 of 5 differences in {where} are not told from none."


def test_configurations_that_differ_in_more_are_no_comparison_of_temperatures(tmp_path, capsys):
    write_run(tmp_path, "small", 0, 70.0, ["--preset=small"])
    write_run(tmp_path, CONSTANT, 0, 36.0)
    differ, nothing = said(tmp_path)
    assert differ.startswith("The configurations differ in more than the temperature: model_name_or_path, pooler_type,")
    assert nothing.startswith("Nothing is compared: there is no constant that differs in nothing else")
    assert f"small is 34.00 above {CONSTANT} in avg" in said(tmp_path, CONSTANT)[1]
    assert "no temperature's doing alone: they differ in model_name_or_path" in said(tmp_path, CONSTANT)[1]
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Setup of small: bert-mini-wiki, avg, 20 steps of 64, learning rate 0.0001, " in printed
    assert f"Setup of {CONSTANT}: bert-base-uncased, cls, 20 steps of 64, learning rate 3e-05, " in printed
    assert printed.count("  paper: ") == 1  # bert-mini-wiki has no row
    write_run(tmp_path / "b", CONSTANT, 0, 36.0)
    write_run(tmp_path / "b", "sts-macl", 0, 36.0, corpus={"sentences": 3000, "sha256": "f" * 64})
    assert said(tmp_path / "b")[0] == "The configurations differ in more than the temperature: training text."


def test_a_model_that_is_no_run_stands_beside_the_runs(sweep, tmp_path, monkeypatch, capsys):
    def evaluated(folder, model, pooler, figure):
        about = {"suite": "senteval", "model": model, "pooler_type": pooler, "data_variant": f"of {model}"}
        tasks = {task: {"spearman": figure + i} for i, task in enumerate(TASKS["sts"])}
        Results(about, tasks).write(evaluation_file(folder, "senteval", "test"))

    evaluated(tmp_path / "base", str(tmp_path / "base"), "cls", 30.0)
    evaluated(tmp_path / "here", "owner/of-the-hub", None, 40.0)
    monkeypatch.chdir(tmp_path / "here")

    def printed(*argv):
        assert main([*map(str, argv)]) == 0
        return capsys.readouterr().out

    places = tmp_path / "base", "senteval-senteval-test.json", sweep
    text = printed(*places)
    lines = [line.split("  ") for line in text[text.index("STS, Spearman") :].splitlines()]
    rows = {line[0]: [cell.strip() for cell in line[1:] if cell.strip()] for line in lines}
    assert rows["base, cls"] == [f"{figure:.2f}" for figure in (*range(30, 37), 33)]
    assert rows["of-the-hub"] == [f"{figure:.2f}" for figure in (*range(40, 47), 43)]
    assert "a variant: evaluation: of owner/of-the-hub." in text
    (tmp_path / "runs.jsonl").write_text(printed(*places, "--format=jsonl"))
    assert printed(tmp_path / "runs.jsonl") == text
    assert "base, cls" in printed(tmp_path)  # of a folder of models
    assert "of-the-hub" in printed(".")
    assert main([".", "--format=html"]) == 2
    assert "a page shows runs, and there is none" in capsys.readouterr().err


def test_styles_and_a_file_of_runs(sweep, capsys):
    def printed(*argv):
        assert main([*map(str, argv)]) == 0
        return capsys.readouterr().out

    markdown, latex, text = (printed(sweep, f"--format={style}") for style in ("markdown", "latex", "text"))
    assert "## STS, Spearman x 100\n\n| " in markdown
    assert "% STS, Spearman x 100\n\\begin{tabular}{lrrrrrrrr}" in latex
    assert r"71.50 $\pm$ 1.80 & " in latex  # 71, 70, 73.5
    assert "at least 0.25 with 3 seeds" in text
    file = sweep.with_name("runs.jsonl")
    file.write_text(printed(sweep, "--format=jsonl"))
    assert len(file.read_text().splitlines()) == 9
    assert printed(file) == text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--lora_rank=8", "--bidirectional"], ["lora_rank", "bidirectional"]),
        (["--mlp_only_train", "no"], ["mlp_only_train"]),
        (["--mlp_only_train"], []),  # SimCSE's scripts name it
    ],
)
def test_another_way_of_training_is_not_the_papers(tmp_path, options, named):
    write_run(tmp_path, CONSTANT, 0, 70.0, options)
    assert not_the_papers(read_text_runs([tmp_path])[0]) == named


def test_what_a_reader_must_know_is_said(sweep, capsys):
    write_run(sweep, "sts-macl", 7, 70.0, unfinished=True)
    write_run(sweep, "short", 0, 70.0, ["--preset=sts-macl", "--max_steps=20"], tasks=("STS12",))
    write_run(sweep, "grid-temp=0.2", 0, 70.0, ["--temp=0.2"], data_variants={"train_file": "a sample"})
    assert main([str(sweep)]) == 0
    printed = capsys.readouterr().out
    for said in (
        "Not the paper's setup (max_steps): the lines 'ours - paper' are not about its claims.",
        "Not the published data but a variant: train_file: a sample.",
        "One seed: no interval, and no claim about a temperature: grid-temp=0.2, short.",
        "Not finished and left out: sts-macl-seed-7.",
        "Setup: bert-base-uncased, cls, 20 steps of 64, learning rate 3e-05, 3,000 sentences (sha256 0123",
    ):
        assert said in printed


@pytest.mark.parametrize(
    ("name", "options", "more", "row"),
    [  # its options make a row, not its name
        ("mine", ["--temperature=shifted_cosine", "--shift=-0.4"], {}, "DySTreSS* 0.05/0.07"),
        ("its-own", ["--preset=sts-macl"], {}, "MACL (repro.)"),
        ("graph", ["--preset=sts-macl", "--detach_temperature=false"], {}, None),
        ("sts-macl", ["--temp=0.05"], {}, None),
        ("both-views", ["--preset=sts-macl", "--rows=ntxent"], {}, None),
        ("of-mini", ["--preset=sts-macl", "--model_name_or_path=x/bert-mini"], {}, None),
        ("of-mine", ["--preset=sts-macl", "--train_file=mine.txt"], {}, None),
        ("of-sample", ["--preset=sts-macl"], {"data_variants": {"train_file": "a sample"}}, None),
    ],
)
def test_a_papers_row_stands_beside_runs_of_its_loss_encoder_and_data(tmp_path, name, options, more, row):
    write_run(tmp_path, name, 0, 70.0, options, **more)
    found = paper_row(read_text_runs([tmp_path])[0][0])
    assert (found and found.name) == row


def test_missing_tasks_leave_no_average_and_a_few_stand_beside_the_papers_same_few(tmp_path):
    write_run(tmp_path / "a", CONSTANT, 0, 70.0)
    write_run(tmp_path / "a", CONSTANT, 1, 70.0, tasks=TASKS["sts"][:2])
    line, *_ = tables(tmp_path / "a")["STS, Spearman x 100"]
    assert (line["STS13"], line["STS14"], line["avg"]) == ("71.00 ± 0.00", "72.00 (1 of 2)", "73.00 (1 of 2)")
    write_run(tmp_path / "b", CONSTANT, 0, 70.0, tasks=("STS12", "STS-B"))
    ours, paper, _ = tables(tmp_path / "b")["STS, Spearman x 100"]
    assert [*ours][1:] == ["STS12", "STS-B", "avg of 2"]
    assert (ours["avg of 2"], paper["avg of 2"]) == ("70.50", f"{(65.10 + 76.47) / 2:.2f}")


@pytest.mark.parametrize(
    ("spoil", "words", "message"),
    [
        (lambda folder: write_run(folder, CONSTANT, 0, 1.0, ["--max_steps=9"]), "a b", "one name and differ in max_"),
        (lambda folder: write_run(folder, CONSTANT, 1, 1.0), "a b", "are one configuration with one seed"),
        (lambda folder: (folder / "x").mkdir(parents=True), "a b", "no run in "),
        (lambda folder: write_run(folder, "x", 1, 1.0, program="vision/train.py"), "a b", "is not the record of a run"),
        (lambda folder: (write_run(folder, "x", 1, 1.0) / "run.json").write_text("{"), "a b", "cannot be read: "),
        (lambda folder: write_run(folder, "x", 0, 1.0, unfinished=True), "b", "no finished run: x-seed-0"),
        (lambda folder: folder.write_text('{"name": "a"}'), "a b.jsonl", "is not a file of runs"),
        (lambda folder: folder.write_text('{"model": "a"}'), "a b.json", "is not a file of an evaluation"),
        (None, "a --baseline nobody", f"--baseline: no 'nobody'; there are {CONSTANT}"),
    ],
)
def test_what_cannot_be_reported_is_refused_in_a_line(tmp_path, monkeypatch, spoil, words, message, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", CONSTANT, 1, 70.0)
    if spoil:
        spoil(tmp_path / words.split()[-1])
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("dystress report: error: ")
    assert message in error
    assert error.count("\n") == 1
