"""Write results into a card's metadata as ``model-index``, which the hub displays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard

from dystress_text.errors import UserError, reason_of
from dystress_text.evaluation.results import OWN_SETTINGS, Result, newest, results_in, task_names
from dystress_text.evaluation.text_sets import slug_of
from dystress_text.export.card import CARD
from dystress_text.io.atomic import write_text

_SOURCE = "dystress-text"  # the source of the entries that this package writes
# the hub requires an address; this page lists models with our tag
_ADDRESS = f"https://huggingface.co/models?other={_SOURCE}"
# MTEB's sets with the same pairs; not SICK-R, which has 9,927 pairs there and 4,927 in SentEval
_MTEB = {f"STS{year}": f"STS{year}" for year in range(12, 17)} | {"STS-B": "STSBenchmark"}
_TASK_TYPES = {  # kinds of results in the order of the card, and the hub's names for them
    "sts": "STS",
    "transfer": "text-classification",
    "pairs": "STS",
    "retrieval": "Retrieval",
}


def renew_results(folder: Path) -> str | None:
    """Put a folder's results on its card; return a line for the user.

    Without results or a card, or if another program wrote the card, nothing changes and the result
    is None.
    """
    file = folder / CARD
    results = results_in(folder)
    if not results or not file.is_file() or "dystress" not in file.read_text(encoding="utf-8"):
        return None
    add_results(file, results)
    return f"{file} holds the results."


def add_results(file: Path, results: Sequence[Result]) -> None:
    """Replace this package's results on a card; those from other sources stay.

    Args:
        file: the card.
        results: the results of a model, oldest first. The card shows the newest of each task for
            the weights that were evaluated last, with the model's own pooling, in mode ``test``.
    """
    results = _shown(results)
    if not results:
        return
    ours: list[EvalResult] = []
    names = task_names(results)
    for result in results:
        named = replace(result, task=names.get(result.content, result.task))
        ours += _entries(named)
    try:
        card = ModelCard.load(file)
        others = card.data.eval_results or []
        kept = [entry for entry in others if entry.source_name != _SOURCE]
        card.data.eval_results = kept + ours
        card.data.model_name = card.data.model_name or file.parent.resolve().name
        write_text(file, str(card))
    except Exception as error:  # a user may have written invalid YAML or any model-index
        reason = f"the results cannot be added to its YAML metadata: {reason_of(error)}"
        raise UserError(f"{file}: {reason}") from error


def _shown(results: Sequence[Result]) -> list[Result]:
    """Return the results that a card shows, in its order."""
    if not results:
        return []
    last = results[-1]
    same = {name: last.settings.get(name) for name in ("max_seq_length", "prompts")}
    wanted = {**OWN_SETTINGS, "mode": "test", **same}
    shown = [each for each in results if each.weights == last.weights and each.has(wanted)]
    shown.sort(key=lambda each: list(_TASK_TYPES).index(each.kind))
    return newest(shown, lambda each: (each.content, each.variant))


def _entries(result: Result) -> list[EvalResult]:
    """Return an entry of ``model-index`` for each metric of a result."""
    name, dataset = _data_set(result)
    entries = []
    for metric, figure in result.figures.items():
        if figure is None:
            continue
        title = metric
        metric_type = slug_of(metric.replace("@", "_at_"))
        if metric == "spearman":
            title = "Spearman"
            metric_type = "cosine_spearman"
        entry = EvalResult(
            task_type=_TASK_TYPES[result.kind],
            dataset_type=dataset,
            dataset_name=name,
            # the hub takes sets of one type and configuration for the same set
            dataset_config=None if "/" in dataset else result.task,
            metric_type=metric_type,
            metric_value=figure,
            metric_name=f"{title} x 100",
            source_name=_SOURCE,
            source_url=_ADDRESS,
        )
        entries.append(entry)
    return entries


def _data_set(result: Result) -> tuple[str, str]:
    """Return the name and type of a result's data set on the hub."""
    task = result.task
    suite = result.group.partition("/")[0]
    if result.kind in ("pairs", "retrieval"):
        return task, suite
    if result.variant:
        return f"{suite} {task} (a variant: {result.variant})", suite
    if suite == "senteval" and task in _MTEB:
        name = _MTEB[task]
        return f"MTEB {name}", f"mteb/{name.lower()}-sts"
    return f"{suite} {task}", suite
