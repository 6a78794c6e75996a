"""Write results to a model's card: ``model-index``, which the hub reads, and a table.

The rest of the card keeps its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CardData, EvalResult, RepoCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.repocard_data import eval_results_to_model_index

from dystress_text.errors import UserError, reason_of
from dystress_text.evaluation.catalogue import MINI_TRANSFER_TASKS, TRANSFER_TASKS
from dystress_text.evaluation.readers import slug_of
from dystress_text.evaluation.results import OWN_SETTINGS, Result, newest, results_in
from dystress_text.export.card import CARD, plain_table, read_card
from dystress_text.io.atomic import write_text

_SOURCE = "dystress-text"  # marks our entries: this package measured them
# the hub requires an address; this one lists the models with our tag
_ADDRESS = f"https://huggingface.co/models?other={_SOURCE}"
# sets of the same pairs; MTEB's SICK-R has all 9,927 pairs of SICK, SentEval's its 4,927 test pairs
_MTEB = {f"STS{year}": f"STS{year}" for year in range(12, 17)} | {"STS-B": "STSBenchmark"}
_SUITES = {"senteval": "SentEval", "mini": "dystress-text"}
_TASK_TYPES = {  # the hub's names, in the order of the card
    "sts": "STS",
    "transfer": "text-classification",
    "pairs": "STS",
    "retrieval": "Retrieval",
}
# these tasks have no test split
_FOLDS = {task.name for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS if task.scheme == "folds"}
_INDEX = re.compile(
    r"^[\"']?model-index[\"']?[ \t]*:.*\n(?:(?:(?:#.*)?\n)*[ \t\]-].*\n)*", re.MULTILINE
)
_TABLE = re.compile(
    r"(?<=<!-- evaluation, renewed by dystress senteval -->).*?(?=<!-- end of evaluation -->)", re.S
)


def renew_results(folder: Path) -> str | None:
    """Update the results on a folder's card after an evaluation; return a line that says so.

    Returns:
        None if this package did not write the card, or if the model was evaluated with other
        settings than its own.
    """
    file = folder / CARD
    results = _of_model(results_in(folder))
    if not results or not file.is_file():
        return None
    text = read_card(file)
    if "dystress" not in text:
        return None
    write_text(file, _renewed(file, text, results))
    return f"{file} holds the results."


def carry_results(source: Path, file: Path) -> None:
    """Copy the results from a model's card to the card of its copy."""
    text = read_card(source)
    head = REGEX_YAML_BLOCK.search(text)
    index = _INDEX.search(f"{head[2]}\n") if head else None
    table = _TABLE.search(text)
    write_text(file, _with(read_card(file), index[0] if index else "", table[0] if table else ""))


def _of_model(results: Sequence[Result]) -> list[Result]:
    """Return the newest results of the model evaluated last, with its own settings."""
    if not results:
        return []
    last = results[-1]
    same = {name: last.settings.get(name) for name in ("max_seq_length", "prompts")}
    wanted = {**OWN_SETTINGS, "mode": "test", **same}
    current = [each for each in results if each.weights == last.weights and each.has(wanted)]
    shown = [each for each in current if each.kind in _TASK_TYPES]
    shown.sort(key=lambda each: list(_TASK_TYPES).index(each.kind))
    return newest(shown, lambda each: (each.group, each.task, each.variant))


def _renewed(file: Path, text: str, results: Sequence[Result]) -> str:
    entries = []
    rows = []
    for result in results:
        for metric, entry in _on_card(result).items():
            floor = result.lexical.get(metric)
            figures = (f"{x:.2f}" if x is not None else "-" for x in (entry.metric_value, floor))
            entries.append(entry)
            rows.append((entry.dataset_name, entry.metric_name, *figures))
    titles = ("", "", "this model", "lexical baseline")
    table = f"\n## Evaluation\n\n{plain_table(titles, rows)}\n\n"
    try:
        head = dict(vars(RepoCard(text).data))
        models = head.get("model-index") or [{"name": file.parent.resolve().name, "results": []}]
        for model in models:
            sources = [each.get("source") or {} for each in model["results"]]
            model["results"] = [
                each
                for each, source in zip(model["results"], sources, strict=True)
                if source.get("name") != _SOURCE
            ]
        models[0]["results"] += eval_results_to_model_index("", entries)[0]["results"]
        index: dict[str, Any] = {"model-index": models}
        text = _with(text, CardData(**index).to_yaml(), table)
        if vars(RepoCard(text).data) != head | index:
            raise ValueError("write model-index as a list of indented lines")
        return text
    except Exception as error:  # YAML has errors of its own, and model-index any form
        raise UserError(f"{file}: its head cannot take the results: {reason_of(error)}") from error


def _with(text: str, index: str, table: str) -> str:
    """Replace ``model-index`` in a card, and the table between its marks."""
    if REGEX_YAML_BLOCK.search(text) is None:
        text = f"---\n\n---\n\n{text}"
    head = REGEX_YAML_BLOCK.search(text)
    assert head is not None
    kept = _INDEX.sub("", f"{head[2]}\n")
    body = _TABLE.sub(lambda _: table, text[head.end() :])
    return head[1] + (kept + index).strip("\n") + head[3] + body


def _on_card(result: Result) -> dict[str, EvalResult]:
    """Return a result as the hub's entries, by metric."""
    name, data_type, config = _data_set(result)
    has_split = result.kind in ("sts", "transfer") and result.task not in _FOLDS
    entries = {}
    for metric, figure in result.figures.items():
        if figure is None:
            continue
        is_spearman = metric == "spearman"
        entries[metric] = EvalResult(
            task_type=_TASK_TYPES[result.kind],
            dataset_type=data_type,
            dataset_name=name,
            metric_type="cosine_spearman" if is_spearman else slug_of(metric.replace("@", "_at_")),
            metric_value=figure,
            dataset_config=config,
            dataset_split="test" if has_split else None,
            metric_name=f"{'Spearman' if is_spearman else metric} x 100",
            source_name=_SOURCE,
            source_url=_ADDRESS,
        )
    return entries


def _data_set(result: Result) -> tuple[str, str, str]:
    """Return the hub's name, type and configuration of a result's data set."""
    task = result.task
    if result.kind == "retrieval":
        return task, "beir-layout", task
    if result.kind == "pairs":
        return task, "scored-pairs", task
    suite = _SUITES[result.group.partition("/")[0]]
    if result.variant:
        return f"{suite} {task} (a variant: {result.variant})", suite.lower(), task
    if task in _MTEB:
        name = _MTEB[task]
        return f"MTEB {name}", f"mteb/{name.lower()}-sts", "default"
    return f"{suite} {task}", suite.lower(), task
