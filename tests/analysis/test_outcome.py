"""The outcome of a run: figures, the interval of the gain, and the kept step."""

import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sweep_runs import record_of

from dystress_text.analysis.finished_run import FinishedRun, outcome_lines
from dystress_text.cli.text_table import cell
from dystress_text.evaluation.statistics import spread
from dystress_text.finetuning.arguments import parse
from dystress_text.finetuning.held_out import RECALL, recall_gain
from dystress_text.training.run_record import Metric, RunRecord

METRIC = RECALL.name


def record(**more):
    """The record of a run of 20 steps whose last one was kept."""
    record = {**record_of(parse([])), "best_step": 20, **more}
    record["settings"] |= {"metric_for_best_model": more.get("chose"), "eval_steps": 5}
    return RunRecord.from_json(record)


def held_out(gains, **more):
    """The record of a run with these gains on held-out rows, x 100."""
    measured = {"gain": gains.mean(), "error": stats.sem(gains), "texts": len(gains)}
    return record(held_out=measured, metrics={METRIC: asdict(RECALL)}, **more)


def numbers(line):
    """The signed numbers of a line, those inside a word such as recall@1 left out."""
    return [float(x) for x in re.findall(r"(?<![\w@.-])[+-]?\d+(?:\.\d+)?(?![\w.@])", line)]


@pytest.mark.parametrize("shares", [[0.1, 0.5, 0.4], [0.3, 0.4, 0.3]])
def test_gain_on_held_out_rows(shares):
    gains = 100 * np.random.default_rng(0).choice([-1.0, 0.0, 1.0], 80, p=shares)
    trained = {METRIC: 20 + gains.mean()}
    untrained = {"cls": {METRIC: 20.0}}
    found = held_out(gains, untrained=untrained, trained=trained, lexical={METRIC: 61.04})
    low, high = stats.norm.interval(0.95, gains.mean(), stats.sem(gains))
    figures, line, *_, kept = outcome_lines(found)
    assert repr(FinishedRun(Path("out"), found)).splitlines()[1:-1] == outcome_lines(found)[:3]
    expected = [20.0, trained[METRIC], 61.04, 1]
    assert numbers(figures.partition("untrained")[2]) == pytest.approx(expected, abs=0.01)
    expected = [gains.mean(), low, high, 80]
    assert numbers(line.partition("untrained")[2]) == pytest.approx(expected, abs=0.06)
    assert numbers(kept) == [20]


@pytest.mark.parametrize("gain", [100.0, -100.0])
def test_gain_of_a_share_is_at_most_100(gain):
    before = np.full(30, float(gain < 0))
    found = record(
        trained={METRIC: 50.0},
        held_out=asdict(recall_gain(before, 1 - before)),
        metrics={METRIC: asdict(RECALL)},
    )
    mean, low, high, *_ = numbers(outcome_lines(found)[1].partition("trained - ")[2])
    assert mean == gain
    assert -100 <= low < high <= 100


def test_a_figure_that_rounds_to_0_has_no_sign():
    found = held_out(np.array([-0.04, -0.04]), trained={METRIC: 19.96})
    assert "+0.0 (0.0 to 0.0;" in outcome_lines(found)[1]
    assert (cell(-0.001), spread([-0.001])) == ("0.00", "0.00")


def test_best_untrained_pooler_and_lexical_baseline():
    chosen = record(
        untrained={"avg": {"mini_sts_spearman": 38.7}, "cls": {"mini_sts_spearman": 30.0}},
        trained={"mini_sts_spearman": 41.0, "x_ndcg@10": 5.0},
        lexical={"mini_sts_spearman": 36.8, "x_ndcg@10": 6.0},
        metrics={"x_ndcg@10": {"set": "x", "measure": "ndcg@10", "lexical": "BM25"}},
        best_step=10,
        chose="mini_sts_spearman",
    )
    figures, behind, kept = outcome_lines(chosen)
    assert numbers(figures.partition("pooler avg")[2]) == [38.7, 30.0, 41.0, 36.8, 1]
    assert "x_ndcg@10" in behind
    assert numbers(behind) == [5.0, 6.0]
    assert numbers(kept) == [10, 20]


@pytest.mark.parametrize(("step", "kept"), [(None, "no model was saved"), (10, "step 10 is kept")])
def test_a_collapse_comes_first(step, kept):
    first, *_ = outcome_lines(record(collapsed_step=15, best_step=step))
    assert first.startswith("Collapsed: at step 15 ")
    assert kept in first


def test_last_step_alone_is_measured():
    found = record(trained={"mini_sts_spearman": 41.0}, chose="mini_sts_spearman")
    found.settings["eval_steps"] = 0
    assert numbers(outcome_lines(found)[-1]) == [20]
    assert len(outcome_lines(record(trained={}))) == 2


def test_a_run_on_text_says_what_is_shown():
    texts = [["a", "b", "c", "d"]] * 12
    first, _ = outcome_lines(record(trained={}, samples={"untrained": texts, "trained": texts}))
    assert numbers(first) == [12]
    assert "metric" not in first


def test_metric_titles():
    metric = Metric("my_set", "alignment", "My set: alignment", higher_is_better=False)
    assert metric.full_title == "My set: alignment, lower is better"
    assert Metric("knn200").full_title == "knn200"
