"""Tables of runs against NumPy and SciPy."""

import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy import stats
from sweep_runs import error_of, write_results, write_run, write_units

from dystress_text.analysis import tables
from dystress_text.analysis.compared_models import TRAINING, evaluated_models, read_compared_models
from dystress_text.evaluation.catalogue import TASKS
from dystress_text.evaluation.results import RESULTS, Result, append
from dystress_text.evaluation.retrieval import METRICS
from dystress_text.finetuning.presets import PRESETS
from dystress_text.programs.report import main
from dystress_text.training.run_record import BASE, Metric

MEAN = Metric("avg_transfer_dev", "accuracy", sets=(("transfer", "mr_dev"), ("transfer", "cr_dev")))
CONSTANT, SHIFTED = "sts-constant-0.05", "sts-shifted-0.4-0.05-0.07"
# by configuration and seed: each task's figure is this plus its place in the table
FIGURES = {
    CONSTANT: [70.0, 71.0, 72.5],
    "sts-macl": [71.0, 70.0, 73.5],
    SHIFTED: [70.5, 72.0, 73.0],
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for name, figures in FIGURES.items():
        for seed, figure in enumerate(figures):
            write_run(folder, name, seed, figure)
    return folder


def verdict(folder, baseline=None):
    return tables.verdict(read_compared_models([folder], baseline, PRESETS))


def rows(folder, title="STS, Spearman x 100"):
    """The rows of a table by name, each a dictionary by column."""
    compared = read_compared_models([folder], None, PRESETS)
    (group,) = [group for group in compared.groups if group.title == title]
    lines = tables.means(compared, group)
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[1:]}


@pytest.fixture
def printed(capsys):
    """What the program prints."""

    def of(*argv):
        assert main([*map(str, argv)]) == 0
        return capsys.readouterr().out

    return of


def test_means_and_deviations(sweep):
    found = rows(sweep)
    assert list(found) == [f"{name}, 3 seeds" for name in FIGURES]  # in the paper's order
    ours = found[f"{SHIFTED}, 3 seeds"]
    figures = np.array(FIGURES[SHIFTED]) + 1
    assert ours["STS13"] == f"{figures.mean():.2f} ± {figures.std(ddof=1):.2f}"
    assert ours["avg"].startswith(f"{np.mean(FIGURES[SHIFTED]) + 3:.2f} ")


def test_differences_are_paired_by_seed(sweep):
    found = {
        each.name: each.difference
        for each in read_compared_models([sweep], None, PRESETS).comparisons
    }
    for name in ("sts-macl", SHIFTED):
        expected = stats.ttest_rel(FIGURES[name], FIGURES[CONSTANT])
        assert found[name].mean == pytest.approx(
            np.subtract(FIGURES[name], FIGURES[CONSTANT]).mean()
        )
        assert found[name].interval == pytest.approx(
            tuple(expected.confidence_interval()), abs=0.01
        )


@pytest.mark.parametrize("kind", ["queries", "pairs"])
def test_models_measured_on_different_days(tmp_path, printed, kind):
    """Two models are nearly equal on every unit: the intervals overlap, the paired one is narrow."""
    random = np.random.default_rng(0)
    scores = random.random(52)
    ours = scores + random.normal(0, 0.3, 52)
    theirs = ours + random.normal(0, 0.02, 52)
    known = None if kind == "queries" else scores
    write_units(tmp_path / "A", ours, known)
    write_units(tmp_path / "B", theirs, known)
    write_units(tmp_path / "other", ours, known, data="b")
    text = printed(tmp_path / "A", tmp_path / "B")
    low, high = map(float, re.search(r"B - A: \S+ \((\S+) to (\S+); 52 \w+, paired", text).groups())
    alone = re.search(rf"\nA: \S+ \((\S+) to (\S+); 52 {kind}\)", text).groups()
    assert float(alone[1]) - float(alone[0]) > 4 * (high - low)
    assert "A - B: " in printed(tmp_path / "A", tmp_path / "B", "--baseline=B")
    assert "paired" not in printed(tmp_path / "A", tmp_path / "other")


def test_seeds_and_queries_together(tmp_path):
    """The interval of the difference contains the queries, as well as the seeds."""
    random = np.random.default_rng(1)
    for name, lead in ((CONSTANT, 0.0), (SHIFTED, 0.1)):
        for seed in range(3):
            run = write_run(tmp_path, name, seed, 0.0, tasks=())
            write_units(run, random.normal(0.4 + lead, 0.2, 52))
    (found,) = read_compared_models([tmp_path]).comparisons
    assert str(found.difference).endswith("52 queries, 3 seeds, paired)")
    seeds_alone = stats.ttest_1samp(found.difference.figures, 0).confidence_interval()
    assert np.ptp(found.difference.interval) > np.ptp(tuple(seeds_alone))
    assert found.difference.mean == pytest.approx(10, abs=5)


