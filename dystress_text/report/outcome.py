"""The first lines of a run's page: what was trained, its figures, and which step was kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dystress_text.evaluation.words import not_beaten
from dystress_text.report.runs import FinishedRun
from dystress_text.simcse import halves
from dystress_text.training.run_folder import TEXT_PROGRAM
from dystress_text.training.run_record import RunRecord

MEASURES = {  # by the end of a metric's name
    "spearman": "Spearman x 100, higher is better",
    "alignment": "alignment, lower is better",
    "uniformity": "uniformity, lower is better",
    "accuracy": "accuracy x 100, higher is better",
    "ndcg@10": "nDCG@10 x 100, higher is better",
    "mrr@10": "MRR@10 x 100, higher is better",
    "recall@100": "recall@100 x 100, higher is better",
    "ndcg@10_graded": "nDCG@10 of graded judgements x 100, higher is better",
}
_WHOLE = {
    "loss": ("training loss", "lower is better"),
    halves.METRIC: ("half-document retrieval", "recall@1 x 100, higher is better"),
    "avg_spearman": ("mean of the sets", MEASURES["spearman"]),
    "avg_transfer_dev": ("mean of the transfer tasks", MEASURES["accuracy"]),
}
_SETS = {
    "sts_b_dev": "STS-B dev",
    "sts_b_test": "STS-B test",
    "sick_r_dev": "SICK-R dev",
    "sick_r_test": "SICK-R test",
    "mini_sts": "mini-STS",
}


def metric_title(metric: str) -> tuple[str, str]:
    """Return the set of a metric and its measure; of an unknown one the name and ""."""
    if metric in _WHOLE:
        return _WHOLE[metric]
    if neighbours := re.fullmatch(r"knn(\d+)", metric):
        return f"{neighbours[1]} nearest neighbours", MEASURES["accuracy"]
    for kind, measure in MEASURES.items():
        name = metric.removesuffix(f"_{kind}")
        if name != metric:
            return _SETS.get(name, name.replace("_", " ")), measure
    return metric, ""


def title(runs: Sequence[FinishedRun]) -> str:
    """Return what was trained on what."""
    trained = "; ".join(dict.fromkeys(_trained(run.record) for run in runs))
    return f"{len(runs)} runs: {trained}" if len(runs) > 1 else trained


def _trained(record: RunRecord) -> str:
    settings = record.settings
    if record.program != TEXT_PROGRAM:
        data = str(record.data.get("name") or settings.get("dataset"))
        images = record.data.get("images")
        count = "" if images is None else f"{images:,} images of "
        return f"{settings.get('architecture', 'image encoder')} on {count}{data}"
    texts = record.corpus["sentences"] - (0 if record.halves is None else record.halves.texts)
    name = Path(settings["model_name_or_path"]).name
    return f"{name} on {texts:,} texts of {Path(settings.get('train_file') or 'Wiki1M').name}"


def main_metric(record: RunRecord) -> str | None:
    """Return the metric that chose the step, that of held-out texts, or the first."""
    wanted = (record.settings.get("metric_for_best_model"), halves.METRIC, *record.trained)
    return next((metric for metric in wanted if metric in record.trained), None)


def outcome(record: RunRecord) -> list[str]:
    """Return the run's figures, the sets where the lexical baseline is better, the kept step."""
    metric = main_metric(record)
    lines = halves.outcome(record) if metric == halves.METRIC else []
    if metric is None:
        lines = ["No metric was measured"]
    elif not lines:
        lines = [_figures(record, metric)]
    return [*lines, *not_beaten(record), _kept(record)]


def _figures(record: RunRecord, metric: str) -> str:
    name, measure = metric_title(metric)
    figures = {}
    for pooler, untrained in list(record.untrained_best_and_own.items())[:1]:
        figures[f"untrained {pooler}".strip()] = untrained.get(metric)
    figures["trained"] = record.trained[metric]
    figures["TF-IDF/BM25"] = record.words.get(metric)
    known = [f"{label} {figure:.2f}" for label, figure in figures.items() if figure is not None]
    return f"{name} ({measure or metric}): {', '.join(known)}; 1 seed"


def _kept(record: RunRecord) -> str:
    chose = record.step_chosen_by
    if chose is None or record.best_step is None:
        return f"Kept: the last step, {record.steps:,}"
    step = f"step {record.best_step:,} of {record.steps:,}"
    return f"Kept: {step}, chosen by {chose} (not a test score)"
