"""What came of a run, in words, from its record: what was trained on what, the result, and which
step was kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dystress_text.report.runs import FinishedRun
from dystress_text.training.run_folder import (
    TEXT_PROGRAM,
    behind_words,
    step_chosen_by,
    untrained_of,
)

Record = Mapping[str, Any]
HELD_OUT = "halves_found"  # texts that are held out of training, without labels
MEASURES = {  # ends of metrics: what a sentence and what a table call them
    "spearman": ("similar sentences", "Spearman x 100, higher is better"),
    "alignment": ("alignment", "lower is better"),
    "uniformity": ("uniformity", "lower is better"),
    "accuracy": ("classification", "accuracy x 100, higher is better"),
    "ndcg@10": ("search", "nDCG@10 x 100, higher is better"),
    "mrr@10": ("search", "MRR@10 x 100, higher is better"),
    "recall@100": ("search", "recall@100 x 100, higher is better"),
}
_WHOLE = {
    "loss": ("training loss", "lower is better"),
    HELD_OUT: ("search in your text, by its halves", "second halves found x 100, higher is better"),
    "avg_spearman": ("similar sentences, mean of the sets", "Spearman x 100, higher is better"),
    "avg_transfer_dev": ("classification, mean of the tasks", "accuracy x 100, higher is better"),
}
_SETS = {
    "sts_b_dev": "STS-B dev", "sts_b_test": "STS-B test", "sick_r_dev": "SICK-R dev", "sick_r_test": "SICK-R test",
    "mini_sts": "mini-STS",
}  # fmt: skip
_TEXTS = {None: "Wikipedia (Wiki1M)", "python-documentation": "Python's documentation"}


def in_words(metric: str) -> tuple[str, str]:
    """What a metric is about, and its measure with the direction that is better; of unknown ones
    the name and "".
    """
    if metric in _WHOLE:
        return _WHOLE[metric]
    if neighbours := re.fullmatch(r"knn(\d+)", metric):
        return f"class of a test image by its {neighbours[1]} nearest neighbours", MEASURES[
            "accuracy"
        ][1]
    if metric.endswith("_graded"):
        about, measure = in_words(metric.removesuffix("_graded"))
        return f"{about}, by grades", measure
    of, _, kind = metric.rpartition("_")
    if not of or kind not in MEASURES:
        return metric, ""
    about, measure = MEASURES[kind]
    return f"{about}, {_SETS.get(of, of.replace('_', ' '))}", measure


def metric_title(metric: str) -> str:
    """A metric's name in words, and which way is better, in two lines."""
    return "\n".join(filter(None, in_words(metric)))


def title(runs: Sequence[FinishedRun]) -> str:
    """What was trained on what."""
    trained = list(dict.fromkeys(map(_trained, (run.record for run in runs))))
    losses = len({run.record["loss"] for run in runs})
    several = (
        f"{losses} losses compared: "
        if losses > 1
        else f"{len(runs)} runs: "
        if len(runs) > 1
        else ""
    )
    return several + "; ".join(trained)


def _trained(record: Record) -> str:
    settings = record["settings"]
    if record.get("program") != TEXT_PROGRAM:
        data = record.get("data", {"name": settings.get("dataset")})
        what, count = (
            f"An image encoder ({settings.get('architecture', 'ResNet')})",
            data.get("images"),
        )
        return f"{what} trained on {f'{count:,} images of ' if count else ''}{data['name']}"
    name = settings["model_name_or_path"]
    what = "A table of word vectors" if name == "static" else f"A text encoder ({Path(name).name})"
    data = _TEXTS.get(settings.get("train_file")) or Path(settings["train_file"]).name
    texts = record["corpus"]["sentences"] - (record.get("halves") or {"texts": 0})["texts"]
    return f"{what} trained on {texts:,} texts of {data}"


def main_metric(record: Record) -> str | None:
    """The metric that the page begins with: the one that chose the step, that of held-out texts, or
    the first.
    """
    trained = record["trained"]
    wanted = (record["settings"].get("metric_for_best_model"), HELD_OUT, *trained)
    return next((metric for metric in wanted if trained.get(metric) is not None), None)


def outcome(record: Record) -> list[str]:
    """The result with its interval or without a claim, where words alone are better, and which step
    was kept.
    """
    metric = main_metric(record)
    if metric is None:
        return ["Nothing was measured, so nobody can say whether training helped.", _kept(record)]
    return [_result(record, metric), *_behind_words(record, metric), _kept(record)]


def _result(record: Record, metric: str) -> str:
    about, measure = in_words(metric)
    after, words = record["trained"][metric], (record.get("words") or {}).get(metric)
    known = {
        name: of[metric] for name, of in untrained_of(record).items() if of.get(metric) is not None
    }
    name, before = next(iter(known.items()), ("", None))
    best = f" by the best pooler, {name}" * (
        name not in ("", record["settings"].get("pooler_type"))
    )
    change = f"{after:.1f} after" + " training" * (before is None)
    if before is not None:
        change = f"{before:.1f} before training{best}, {change}"
    baseline = "" if words is None else f", {words:.1f} by words alone"
    how = f" ({measure})" if measure else ""
    return f"{about[0].upper()}{about[1:]}{how}: {change}{baseline}. {_claim(record, metric)}"


def _claim(record: Record, metric: str) -> str:
    from scipy import stats  # slow to import

    halves = record.get("halves")
    if metric != HELD_OUT or not halves:
        return "One seed: no claim."
    gain, texts = halves["gain"], halves["texts"]
    reach = stats.t.ppf(0.975, texts - 1) * halves["error"]
    told = f"The gain is {gain:+.1f}, 95 % interval {gain - reach:+.1f} to {gain + reach:+.1f}"
    clear = "" if abs(gain) > reach else ": no clear change"
    return f"{told} over {texts} texts that training did not see{clear}. One seed: no claim about another run."


def _behind_words(record: Record, but: str) -> list[str]:
    """A line for each further set on which words alone are as good or better."""
    words, trained = record.get("words", {}), record["trained"]
    return [
        f"Words alone reach {words[name]:.1f} in {in_words(name)[0]}; this model {trained[name]:.1f}."
        for name in behind_words(record)
        if name != but
    ]


def _kept(record: Record) -> str:
    steps, step, chose = record["steps"], record.get("best_step"), step_chosen_by(record)
    if chose is None or step is None:
        return f"The last step, {steps:,}, was kept: no set chose one."
    best = f"the best in {in_words(chose)[0]}"
    return f"Step {step:,} of {steps:,} was kept, {best}; what chose the step cannot judge it."