@pytest.mark.parametrize(
    ("baseline", "line"),
    [
        ("dcl(0.1)", "dcl(0.05) - dcl(0.1): -2.0 ("),
        ("dcl-0.1", "dcl(0.05) - dcl(0.1): -2.0 ("),
        (None, "dcl(0.1) - dcl(0.05): +2.0 ("),
    ],
)
def test_the_baseline_is_a_loss_a_folder_or_the_first(tmp_path, baseline, line):
    for tau, figure in (("0.05", 36.0), ("0.1", 38.0), ("0.2", 39.0)):
        options = ["--preset=own-text", f"--loss=dcl({tau})"]
        run = write_run(tmp_path, f"dcl-{tau}", 0, 0.0, options, tasks=())
        write_results(run, {"mine": {"spearman": figure}}, "pairs")
    assert f"mine (Own pairs, Spearman x 100): {line}" in verdict(tmp_path, baseline)[-1]


def test_an_evaluation_and_a_report_print_the_same_intervals(tmp_path, printed):
    values = np.random.default_rng(4).random((3, 29))
    names = {"a": "a", "b": "b", "lexical": "TF-IDF/BM25 over stems"}
    figures = dict(zip(names.values(), 100 * values.mean(1), strict=True))
    results = {}
    for model, each, figure in zip(names, values, figures.values(), strict=True):
        entry = {"nDCG@10": figure, "sha256": "a", "lexical_words": "stems"}
        result = Result.of_entry(entry, "retrieval", "c", {"model": model})
        results[model] = [replace(result, each={"model": each.tolist()})]
        append(tmp_path / "all.jsonl", *results[model])
    text = tables.render_evaluation(evaluated_models(results))
    rows, intervals = text.split("95 % intervals, c nDCG@10:\n")
    assert [row.split()[-1] for row in rows.splitlines()[2:]] == [
        f"{x:.2f}" for x in figures.values()
    ]
    report = printed(tmp_path / "all.jsonl")
    alone = intervals.splitlines()[:3]
    for line, (name, figure) in zip(alone, figures.items(), strict=True):
        assert line.startswith(f"{name}: {figure:.1f} (")
        assert line.endswith("; 29 queries, which are few)")
    assert "\n".join(alone) in report
    pairs = [("b", "a"), ("a", names["lexical"]), ("b", names["lexical"])]
    for line, (name, other) in zip(intervals.splitlines()[3:], pairs, strict=True):
        assert line.startswith(f"{name} - {other}: {figures[name] - figures[other]:+.1f} (")
        assert f"c nDCG@10 (Search x 100): {line}\n" in report


def test_other_settings_and_one_seed(tmp_path):
    write_run(tmp_path, "small", 0, 70.0, ["--preset=small"])
    write_run(tmp_path, CONSTANT, 0, 36.0)
    difference, other = verdict(tmp_path)
    assert difference.endswith(f"small - {CONSTANT}: +34.0 (no interval).")
    assert "model_name_or_path, pooler_type," in other
    write_run(tmp_path / "b", CONSTANT, 0, 36.0)
    write_run(tmp_path / "b", "sts-macl", 0, 36.0, corpus={"sentences": 3000, "sha256": "f" * 64})
    assert "training text" in verdict(tmp_path / "b")[-1]


def sts(figure, data="a"):
    return {"STS-B": {"spearman": figure, "sha256": data}}


@pytest.mark.parametrize(
    ("group", "data", "mode", "is_compared"),
    [
        ("sts", "a", "fast", True),  # of STS there are no modes
        ("sts", "b", "test", False),
        ("transfer", "a", "test", True),
        ("transfer", "a", "fast", False),
    ],
)
def test_figures_measured_differently_are_not_compared(
    tmp_path, printed, group, data, mode, is_compared
):
    task, metric = {"sts": ("STS-B", "spearman"), "transfer": ("MR", "accuracy")}[group]
    for name, figure, measured in ((SHIFTED, 70, ("a", "test")), (CONSTANT, 60, (data, mode))):
        run = write_run(tmp_path, name, 0, 0.0, tasks=())
        entry = {metric: figure, "sha256": measured[0]}
        write_results(run, {task: entry}, f"senteval/{group}", mode=measured[1])
    said = ": +10.0 (" if is_compared else f" not compared: measured differently: {task} ("
    assert f"{SHIFTED} - {CONSTANT}{said}" in verdict(tmp_path)[-1]
    assert (f"\nmeasured differently: {task} (" in printed(tmp_path)) != is_compared


