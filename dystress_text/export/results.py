"""Results on a model's card: ``model-index``, which the hub reads, and a table; all else stays as
it is.
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
from dystress_text.evaluation.catalogue import GROUPS, MINI_TRANSFER_TASKS, TRANSFER_TASKS
from dystress_text.evaluation.readers import slug_of
from dystress_text.evaluation.results import OWN_SETTINGS, Result, newest, results_in
from dystress_text.export.card import CARD, MARK, plain_table, read_card
from dystress_text.files.whole import write_text

_SOURCE = "dystress-text"  # of our entries: this package has measured; the hub wants an address, of models with its tag
_ADDRESS = f"https://huggingface.co/models?other={_SOURCE}"
# sets of the same pairs; MTEB's SICK-R has all 9,927 pairs of SICK, SentEval's its 4,927 test pairs
_MTEB = {f"STS{year}": f"mteb/sts{year}-sts" for year in range(12, 17)} | {
    "STS-B": "mteb/stsbenchmark-sts"
}
_SUITES = {"senteval": "SentEval", "mini": "dystress-text"}
_SPEARMAN = "Spearman x 100"
_ORDER = {  # on the card, with the hub's names of task and metric
    "sts": ("STS", "cosine_spearman"),
    "transfer": ("text-classification", "accuracy"),
    "pairs": ("STS", "cosine_spearman"),
    "retrieval": ("Retrieval", ""),
}
_FOLDS = {
    task.name for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS if task.scheme == "folds"
}  # which have no test split
_INDEX = re.compile(
    r"^[\"']?model-index[\"']?[ \t]*:.*\n(?:(?:(?:#.*)?\r?\n)*[ \t\]-].*\n)*", re.MULTILINE
)
_TABLE = re.compile(
    r"(?<=<!-- evaluation, renewed by dystress senteval -->).*?(?=<!-- end of evaluation -->)", re.S
)


def renew_results(folder: Path) -> str | None:
    """Renew the results on a folder's card after an evaluation; a line says so.

    None where the card has nothing to do with this package, or the model was not evaluated as it is
    loaded.
    """
    file = folder / CARD
    results = [_on_card(each) for each in _of_model(results_in(folder))]
    entries = [entry for each in results for entry in each]
    text = read_card(file) if file.is_file() else ""
    if "dystress" not in text or not entries:
        return None
    mark, text = text[: text.startswith(MARK)], text.removeprefix(MARK)
    write_text(file, mark + _renewed(file, text, entries))
    return f"{file} holds the results."


def _of_model(results: Sequence[Result]) -> list[Result]:
    """Return the newest results of the model as it is loaded, if it is the one evaluated last."""
    if not results:
        return []
    last = results[-1]
    same = {name: last.settings.get(name) for name in ("max_seq_length", "prompts")}
    wanted = {**OWN_SETTINGS, "mode": "test", **same}
    current = [each for each in results if each.weights == last.weights and each.has(wanted)]
    shown = [each for each in current if each.kind != "geometry"]
    shown.sort(key=lambda each: list(_ORDER).index(each.kind))
    return newest(shown, lambda each: (each.group, each.task, each.variant))


def _renewed(file: Path, text: str, results: Sequence[EvalResult]) -> str:
    rows = [
        (result.dataset_name, result.metric_name, f"{result.metric_value:.2f}")
        for result in results
    ]
    table = f"\n## Evaluation\n\n{plain_table(('', '', ''), rows)}\n\n"
    try:
        head = dict(vars(RepoCard(text).data))
        models = head.get("model-index") or [{"name": file.parent.resolve().name, "results": []}]
        for model in models:
            model["results"] = [
                r for r in model["results"] if (r.get("source") or {}).get("name") != _SOURCE
            ]
        models[0]["results"] += eval_results_to_model_index("", list(results))[0]["results"]
        index: dict[str, Any] = {"model-index": models}
        text = _with(text, CardData(**index).to_yaml(), table)
        if vars(RepoCard(text).data) != head | index:
            raise ValueError("write model-index as a list of indented lines")
        return text
    except Exception as error:  # YAML has errors of its own, and model-index any form
        raise UserError(f"{file}: its head cannot take the results: {reason_of(error)}") from error


def carry_results(source: Path, file: Path) -> None:
    """Put the results on a model's card onto that of its copy."""
    text = read_card(source).removeprefix(MARK)
    head, table = REGEX_YAML_BLOCK.search(text), _TABLE.search(text)
    index = _INDEX.search(f"{head[2]}\n") if head else None
    write_text(file, _with(read_card(file), index[0] if index else "", table[0] if table else ""))


def _with(text: str, index: str, table: str) -> str:
    """A card with another ``model-index``, and another table where it has the place for one, in its
    ends of lines.
    """
    end = "\r\n" if "\r\n" in text else "\n"
    index, table = (re.sub(r"\r?\n", end, part) for part in (index, table))
    head = REGEX_YAML_BLOCK.search(text) or REGEX_YAML_BLOCK.search(
        text := f"---{end}{end}---{end}{end}{text}"
    )
    assert head is not None
    kept = _INDEX.sub("", f"{head[2]}{end}")
    return (
        head[1]
        + (kept + index).strip("\r\n")
        + head[3]
        + _TABLE.sub(lambda _: table, text[head.end() :])
    )


def _on_card(result: Result) -> list[EvalResult]:
    """Return the entries of a result in the form of the hub."""
    if result.kind == "retrieval":
        return [
            _entry("Retrieval", "beir-layout", result.task, metric, figure, f"{metric} x 100")
            for metric, figure in result.shown.items()
            if figure is not None
        ]
    (figure,) = result.columns.values()
    if figure is None:
        return []
    if result.kind == "pairs":
        return [_entry("STS", "scored-pairs", result.task, "cosine_spearman", figure, _SPEARMAN)]
    suite = result.group.partition("/")[0]
    name, data, config = f"{_SUITES[suite]} {result.task}", _SUITES[suite].lower(), result.task
    if result.variant:
        name += f" (a variant: {result.variant})"
    elif result.task in _MTEB:
        name = f"MTEB {result.task.replace('-B', 'Benchmark')}"
        data, config = _MTEB[result.task], "default"
    kind, metric = _ORDER[result.kind]
    split = None if result.task in _FOLDS else "test"
    measure = GROUPS[result.kind].partition(", ")[2]
    return [_entry(kind, data, name, metric, figure, measure, config, split)]


def _entry(
    kind: str,
    data: str,
    name: str,
    metric: str,
    figure: float,
    measure: str,
    config: str | None = None,
    split: str | None = None,
) -> EvalResult:
    return EvalResult(
        task_type=kind,
        dataset_type=data,
        dataset_name=name,
        metric_type=slug_of(metric.replace("@", "_at_")),
        metric_value=figure,
        dataset_config=config or name,
        dataset_split=split,
        metric_name=measure,
        source_name=_SOURCE,
        source_url=_ADDRESS,
    )
