"""The outcome of a run: figures, the interval of the gain, and the kept step."""

import re
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats
from sweep_runs import record_of

from dystress_text.analysis.outcome import outcome
from dystress_text.cli.text_table import cell
from dystress_text.evaluation.statistics import spread
from dystress_text.finetuning.arguments import parse
from dystress_text.finetuning.held_out import RECALL, recall_gain
from dystress_text.training.run_record import Metric, RunRecord

METRIC = RECALL.name


def record(*options, **more):
    found = {**record_of(parse([f"--{option}" for option in options])), "best_step": 20, **more}
    found["settings"]["metric_for_best_model"] = more.get("chose")
    return RunRecord.from_json(found)


def numbers(line):
    """The signed numbers of a line, those inside a word such as recall@1 left out."""
    return [float(x) for x in re.findall(r"(?<![\w@.-])[+-]?\d+(?:\.\d+)?(?![\w.@])", line)]


@pytest.mark.parametrize("gained", [True, False])
def test_gain_on_held_out_rows(gained):
    shares = [0.1, 0.5, 0.4] if gained else [0.3, 0.4, 0.3]
    gains = 100 * np.random.default_rng(int(not gained)).choice([-1.0, 0.0, 1.0], 80, p=shares)
    found = record(
        untrained={"cls": {METRIC: 20.0}},
        trained={METRIC: 20 + gains.mean()},
        held_out={"gain": gains.mean(), "error": stats.sem(gains), "texts": 80},
        lexical={METRIC: 61.04},
        metrics={METRIC: asdict(RECALL)},
    )
    low, high = stats.norm.interval(0.95, gains.mean(), stats.sem(gains))
    figures, line, *_, kept = outcome(found)
    expected = [20.0, 20 + gains.mean(), 61.04, 1]
    assert numbers(figures.partition("untrained")[2]) == pytest.approx(expected, abs=0.01)
    expected = [gains.mean(), low, high, 80]
    assert numbers(line.partition("untrained")[2]) == pytest.approx(expected, abs=0.06)
    assert (low < 0) == (not gained)
    assert numbers(kept) == [20]


@pytest.mark.parametrize("gain", [100.0, -100.0])
def test_gain_of_a_share_is_at_most_100(gain):
    before = np.full(30, float(gain < 0))
    found = record(
        untrained={"cls": {METRIC: 100 * before[0]}},
        trained={METRIC: 100 - 100 * before[0]},
        held_out=asdict(recall_gain(before, 1 - before)),
        metrics={METRIC: asdict(RECALL)},
    )
    line = outcome(found)[1]
    mean, low, high, *_ = numbers(line.partition("trained - ")[2])
    assert mean == gain
    assert -100 <= low < high <= 100


def test_a_figure_that_rounds_to_0_has_no_sign():
    found = record(
        trained={METRIC: 19.96},
        held_out={"gain": -0.04, "error": 0.001, "texts": 80},
        metrics={METRIC: asdict(RECALL)},
    )
    assert "+0.0 (0.0 to 0.0;" in outcome(found)[1]
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
    figures, behind, kept = outcome(chosen)
    assert numbers(figures.partition("pooler avg")[2]) == [38.7, 30.0, 41.0, 36.8, 1]
    assert "x_ndcg@10" in behind
    assert numbers(behind) == [5.0, 6.0]
    assert numbers(kept) == [10, 20]


def test_last_step_alone_is_measured():
    measured = {"trained": {"mini_sts_spearman": 41.0}, "chose": "mini_sts_spearman"}
    assert numbers(outcome(record("eval_steps=0", **measured))[-1]) == [20]
    assert len(outcome(record(trained={}))) == 2


def test_a_run_on_text_says_what_is_shown():
    texts = [["a", "b", "c", "d"]] * 12
    first, _ = outcome(record(trained={}, samples={"untrained": texts, "trained": texts}))
    assert numbers(first) == [12]
    assert "metric" not in first


def test_metric_titles():
    metric = Metric("my_set", "alignment", "My set: alignment", higher_is_better=False)
    assert metric.full_title == "My set: alignment, lower is better"
    assert Metric("knn200").full_title == "knn200"
