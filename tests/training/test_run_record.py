"""The record of a run, also of version 0.2."""

import json

import pytest

from dystress_text.errors import UserError
from dystress_text.training.run_folder import RECORD, read_run
from dystress_text.training.run_record import FINISHED, INTERRUPTED, NOT_STARTED, RunRecord

TEXT = {  # as 0.2.0 wrote it, shortened
    "program": "dystress_text/train.py",
    "version": "0.2.0",
    "state": "finished",
    "settings": {"pooler_type": "avg", "eval_steps": 5, "metric_for_best_model": "mini_spearman"},
    "loss": "dcl(0.1)",
    "paper": {"rows": ["row"], "differs": "--seed"},
    "words": {"mini_spearman": 37.0, "avg_spearman": 99.0},
    "untrained": {"last": {"mini_spearman": 3.0}, "cls": {}, "avg": {"mini_spearman": 2.0}},
    "trained": {"mini_spearman": 36.0, "avg_spearman": 36.0},
    "steps": 9,
    "beside": {"dim": 8, "weight": 0.7, "gives": "both", "name": "m", "on_hub": True},
    "halves": {"texts": 70, "gain": 1.0, "error": 0.5, "neighbours": [["a", "b", "c"]]},
    "padding_share": 0.1,
}
IMAGES = {"program": "vision/train.py", "state": "finished", "untrained": {"knn20": 1.0}}


@pytest.mark.parametrize("values", [TEXT, IMAGES, {**TEXT, "of_a_later_version": [1]}])
def test_round_trip(values):
    record = RunRecord.from_json(values)
    written = json.loads(json.dumps(record.to_json()))
    assert written == values
    assert RunRecord.from_json(written) == record


def test_reads_a_record_of_0_2():
    record = RunRecord.from_json(TEXT)
    assert list(record.untrained_best_and_own) == ["last", "avg"]
    assert record.not_above_baseline == ["mini_spearman"]
    assert record.step_chosen_by == "mini_spearman"
    assert (record.hybrid.name, record.held_out.texts, record.paper.rows) == ("m", 70, ["row"])
    assert RunRecord.from_json(IMAGES).untrained == {"": {"knn20": 1.0}}


def test_interrupted_run_has_defaults():
    begun = {name: TEXT[name] for name in ("program", "version", "settings", "loss")}
    record = RunRecord.from_json(begun)
    assert (record.state, record.trained, record.held_out) == (INTERRUPTED, {}, None)
    assert (record.not_above_baseline, record.untrained_best_and_own) == ([], {})
    assert RunRecord.from_json({**begun, "trained": {}}).state == FINISHED  # without a state
    assert RunRecord.from_json({}).state == NOT_STARTED


@pytest.mark.parametrize("values", [{"untrained": 7}, {"halves": {"gain": 1}}, {"base_model": "m"}])
def test_malformed_record_is_one_line(tmp_path, values):
    (tmp_path / RECORD).write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"run\.json[^\n]+\Z"):
        read_run(tmp_path)
