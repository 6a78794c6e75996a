"""What a page says came of a run: the sentence, its interval, the step that was kept."""

import numpy as np
import pytest
from scipy import stats
from sweep_runs import record_of

from dystress_text.report.outcome import in_words, outcome
from dystress_text.simcse.arguments import parse


def record(*options, **more):
    found = {**record_of(parse([f"--{option}" for option in options])), "best_step": 20, **more}
    found["settings"]["metric_for_best_model"] = more.get("chose")
    return found


def test_the_gain_on_held_out_texts_has_the_interval_of_a_t_test():
    gains = 100 * np.random.default_rng(0).choice([-1.0, 0.0, 1.0], 80, p=[0.1, 0.5, 0.4])
    halves = {"gain": gains.mean(), "error": stats.sem(gains), "texts": 80}
    measured = {
        "untrained": {"cls": {"halves_found": 20.0}},
        "trained": {"halves_found": 20 + gains.mean()},
    }
    result, kept = outcome(record(**measured, halves=halves, words={"halves_found": 61.04}))
    low, high = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    about = "Search in your text, by its halves (second halves found x 100, higher is better): "
    change = f"20.0 before training, {20 + gains.mean():.1f} after, 61.0 by words alone. "
    gain = f"The gain is {gains.mean():+.1f}, 95 % interval {low:+.1f} to {high:+.1f} over 80 texts that training did "
    assert result == about + change + gain + "not see. One seed: no claim about another run."
    assert kept == "The last step, 20, was kept: no set chose one."
    unclear = {"gain": 1.0, "error": 0.9, "texts": 80}
    assert (
        "over 80 texts that training did not see: no clear change."
        in outcome(record(**measured, halves=unclear))[0]
    )


def test_a_set_has_the_best_untrained_pooler_words_and_no_claim():
    untrained = {"avg": {"mini_sts_spearman": 38.7}, "cls": {"mini_sts_spearman": 30.0}}
    trained, words = (
        {"mini_sts_spearman": 41.0, "x_ndcg@10": 5.0},
        {"mini_sts_spearman": 36.8, "x_ndcg@10": 6.0},
    )
    said = outcome(
        record(
            untrained=untrained,
            trained=trained,
            words=words,
            best_step=10,
            chose="mini_sts_spearman",
        )
    )
    assert said == [
        "Similar sentences, mini-STS (Spearman x 100, higher is better): 38.7 before training by the "
        "best pooler, avg, 41.0 after, 36.8 by words alone. One seed: no claim.",
        "Words alone reach 6.0 in search, x; this model 5.0.",
        "Step 10 of 20 was kept, the best in similar sentences, mini-STS; what chose the step cannot judge it.",
    ]
    assert outcome(record(trained={}))[0].startswith("Nothing was measured")
    for every in (0, 20, 125):  # the last step alone is measured
        last = record(
            f"eval_steps={every}", trained=trained, best_step=20, chose="mini_sts_spearman"
        )
        assert outcome(last)[-1] == "The last step, 20, was kept: no set chose one."


@pytest.mark.parametrize(
    ("metric", "words"),
    [("mr_dev_accuracy", "classification, mr dev"), ("cisi_ndcg@10", "search, cisi"),
     ("cisi_ndcg@10_graded", "search, cisi, by grades"), ("loss", "training loss"),
     ("knn200", "class of a test image by its 200 nearest neighbours"), ("STS12", "STS12"), ("my_own", "my_own"),
     ("sts_b_dev_alignment", "alignment, STS-B dev")],
)  # fmt: skip
def test_metrics_are_called_in_words_and_what_is_not_known_by_its_name(metric, words):
    assert in_words(metric)[0] == words
    assert ("is better" in in_words(metric)[1]) == (metric not in ("STS12", "my_own"))