@pytest.mark.parametrize(
    ("metric", "group", "task", "column"),
    [
        (Metric("sts_b_test", "spearman"), "senteval/sts", "STS-B", "STS-B"),
        (Metric("mr_dev", "accuracy"), "senteval/transfer", "MR", "MR"),
        (Metric("cisi", "ndcg@10_graded"), "retrieval", "cisi", "cisi nDCG@10"),
        (Metric("mr", "ndcg@10"), "retrieval", "MR", "MR nDCG@10"),  # named like a task
        (MEAN, "senteval/transfer", "MR", "MR"),
    ],
)
def test_sets_that_selected_the_checkpoint(tmp_path, metric, group, task, column):
    for name, figure in ((SHIFTED, 90.0), (CONSTANT, 10.0)):
        options = [f"--metric_for_best_model={metric.name}"]
        measured = {"trained": {metric.name: figure}, "metrics": {metric.name: asdict(metric)}}
        run = write_run(tmp_path, name, 0, 0.0, options, tasks=(), **measured)
        write_results(run, {task: dict.fromkeys(("spearman", "accuracy", *METRICS), figure)}, group)
    _, line = verdict(tmp_path)
    assert line.endswith(f"not compared: {column} selected the checkpoint")


def test_a_set_is_known_by_kind_and_name(tmp_path):
    """Pairs, a collection and a task have one name, and the collection selected the checkpoint."""
    metric = {"set": "mr", "measure": "ndcg@10", "kind": "retrieval"}
    for name, figure in ((SHIFTED, 90.0), (CONSTANT, 10.0)):
        measured = {"trained": {"mr_ndcg@10": figure}, "metrics": {"mr_ndcg@10": metric}}
        options = ["--metric_for_best_model=mr_ndcg@10"]
        run = write_run(tmp_path, name, 0, 0.0, options, tasks=(), **measured)
        for group in ("retrieval", "pairs", "mini/sts"):
            task = "MiniSTS" if group == "mini/sts" else "MR"
            write_results(run, {task: dict.fromkeys(("spearman", *METRICS), figure)}, group)
    selected = [line for line in verdict(tmp_path) if "selected the checkpoint" in line]
    assert len(selected) == 1
    assert selected[0].endswith("MR nDCG@10 selected the checkpoint")


def test_newest_results_of_the_newest_weights(tmp_path):
    run = write_run(tmp_path, CONSTANT, 0, 70.0, tasks=())
    write_results(run, {"STS12": {"spearman": 1.0}}, weights="old")
    write_results(run, sts(60), weights="new")
    write_results(run, sts(61, "b"), weights="new")
    write_results(run, sts(9), weights="new", pooler_type="cls")  # not the model as it is saved
    (found,) = read_compared_models([run]).runs
    assert set(found.evaluated.figures) == {TRAINING, "senteval/sts"}
    assert found.evaluated.figures["senteval/sts"] == {"STS-B": 61}


def test_models_without_a_run(sweep, tmp_path, printed, capsys):
    base = {"model": "x/base", "pooler_type": "cls"}
    for name, figure, about in (("base", 30.0, base), ("hub", 40.0, {"model": "owner/of-the-hub"})):
        tasks = {task: {"spearman": figure, "data_variant": "half"} for task in TASKS["sts"]}
        write_results(tmp_path / name, tasks, **about)
    text = printed(tmp_path / "base", tmp_path / "hub" / "results.jsonl", sweep)
    for name, figure in (("base, cls", "30.00"), ("of-the-hub", "40.00")):
        (row,) = [line for line in text.splitlines() if line.startswith(name)]
        assert row.removeprefix(name).split() == [figure] * 8
    assert "evaluation: half" in text
    assert set(rows(tmp_path)) == {"base, cls", "of-the-hub"}  # a folder of models
    assert "--format" in error_of(capsys, tmp_path, "--format=html", main=main)


def test_models_of_one_name_are_told_apart(tmp_path):
    """By their paths; by the weights at one path."""
    models = {"/x/a/final/": "cls", "/x/b/final": "cls", "/x/b/other": None, "/y/b/other": None}
    for figure, (model, pooler) in enumerate(models.items()):
        write_results(tmp_path, sts(figure), model=model, pooler_type=pooler)
    write_results(tmp_path, sts(4), model="model", weights="1" * 64)
    for figure, model in enumerate(("model", "./model", "model"), 5):
        write_results(tmp_path, sts(figure), model=model, weights="2" * 64)
    found = {name[:12]: row["STS-B"] for name, row in rows(tmp_path).items()}
    names = ["a/final, cls", "b/final, cls", "x/b/other", "y/b/other", "1" * 12, "2" * 12]
    assert found == dict(zip(names, ("0.00", "1.00", "2.00", "3.00", "4.00", "7.00"), strict=True))


