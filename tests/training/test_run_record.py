"""The record of a run."""

import json

import pytest

from dystress_text.errors import UserError
from dystress_text.training.run_folder import RECORD, read_record, write_record
from dystress_text.training.run_record import BASE, NOT_STARTED, HeldOut, Hybrid, Metric, RunRecord

TEXT = {
    "program": "dystress_text/train.py",
    "state": "finished",
    "settings": {"pooler_type": "avg", "eval_steps": 5, "metric_for_best_model": "mini_spearman"},
    "metrics": {
        "mini_spearman": {"set": "mini", "measure": "spearman", "lexical": "TF-IDF"},
        "avg_spearman": {"set": "avg", "measure": "spearman", "sets": ["mini", "other"]},
    },
    "lexical": {"mini_spearman": 37.0, "avg_spearman": 99.0},
    "untrained": {
        "last": {"mini_spearman": 3.0},
        "cls": {"mini_spearman": 1.0},
        "avg": {"mini_spearman": 2.0},
    },
    "trained": {"mini_spearman": 36.0, "avg_spearman": 36.0},
    "steps": 9,
    "hybrid": {"dim": 8, "weight": 0.7, "name": "m", "on_hub": True, "of_a_later_version": 1},
    "held_out": {"texts": 70, "gain": 1.0, "error": 0.5},
    "of_a_later_version": [1],
}


def test_reads_a_record():
    record = RunRecord.from_json(TEXT)
    models = ["untrained, best pooler last", "untrained", "trained", "TF-IDF/BM25"]
    assert list(record.compared) == models
    assert record.not_above_baseline == [("mini_spearman", "TF-IDF", 37.0)]
    assert (record.hybrid.name, record.held_out.texts) == ("m", 70)
    mean = record.metric("avg_spearman")  # written before sets had kinds
    assert mean.is_on("pairs", "other")
    assert not mean.is_on("pairs", "avg")


@pytest.mark.parametrize(
    ("eval_steps", "best_step", "is_chosen"),
    [(0, 9, False), (9, 9, False), (5, 9, True), (0, 5, True), (None, 9, True)],
)
def test_metric_chose_the_step_if_there_were_others(eval_steps, best_step, is_chosen):
    settings = {"eval_steps": eval_steps, "metric_for_best_model": "mini_spearman"}
    record = RunRecord(settings=settings, steps=9, best_step=best_step)
    assert record.step_chosen_by == ("mini_spearman" if is_chosen else None)


def test_titles_and_directions():
    assert Metric("a", "b").full_title == "a_b"
    assert Metric("a", title="A").full_title == "A, higher is better"
    assert Metric("a", title="A", higher_is_better=False).full_title == "A, lower is better"


def test_a_written_record_reads_as_itself(tmp_path):
    record = RunRecord.from_json(TEXT)
    mean = Metric("avg", "spearman", sets=(("sts", "mini"), ("pairs", "mine")))
    record.metrics = {mean.name: mean}
    record.hybrid = Hybrid("m", pivot=0.75)
    record.held_out = HeldOut(70, 1.0, 0.5)
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record


def test_baselines_of_search_and_held_out_samples():
    """A hybrid is also compared with its dense model and BM25; it is above that on ``b``."""
    fused = "ndcg@10_with_bm25"
    metrics = [Metric("pairs", "recall@1", lexical="BM25"), Metric("a", "mrr@10")]
    for name in ("a", "b"):
        alone = Metric(name, "ndcg@10", lexical="BM25")
        metrics += [alone, Metric(name, fused, lexical="BM25", lexical_metric=alone.name)]
    record = RunRecord(metrics={metric.name: metric for metric in metrics})
    record.lexical = {"pairs_recall@1": 85.0, "a_ndcg@10": 30.0, "a_mrr@10": 9.0, "b_ndcg@10": 48.0}
    record.untrained = {BASE: {f"a_{fused}": 41.0, f"b_{fused}": 40.0}}
    record.trained = {
        "pairs_recall@1": 25.0,
        "a_ndcg@10": 40.0,
        f"a_{fused}": 42.0,
        "a_mrr@10": 8.0,
    }
    record.trained |= {"b_ndcg@10": 45.0, f"b_{fused}": 48.0}
    assert record.not_above_baseline == [
        ("pairs_recall@1", "BM25", 85.0),
        ("a_ndcg@10", f"{BASE} with BM25", 41.0),
        ("b_ndcg@10", "BM25", 48.0),
        (f"b_{fused}", "BM25", 48.0),  # an equal figure is not above
    ]


def test_run_that_has_begun_has_defaults():
    record = RunRecord.from_json({"settings": TEXT["settings"]})
    assert (record.state, record.trained, record.held_out) == (NOT_STARTED, {}, None)
    assert (record.not_above_baseline, record.compared) == ([], {})
    assert (record.train_files, record.base_model.on_hub) == ([], False)


@pytest.mark.parametrize("named", ["a.txt", ["a.txt"]])
def test_training_files_are_a_list(named):
    assert RunRecord(settings={"train_file": named}).train_files == ["a.txt"]


@pytest.mark.parametrize("values", [{"corpus": 7}, {"held_out": {"gain": 1}}, [1]])
def test_malformed_record_is_one_line(tmp_path, values):
    (tmp_path / RECORD).write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"run\.json[^\n]+\Z"):
        read_record(tmp_path)
