"""Describe the outcome of a run: what was trained, its figures, and the checkpoint kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dystress_text.analysis.runs import FinishedRun
from dystress_text.evaluation.catalogue import STS_SETS
from dystress_text.evaluation.lexical import not_beaten
from dystress_text.evaluation.readers import slug_of
from dystress_text.evaluation.retrieval import FUSION
from dystress_text.finetuning import holdout
from dystress_text.models.static import STATIC
from dystress_text.training.run_folder import TEXT_PROGRAM
from dystress_text.training.run_record import RunRecord

_MEASURES = {  # by the end of a metric's name
    "spearman": "Spearman x 100, higher is better",
    "alignment": "alignment, lower is better",
    "uniformity": "uniformity, lower is better",
    "accuracy": "accuracy x 100, higher is better",
    "agreement": "agreement of two views x 100, higher is better",
    "ndcg@10_with_bm25": f"{FUSION} x 100, higher is better",
    "ndcg@10": "nDCG@10 x 100, higher is better",
    "ndcg@10_graded": "nDCG@10 of graded judgements x 100, higher is better",
    "mrr@10": "MRR@10 x 100, higher is better",
    "recall@1": "recall@1 x 100, higher is better",
    "recall@100": "recall@100 x 100, higher is better",
}
_SETS = {slug_of(task.title): task.title for task in STS_SETS.values()}


def metric_title(metric: str) -> str:
    """Return set and measure of a metric, such as ``cisi: nDCG@10 x 100, higher is better``."""
    for kind, measure in _MEASURES.items():
        name = metric.removesuffix(f"_{kind}")
        if name != metric:
            return f"{_SETS.get(name, name.replace('_', ' '))}: {measure}"
    return metric


def title(runs: Sequence[FinishedRun]) -> str:
    """Return which model was trained on which data."""
    trained = "; ".join(dict.fromkeys(_trained(run.record) for run in runs))
    return trained if len(runs) == 1 else f"{len(runs)} runs: {trained}"


def _trained(record: RunRecord) -> str:
    settings = record.settings
    if record.program != TEXT_PROGRAM:
        data = record.data.get("name") or settings.get("dataset")
        images = record.data.get("images")
        if images is not None:
            data = f"{images:,} images of {data}"
        return f"{settings.get('architecture', 'image encoder')} on {data}"
    corpus = record.corpus
    samples = corpus.get("samples", corpus["sentences"])
    unit = "rows" if corpus.get("columns", 1) > 1 else "texts"
    files = ", ".join(Path(file).name for file in record.train_files) or "Wiki1M"
    model = Path(settings["model_name_or_path"]).name
    if model == STATIC:
        model = "word vectors"
    return f"{model} trained on {samples:,} {unit} of {files}"


def outcome(record: RunRecord) -> list[str]:
    """Return a collapse, the main figures, where the lexical baseline wins, and the kept step."""
    figures = [_figures(record), *holdout.outcome(record)]
    return [*collapse(record), *figures, *not_beaten(record), _kept(record)]


def collapse(record: RunRecord) -> list[str]:
    """Return a line about a collapse; [] without one."""
    if record.collapsed_step is None:
        return []
    kept = "no model was saved before"
    if record.best_step is not None and record.best_step < record.collapsed_step:
        kept = f"the model of step {record.best_step:,} is kept"
    return [
        f"Collapsed: at step {record.collapsed_step:,} all samples have one embedding (mean cosine "
        f"1.0000); {kept}. Lower the learning rate or raise the temperature"
    ]


def _figures(record: RunRecord) -> str:
    """Return a line on the metric that selected the checkpoint, or on the first one."""
    if not record.trained:
        shown = len(record.samples.get("trained", ()))
        if shown:
            return f"{shown} texts are shown with their nearest three before and after training"
        return "No metric was measured"
    metric = str(record.settings.get("metric_for_best_model"))
    if metric not in record.trained:
        metric = next(iter(record.trained))
    figures = {}
    best = next(iter(record.untrained_best_and_own), None)
    if best is not None:
        figures[f"{record.start} {best}".strip()] = record.untrained[best].get(metric)
    figures["trained"] = record.trained[metric]
    figures[record.lexical_label] = record.lexical.get(metric)
    known = [f"{label} {figure:.2f}" for label, figure in figures.items() if figure is not None]
    return f"{metric_title(metric)}: {', '.join(known)}; 1 seed"


def _kept(record: RunRecord) -> str:
    chose = record.step_chosen_by
    if chose is None or record.best_step is None:
        return f"Kept: the last step, {record.steps:,}"
    step = f"step {record.best_step:,} of {record.steps:,}"
    return f"Kept: {step}, chosen by {chose} (not a test score)"
