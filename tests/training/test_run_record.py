"""The record of a run: what a file of 0.2 holds comes back, and what it lacks has a default."""

import json

import pytest

from dystress_text.errors import UserError
from dystress_text.training.run_folder import RECORD, read_run
from dystress_text.training.run_record import FINISHED, INTERRUPTED, NOT_STARTED, RunRecord

TEXT = {  # as 0.2.0 wrote it, shortened
    "program": "dystress_text/train.py",
    "version": "0.2.0",
    "revision": "abc",
    "state": "finished",
    "settings": {
        "preset": "own-text",
        "pooler_type": "avg",
        "seed": 0,
        "eval_steps": 5,
        "metric_for_best_model": "mini_sts_spearman",
    },
    "loss": "dcl(0.1)",
    "corpus": {"sentences": 700, "sha256": "ab", "dropped": 0},
    "collections": {},
    "versions": {"torch": "2.13"},
    "head": {"starts": "new", "kept": False},
    "data_variants": {"train_file": None},
    "paper": {"rows": ["row"], "differs": "--seed"},
    "words": {"mini_sts_spearman": 37.0, "avg_spearman": 99.0},
    "untrained": {"last": {"mini_sts_spearman": 3.0}, "cls": {}, "avg": {"mini_sts_spearman": 2.0}},
    "trained": {"mini_sts_spearman": 36.0, "avg_spearman": 36.0},
    "steps": 9,
    "best_step": 5,
    "skipped_steps": 0,
    "train_seconds": 1.5,
    "peak_memory_gb": 0.5,
    "device": "1 x cpu",
    "processes": 1,
    "hybrid": {
        "dim": 8,
        "weight": 0.7,
        "gives": "both",
        "name": "m",
        "on_hub": True,
        "license": None,
    },
    "base_model": {"name": "static", "on_hub": False, "license": None},
    "halves": {"texts": 70, "gain": 1.0, "error": 0.5, "neighbours": [["a", "b", "c"]]},
    "random_pairs": {"cosines": {"0.5": 0.1}},
    "similarities": {"set": "mini-STS"},
    "padding_share": 0.1,
}
IMAGES = {
    "program": "vision/train.py",
    "version": "0.2.0",
    "state": "finished",
    "settings": {"dataset": "shapes"},
    "loss": "byol()",
    "data": {"name": "shapes", "images": 9},
    "untrained": {"knn20": 1.0},
    "trained": {"knn20": 2.0},
    "neighbours": {"before": {}, "after": {}},
    "images_per_second": 5.0,
}


@pytest.mark.parametrize("values", [TEXT, IMAGES, {**TEXT, "of_a_later_version": [1]}])
def test_what_a_file_holds_comes_back(values):
    record = RunRecord.from_json(values)
    written = json.loads(json.dumps(record.to_json()))
    assert RunRecord.from_json(written) == record
    assert written == values


def test_what_readers_ask_of_a_record():
    record = RunRecord.from_json(TEXT)
    assert list(record.untrained_best_and_own) == ["last", "avg"]
    assert record.not_above_baseline == ["mini_sts_spearman"]
    assert record.step_chosen_by == "mini_sts_spearman"
    assert (record.hybrid.name, record.held_out.texts, record.paper.rows) == ("m", 70, ["row"])
    assert RunRecord.from_json(IMAGES).untrained == {"": {"knn20": 1.0}}


def test_an_interrupted_run_has_defaults():
    begun = {name: TEXT[name] for name in ("program", "version", "settings", "loss")}
    record = RunRecord.from_json(begun)
    assert (record.state, record.trained, record.held_out, record.steps) == (
        INTERRUPTED,
        {},
        None,
        None,
    )
    assert (record.not_above_baseline, record.untrained_best_and_own) == ([], {})
    assert RunRecord.from_json({**begun, "trained": {}}).state == FINISHED  # before states
    assert RunRecord.from_json({}) == RunRecord()
    assert RunRecord().state == NOT_STARTED


@pytest.mark.parametrize("values", [{"untrained": 7}, {"halves": {"gain": 1}}, {"base_model": "m"}])
def test_a_record_of_another_form_is_one_line(tmp_path, values):
    (tmp_path / RECORD).write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"run\.json is not the record of a run: [^\n]+\Z"):
        read_run(tmp_path)