def test_data_of_one_name_are_told_apart(tmp_path):
    runs = [write_run(tmp_path, name, 0, 0.0, tasks=()) for name in (CONSTANT, SHIFTED)]
    files = ["/x/a/pairs.csv", "/x/b/pairs.csv", "/x/b/pairs.csv", "/x/b/pairs.tsv"]
    for i, file in enumerate(files):
        entry = {"spearman": 30.0 + i, "sha256": file, "source": file}
        for run in runs:
            write_results(run, {"pairs": entry}, "pairs")
    figures = {"a/pairs.csv": "30.00", "b/pairs.csv": "32.00", "pairs.tsv": "33.00"}
    for row in rows(tmp_path, "Own pairs, Spearman x 100").values():
        assert row.items() >= figures.items()
    for column in figures:
        assert column in "".join(verdict(tmp_path))


@pytest.mark.parametrize("group", ["senteval/sts", "sts", "mini/pairs"])
def test_results_of_unknown_sets(tmp_path, capsys, group):
    write_results(tmp_path, {"STS99": {"spearman": 1.0}}, group)
    assert "STS99" in error_of(capsys, tmp_path, main=main)


def test_empty_files(tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    file.write_text("")
    for place in (file, tmp_path):
        assert str(tmp_path) in error_of(capsys, place, main=main)
    assert "no such" not in error_of(capsys, file, main=main)


def test_styles_and_notes(tmp_path, printed):
    for seed, figure in enumerate([71.0, 70.0, 73.5]):
        write_run(tmp_path, "sts-macl", seed, figure, data_variants={"train_file": "a sample"})
    write_run(tmp_path, "sts-macl", 7, 70.0, unfinished=True)
    text = printed(tmp_path)
    notes = ("train_file: a sample\n", "sts-macl-seed-7\n", ": bert-base-uncased, cls, 20 steps")
    assert all(note in text for note in notes)
    assert "## STS, Spearman x 100\n\n| " in printed(tmp_path, "--format=markdown")
    latex = printed(tmp_path, "--format=latex")
    assert "% STS, Spearman x 100\n\\begin{tabular}{lrrrrrrrr}" in latex
    assert r"71.50 $\pm$ 1.80 & " in latex


def test_missing_tasks(tmp_path):
    write_run(tmp_path, CONSTANT, 0, 70.0)
    write_run(tmp_path, CONSTANT, 1, 70.0, tasks=TASKS["sts"][:2])
    write_run(tmp_path / "part", CONSTANT, 0, 70.0, tasks=("STS12", "STS-B"))
    (line,) = rows(tmp_path).values()
    assert line["STS13"] == "71.00 ± 0.00"
    assert line["avg"] == "73.00 (1 of 2)"
    (line,) = rows(tmp_path / "part").values()
    assert list(line)[1:] == ["STS12", "STS-B", "avg of 2"]
    assert line["avg of 2"] == "70.50"


@pytest.mark.parametrize(
    ("name", "seed", "more", "place"),
    [
        (CONSTANT, 0, {"options": ["--max_steps=9"]}, "max_steps"),
        (CONSTANT, 1, {}, "seed"),
        ("x", 1, {"program": "vision/train.py"}, "run.json"),
    ],
)
def test_contradictory_runs(tmp_path, name, seed, more, place, capsys):
    write_run(tmp_path / "a", CONSTANT, 1, 70.0)
    write_run(tmp_path / "b", name, seed, 1.0, **more)
    assert place in error_of(capsys, tmp_path / "a", tmp_path / "b", main=main)


def test_unknown_baseline_and_damaged_record(tmp_path, capsys):
    run = write_run(tmp_path, CONSTANT, 1, 70.0)
    assert "--baseline" in error_of(capsys, tmp_path, "--baseline", "nobody", main=main)
    (run / "run.json").write_text("{")
    assert "run.json" in error_of(capsys, tmp_path, main=main)


def test_search_with_bm25_and_a_dense_model(tmp_path, printed):
    """Means over the seeds; the dense model is a row of its own, and no seed is compared with it."""
    for seed, figure in enumerate((30.0, 32.0)):
        run = write_run(tmp_path, CONSTANT, seed, 70.0)
        entry = {"nDCG@10": figure, "nDCG@10 with BM25": figure + 10, "sha256": "a"}
        result = Result.of_entry(entry, "retrieval", "cisi", {"model": str(run)})
        append(run / RESULTS, replace(result, dense={"nDCG@10": 20.0, "nDCG@10 with BM25": 35.0}))
    assert "with BM25 (z-scores of each query, weight 0.5)" in printed(tmp_path)
    table = rows(tmp_path, "Search x 100")
    column = "cisi nDCG@10 with BM25"
    assert table[f"{CONSTANT}, 2 seeds"][column].startswith("41.00 ± 1.41")
    assert [row[column] for name, row in table.items() if name.endswith(BASE)] == ["35.00"] * 2
