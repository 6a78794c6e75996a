"""An evaluation from the first task to the result file."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dystress_text.cli.options import check_options, option
from dystress_text.cli.text_table import lay_out
from dystress_text.errors import DataError, ParameterError
from dystress_text.evaluation.catalogue import (
    STS_SETS,
    SUITES,
    Row,
    StsTask,
    Task,
    average,
    choose,
    own_names,
    suite_folder,
)
from dystress_text.evaluation.classifier import RECIPES
from dystress_text.evaluation.embedder import DTYPES, EVALUATED, EncodedOnce, load_model, refusing_useless
from dystress_text.evaluation.original import OriginalResult, import_senteval, run_original
from dystress_text.evaluation.sts import Embed, StsTaskResult, evaluate_sts, evaluate_sts_task
from dystress_text.evaluation.transfer import TransferResult, evaluate_transfer
from dystress_text.files.prepared_data import variant_of
from dystress_text.files.whole import sha256_of, versions, write_json
from dystress_text.training.run_folder import evaluation_file

Result = StsTaskResult | TransferResult | OriginalResult
Published = Mapping[str, Mapping[str, Row]]  # rows of published tables by group and label
ENGINES = ("batched", "original")


@dataclass(frozen=True)
class SentEvalSettings:
    """What is evaluated, on what, and where the results go."""

    _argument_group_name = "evaluation"

    model: str = field(
        metadata={"help": "sentence-transformers folder; with --pooler_type a Hugging Face folder or name"}
    )
    pooler_type: str | None = option(
        None,
        "of a Hugging Face encoder; pooler is its own (pooler_output), for SimCSE's supervised models; cls is for the "
        "unsupervised ones",
        choices=EVALUATED,
    )
    tasks: list[str] = option(["all"], "sts, transfer, all, or names of tasks, ours or SentEval's")
    suite: str = option("senteval", "senteval, or mini: small sets that come with the package", choices=tuple(SUITES))
    mode: str = option("test", "test: the published figures; fast: fewer folds", choices=tuple(RECIPES))
    data_dir: str | None = option(None, "where prepared data lie; default: where dystress prepare puts them")
    dtype: str = option("fp32", "of the encoder's forward pass", choices=tuple(DTYPES))
    batch_size: int = option(64, "sentences at a time", interval="[1, inf)")
    engine: str = option("batched", "ours, or original: everything by the senteval package", choices=ENGINES)
    compare: bool = option(False, "add the rows of the published tables (BERT-base)")
    geometry: str = option("dev", "STS-B split for alignment and uniformity", choices=("dev", "test", "none"))
    output: Path | None = option(
        None, "all results; default senteval-SUITE-MODE.json in the model's folder, else here", metavar="FILE.json"
    )

    def __post_init__(self) -> None:
        check_options(self)

    def result_file(self) -> Path:
        """The file of the results."""
        folder = Path(self.model)
        return self.output or evaluation_file(folder if folder.is_dir() else Path(), self.suite, self.mode)


@dataclass
class Results:
    """The results so far; they grow task by task.

    Attributes:
        about: the model, the suite and the settings.
        groups: names of the chosen tasks by group, in table order.
        tasks: results by task.
        left_out: why a task has no result, by task.
        seconds: by task, with reading and embedding.
        checksums: sha256 of each file read, by task.
        geometry: alignment and uniformity, with the name of their set.
    """

    about: Mapping[str, Any]
    groups: Mapping[str, Sequence[str]]
    tasks: dict[str, Result] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    checksums: dict[str, dict[str, str]] = field(default_factory=dict)
    geometry: dict[str, Any] | None = None

    @property
    def missing(self) -> list[str]:
        """The chosen tasks that gave no result."""
        return [name for names in self.groups.values() for name in names if name not in self.tasks]

    def row(self, group: str) -> Row:
        """The figures of a group's chosen tasks, None for a task without a result."""
        return {name: self.tasks[name].figure if name in self.tasks else None for name in self.groups[group]}

    def table(self, group: str, more: Mapping[str, Row]) -> str:
        """The group's figures and their average, with further rows below, such as published ones."""
        names, of_suite = self.groups[group], SUITES[self.about["suite"]][group]
        rows = {self.about["model"]: self.row(group)}
        years = {
            name: result
            for name, result in self.tasks.items()
            if name in names and isinstance(result, StsTaskResult) and len(result.subsets) > 1
        }
        if years:  # the other aggregations; tasks without subsets repeat their figure
            rows["  mean of subsets"] = self.row(group) | {name: result.mean for name, result in years.items()}
            rows["  weighted mean"] = self.row(group) | {name: result.weighted_mean for name, result in years.items()}
        lines = [["", *names, "avg" if len(names) == len(of_suite) else f"avg of {len(names)}"]]
        for label, row in {**rows, **more}.items():
            figures = {name: row[name] for name in names}
            cells = ["missing" if figure is None else f"{figure:.2f}" for figure in figures.values()]
            mean = average(figures)
            lines.append([label, *cells, "-" if mean is None else f"{mean:.2f}"])
        return lay_out(lines)

    def write(self, file: Path) -> None:
        """Write all results as JSON."""
        content = {
            **self.about,
            "complete": not self.missing,
            "averages": {group: average(self.row(group)) for group in self.groups},
            "tasks": {
                name: {**asdict(result), "seconds": self.seconds[name], "sha256": self.checksums[name]}
                for name, result in self.tasks.items()
            },
            "left_out": self.left_out,
            "geometry": self.geometry,
            "versions": versions("sentence-transformers", "tokenizers", "scipy", "scikit-learn"),
        }
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, content)
        except OSError as error:
            raise ParameterError("output", f"cannot write {str(file)!r}: {error.strerror}") from error


