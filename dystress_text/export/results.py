"""Results on a model's card: ``model-index``, which the hub reads, and a table; all else stays as
it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CardData, EvalResult, RepoCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.repocard_data import eval_results_to_model_index

from dystress_text.errors import UserError, reason_of
from dystress_text.evaluation.catalogue import GROUPS, SUITES, Task, TransferTask, figure_of
from dystress_text.evaluation.retrieval import figures_in
from dystress_text.export.card import CARD, MARK, plain_table, read_card
from dystress_text.files.whole import write_text
from dystress_text.training.run_folder import contents_of, evaluation_file, one_writer

_SOURCE = "dystress-text"  # of our entries: this package has measured; the hub wants an address, of models with its tag
_ADDRESS = f"https://huggingface.co/models?other={_SOURCE}"
# sets of the same pairs; MTEB's SICK-R has all 9,927 pairs of SICK, SentEval's its 4,927 test pairs
_MTEB = {f"STS{year}": f"mteb/sts{year}-sts" for year in range(12, 17)} | {
    "STS-B": "mteb/stsbenchmark-sts"
}
_INDEX = re.compile(
    r"^[\"']?model-index[\"']?[ \t]*:.*\n(?:(?:(?:#.*)?\r?\n)*[ \t\]-].*\n)*", re.MULTILINE
)
_TABLE = re.compile(
    r"(?<=<!-- evaluation, renewed by dystress senteval -->).*?(?=<!-- end of evaluation -->)", re.S
)


def renew_results(folder: Path, suite: str) -> str | None:
    """Renew the results on a folder's card after an evaluation on a suite; a line says so.

    None where the card has nothing to do with this package, or the model was not evaluated as it is
    loaded.
    """
    file = folder / CARD
    with one_writer(folder):
        results = _results(folder, contents_of(evaluation_file(folder, suite, "test"))[0])
        text = read_card(file) if file.is_file() else ""
        if "dystress" not in text or not results:
            return None
        mark, text = text[: text.startswith(MARK)], text.removeprefix(MARK)
        write_text(file, mark + _renewed(file, text, results))
    return f"{file} holds the results."


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


def _results(folder: Path, now: Mapping[str, Any]) -> list[EvalResult]:
    """What the files of evaluations in a folder hold of the model as it is loaded, if that was
    evaluated now.
    """
    as_loaded = {name: now.get(name) for name in ("weights", "max_seq_length", "prompts")}
    as_loaded |= {"pooler_type": None, "dtype": "fp32"}
    contents = [c for suite in SUITES for c in contents_of(evaluation_file(folder, suite, "test"))]
    of_tasks: dict[tuple[str, str], EvalResult] = {}
    searched: dict[str, Mapping[str, float]] = {}
    pairs: dict[str, float] = {}
    for about in (
        c for c in contents if all(c.get(name) == value for name, value in as_loaded.items())
    ):
        known = {
            task.name: (group, task)
            for group, tasks in SUITES[about["suite"]].items()
            for task in tasks
        }
        for name, result in (about["tasks"] | about.get("other_data", {})).items():
            if (what := known.get(name.partition(" (")[0])) and (
                about["suite"],
                name,
            ) not in of_tasks:
                of_tasks[about["suite"], name] = _result(about, *what, name, result)
        searched = {
            name: figures_in(result) for name, result in about.get("retrieval", {}).items()
        } | searched
        pairs = {
            name: result["spearman"] for name, result in about.get("pairs", {}).items()
        } | pairs
    own = [
        EvalResult(
            "STS", "scored-pairs", name, "cosine_spearman", figure, dataset_config=name, source_name=_SOURCE,
            source_url=_ADDRESS, metric_name="Spearman x 100",
        )
        for name, figure in pairs.items()
    ]  # fmt: skip
    return [*of_tasks.values(), *own] + [
        EvalResult(
            "Retrieval", "beir-layout", name, "_".join(re.findall(r"\w+", metric.lower().replace("@", "_at_"))), figure,
            dataset_config=name, source_name=_SOURCE, source_url=_ADDRESS, metric_name=f"{metric} x 100",
        )
        for name, figures in searched.items()
        for metric, figure in figures.items()
    ]  # fmt: skip


def _result(
    about: dict[str, Any], group: str, task: Task, label: str, result: Mapping[str, Any]
) -> EvalResult:
    of_suite = {"senteval": "SentEval", "mini": "dystress-text"}[about["suite"]]
    variant = f" (a variant: {kind})" if (kind := result.get("data_variant")) else ""
    folds = isinstance(task, TransferTask) and task.scheme == "folds"
    type_, metric = (
        ("STS", "cosine_spearman") if group == "sts" else ("text-classification", "accuracy")
    )
    name, data, config = f"{of_suite} {label}{variant}", of_suite.lower(), task.name
    if label in _MTEB and not variant:
        name, data, config = (
            f"MTEB {task.name.replace('-B', 'Benchmark')}",
            _MTEB[task.name],
            "default",
        )
    return EvalResult(
        type_, data, name, metric, figure_of(result), dataset_config=config, source_name=_SOURCE,
        source_url=_ADDRESS, dataset_split=None if folds else "test", metric_name=GROUPS[group].partition(", ")[2],
    )  # fmt: skip
