"""The record of a run."""

import json

import pytest

from dystress_text.errors import UserError
from dystress_text.training.run_folder import RECORD, read_run
from dystress_text.training.run_record import NOT_STARTED, RunRecord

TEXT = {
    "program": "dystress_text/train.py",
    "state": "finished",
    "settings": {"pooler_type": "avg", "eval_steps": 5, "metric_for_best_model": "mini_spearman"},
    "lexical": {"mini_spearman": 37.0, "avg_spearman": 99.0},
    "untrained": {"last": {"mini_spearman": 3.0}, "cls": {}, "avg": {"mini_spearman": 2.0}},
    "trained": {"mini_spearman": 36.0, "avg_spearman": 36.0},
    "steps": 9,
    "hybrid": {"dim": 8, "weight": 0.7, "name": "m", "on_hub": True, "of_a_later_version": 1},
    "held_out": {"texts": 70, "gain": 1.0, "error": 0.5},
    "of_a_later_version": [1],
}


def test_reads_a_record():
    record = RunRecord.from_json(TEXT)
    assert list(record.untrained_best_and_own) == ["last", "avg"]
    assert record.not_above_baseline == ["mini_spearman"]
    assert record.step_chosen_by == "mini_spearman"
    assert (record.hybrid.name, record.held_out.texts) == ("m", 70)
    images = RunRecord.from_json({"program": "vision/train.py", "untrained": {"knn20": 1.0}})
    assert images.untrained == {"": {"knn20": 1.0}}


def test_run_that_has_begun_has_defaults():
    record = RunRecord.from_json({"settings": TEXT["settings"]})
    assert (record.state, record.trained, record.held_out) == (NOT_STARTED, {}, None)
    assert (record.not_above_baseline, record.untrained_best_and_own) == ([], {})


@pytest.mark.parametrize("values", [{"untrained": 7}, {"held_out": {"gain": 1}}, [1]])
def test_malformed_record_is_one_line(tmp_path, values):
    (tmp_path / RECORD).write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"run\.json[^\n]+\Z"):
        read_run(tmp_path)