def evaluate_task(task: Task, folder: Path, embed: Embed, mode: str = "test", engine: str = "batched") -> Result:
    """Evaluate on a task of either kind; for mode and engine see :class:`SentEvalSettings`."""
    if engine == "original":
        return run_original(task, folder, embed, mode)
    if isinstance(task, StsTask):
        return evaluate_sts_task(task, folder, embed)
    return evaluate_transfer(task, folder, embed, mode)


def run(settings: SentEvalSettings, published: Published | None = None) -> Results:
    """Evaluate a model: print the tables, write the result file after each task, and return the results.

    Args:
        settings: the program's options.
        published: rows of published tables, for ``compare``.
    """
    chosen = choose(settings.suite, settings.tasks)
    folder = suite_folder(settings.suite, settings.data_dir)
    if not folder.is_dir():
        raise ParameterError(
            "data_dir",
            f"{folder} is not a folder; dystress prepare senteval gets them, the suite mini needs none",
        )
    if settings.engine == "original":
        import_senteval()
    variant = variant_of(folder)
    if variant is not None:
        print(f"not SentEval's published data but a variant: {variant}")
    encode, model = load_model(settings.model, settings.pooler_type, settings.dtype, settings.batch_size, progress=True)
    embed = EncodedOnce(refusing_useless(encode))
    about = {name: getattr(settings, name) for name in ("suite", "mode", "engine", "batch_size")}
    about |= {"asked": list(own_names(settings.tasks)), "data": str(folder), "data_variant": variant, **model}
    results = Results(about, {group: [task.name for task in tasks] for group, tasks in chosen.items()})
    file = settings.result_file()
    results.write(file)  # a place that cannot be written is found now, not after the last task
    for group, tasks in chosen.items():
        for task in tasks:
            _run_task(settings, results, task, folder, embed)
            results.write(file)
        more = (published or {}).get(group, {}) if settings.compare and settings.suite == "senteval" else {}
        print(f"\n{results.table(group, more)}", flush=True)
    if "sts" in chosen and settings.geometry != "none":
        _measure_geometry(settings, results, folder, embed)
    results.write(file)
    missing = ", ".join(results.missing)
    print(f"\n{file}: {f'results except {missing}' if missing else 'all results'}")
    return results


def _run_task(settings: SentEvalSettings, results: Results, task: Task, folder: Path, embed: Embed) -> None:
    start = time.perf_counter()
    try:
        result = evaluate_task(task, folder, embed, settings.mode, settings.engine)
    except DataError as error:
        results.left_out[task.name] = str(error)
        print(f"{task.name} left out: {error}", file=sys.stderr, flush=True)
        return
    seconds = round(time.perf_counter() - start, 2)
    results.tasks[task.name], results.seconds[task.name] = result, seconds
    results.checksums[task.name] = {name: sha256_of(folder / name) for name in task.files}
    print(f"{task.name}: {result.figure:.2f} ({seconds:.1f} s)", file=sys.stderr, flush=True)


def _measure_geometry(settings: SentEvalSettings, results: Results, folder: Path, embed: Embed) -> None:
    try:
        pairs = STS_SETS["mini_sts" if settings.suite == "mini" else f"stsb_{settings.geometry}"].pairs(folder)
    except DataError as error:
        results.left_out["geometry"] = str(error)
        print(f"geometry left out: {error}", file=sys.stderr)
        return
    measured = evaluate_sts(pairs, embed)
    results.geometry = {"set": pairs.name, "sentences": len(pairs.sentences), **asdict(measured)}
    print(
        f"\n{pairs.name}, {len(pairs.sentences):,} distinct sentences: alignment {measured.alignment:.4f} (pairs "
        f"scored above 4), uniformity {measured.uniformity:.4f}, Spearman {measured.spearman:.2f}"
    )
