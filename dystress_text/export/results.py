"""The results of evaluations on a model's card: ``model-index`` in its head, which the hub reads, and a table.

All else on the card is the user's and stays as it is, byte for byte.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import CardData, EvalResult, RepoCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.repocard_data import eval_results_to_model_index

from dystress_text.errors import UserError, reason_of
from dystress_text.evaluation.catalogue import GROUPS, SUITES, Task, TransferTask, figure_of
from dystress_text.export.card import CARD, plain_table
from dystress_text.files.whole import write_text
from dystress_text.training.run_folder import evaluation_file, read_json

SOURCE = "dystress-text"  # of our entries
_PAPER = "https://arxiv.org/abs/2308.01140"
_MTEB = {  # the same pairs; MTEB's SICK-R has all 9,927 pairs of SICK, SentEval's its 4,927 test pairs
    **{f"STS{year}": (f"STS{year}", f"mteb/sts{year}-sts") for year in range(12, 17)},
    "STS-B": ("STSBenchmark", "mteb/stsbenchmark-sts"),
}
_INDEX = re.compile(r"^[\"']?model-index[\"']?:.*\n(?:(?:(?:#.*)?\n)*[ \t\]-].*\n)*", re.MULTILINE)
_TABLE = re.compile(r"(?<=<!-- evaluation, renewed by dystress senteval -->\n).*?(?=<!-- end of evaluation -->)", re.S)


def renew_results(folder: Path, suite: str) -> str | None:
    """Renew the results on a folder's card after an evaluation on a suite; a line says so.

    None where the card has nothing to do with this package, or the model was not evaluated as it is loaded.
    """
    file, about = folder / CARD, read_json(evaluation_file(folder, suite, "test"))
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if "dystress" not in text or (about["pooler_type"], about["dtype"]) != (None, "fp32"):
        return None
    found = results_of(folder, about["weights"])
    try:
        before = dict(vars(RepoCard(text).data))
        models = before.pop("model-index", None) or [{"name": folder.resolve().name, "results": []}]
        for model in models:
            model["results"] = [r for r in model["results"] if (r.get("source") or {}).get("name") != SOURCE]
        models[0]["results"] += eval_results_to_model_index("", found)[0]["results"]
        rows = [(result.dataset_name, f"{result.metric_value:.2f}") for result in found]
        table = f"## Evaluation\n\nSpearman's correlation and accuracy x 100.\n\n{plain_table(('', ''), rows)}\n\n"
        text = _with(text, CardData(**{"model-index": models}).to_yaml(), table)
        if vars(RepoCard(text).data) != {**before, "model-index": models}:
            raise ValueError("write model-index as a list of indented lines")
    except Exception as error:  # YAML has errors of its own, and model-index any form
        raise UserError(f"{file}: its head cannot take the results: {reason_of(error)}") from error
    write_text(file, text)
    return f"{file} holds the results."


def carry_results(source: Path, file: Path) -> None:
    """Put the results on a model's card onto that of its copy."""
    text = source.read_text(encoding="utf-8")
    head, table = REGEX_YAML_BLOCK.search(text), _TABLE.search(text)
    index = _INDEX.search(f"{head[2]}\n") if head else None
    write_text(file, _with(file.read_text(encoding="utf-8"), index[0] if index else "", table[0] if table else ""))


def results_of(folder: Path, weights: str) -> list[EvalResult]:
    """What the files of evaluations in a folder hold of the model with these weights, as it is loaded."""
    files = (evaluation_file(folder, suite, "test") for suite in SUITES)
    return [
        _result(about, group, task)
        for about in (read_json(file) for file in files if file.is_file())
        if (about.get("weights"), about.get("pooler_type"), about.get("dtype")) == (weights, None, "fp32")
        for group, tasks in SUITES[about["suite"]].items()
        for task in tasks
        if task.name in about["tasks"]
    ]


def _result(about: dict[str, Any], group: str, task: Task) -> EvalResult:
    of_suite = {"senteval": "SentEval", "mini": "dystress-text"}[about["suite"]]
    variant = f" (a variant: {about['data_variant']})" if about["data_variant"] else ""
    of_mteb = None if variant else _MTEB.get(task.name)
    folds = isinstance(task, TransferTask) and task.scheme == "folds"
    return EvalResult(
        task_type="STS" if group == "sts" else "text-classification",
        dataset_type=of_mteb[1] if of_mteb else of_suite.lower(),
        dataset_name=f"MTEB {of_mteb[0]}" if of_mteb else f"{of_suite} {task.name}{variant}",
        dataset_config="default" if of_mteb else task.name,
        dataset_split=None if folds else "test",
        metric_type="cosine_spearman" if group == "sts" else "accuracy",
        metric_name=GROUPS[group].partition(", ")[2],
        metric_value=figure_of(about["tasks"][task.name]),
        source_name=SOURCE,
        source_url=_PAPER,
    )


def _with(text: str, index: str, table: str) -> str:
    """A card with another ``model-index``, and another table where it has the place for one."""
    head = REGEX_YAML_BLOCK.search(text)
    kept = _INDEX.sub("", f"{head[2]}\n") if head else ""
    begin, end, body = (head[1], head[3], text[head.end() :]) if head else ("---\n", "\n---\n\n", text)
    return begin + (kept + index).rstrip("\n") + end + _TABLE.sub(lambda _: table, body)
