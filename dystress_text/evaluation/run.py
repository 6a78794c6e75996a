"""An evaluation from the first task to the result file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.cli.extras import require
from dystress_text.cli.text_table import FORMATS
from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.catalogue import (
    STS_SETS,
    SUITES,
    Row,
    StsTask,
    Task,
    average,
    checksums,
    choose,
    own_names,
    suite_folder,
)
from dystress_text.evaluation.classifier import RECIPES, fit_batched, fit_literal
from dystress_text.evaluation.embedder import DTYPES, EVALUATED, EncodedOnce, load_model, refusing_useless
from dystress_text.evaluation.original import OriginalResult, import_senteval, run_original
from dystress_text.evaluation.sts import (
    Embed,
    StsTaskResult,
    evaluate_sts,
    evaluate_sts_task,
    pair_similarities,
    predictions,
)
from dystress_text.evaluation.tables import table
from dystress_text.evaluation.transfer import TransferResult, evaluate_transfer
from dystress_text.files.places import cache_root
from dystress_text.files.prepared_data import variant_of
from dystress_text.files.whole import versions, whole_file, write_json
from dystress_text.training.run_folder import evaluation_file

Result = StsTaskResult | TransferResult | OriginalResult
Draw = Callable[[Mapping[str, NDArray[np.floating]], str], None]  # draws cosines by kind of pair, under a title
ENGINES = ("batched", "literal", "original")
PACKAGES = ("sentence-transformers", "tokenizers", "scipy", "scikit-learn")


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
        return {name: figure(self.tasks[name]) if name in self.tasks else None for name in self.groups[group]}

    def is_whole(self, group: str) -> bool:
        """Whether all tasks of the group were chosen."""
        return len(self.groups[group]) == len(SUITES[self.about["suite"]][group])

    def write(self, file: Path) -> None:
        """Write all results as JSON.

        Raises:
            UserError: the file cannot be written.
        """
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
            "versions": versions(*PACKAGES),
        }
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, content)
        except OSError as error:
            raise UserError(f"--output: cannot write {str(file)!r}: {error.strerror}") from error


def figure(result: Result) -> float:
    """The figure of a result that tables show."""
    match result:
        case StsTaskResult():
            return result.spearman
        case TransferResult():
            return result.accuracy
    return result.figure


def evaluate_task(task: Task, folder: Path, embed: Embed, mode: str = "test", engine: str = "batched") -> Result:
    """Evaluate on a task of either kind, by one of the engines of :class:`SentEvalSettings`.

    Raises:
        DataError: a file is missing or damaged.
        UserError: the engine ``original`` is not installed or fails.
    """
    if engine == "original":
        return run_original(task, folder, embed, mode)
    if isinstance(task, StsTask):
        return evaluate_sts_task(task, folder, embed)
    return evaluate_transfer(task, folder, embed, mode, fit_literal if engine == "literal" else fit_batched)


@dataclass(frozen=True)
class SentEvalSettings:
    """The options of the program; their help is in the fields.

    Raises:
        UserError: a value is out of range, or options do not fit together.
    """

    model: str = field(
        metadata={
            "help": "sentence-transformers folder; with --pooler_type a Hugging Face folder or name",
            "required": True,
        }
    )
    pooler_type: str | None = field(
        default=None,
        metadata={
            "help": "of a Hugging Face encoder; pooler is its own (pooler_output), for SimCSE's supervised "
            "models; cls is for the unsupervised ones",
            "choices": EVALUATED,
        },
    )
    tasks: Sequence[str] = field(
        default=("all",),
        metadata={"help": "sts, transfer, all, or names of tasks, ours or SentEval's (default all)", "nargs": "+"},
    )
    suite: str = field(
        default="senteval",
        metadata={"help": "senteval, or mini: small sets that come with the package", "choices": tuple(SUITES)},
    )
    mode: str = field(
        default="test", metadata={"help": "test: the published figures; fast: fewer folds", "choices": tuple(RECIPES)}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "where prepared data lie; default: where dystress prepare puts them"}
    )
    dtype: str = field(
        default="fp32", metadata={"help": "of the encoder's forward pass (default fp32)", "choices": tuple(DTYPES)}
    )
    batch_size: int = field(default=64, metadata={"help": "sentences at a time (default 64)", "type": int})
    engine: str = field(
        default="batched",
        metadata={
            "help": "transfer classifiers: all fits at once; one by one; or everything by the senteval package",
            "choices": ENGINES,
        },
    )
    cache: bool = field(
        default=False, metadata={"help": "keep vectors on disk, by model content and sentence", "action": "store_true"}
    )
    format: str = field(default="text", metadata={"help": "of the tables (default text)", "choices": FORMATS})
    compare: bool = field(
        default=False, metadata={"help": "add the rows of the published tables (BERT-base)", "action": "store_true"}
    )
    geometry: str = field(
        default="dev",
        metadata={"help": "STS-B split for alignment and uniformity (default dev)", "choices": ("dev", "test", "none")},
    )
    plot: Path | None = field(
        default=None,
        metadata={"help": "draw similarity histograms and the temperature", "type": Path, "metavar": "FILE.png"},
    )
    pairs: Path | None = field(
        default=None,
        metadata={
            "help": "keep the cosine of every STS pair, for tests over pairs",
            "type": Path,
            "metavar": "FILE.npz",
        },
    )
    output: Path | None = field(
        default=None,
        metadata={
            "help": "all results; default senteval-SUITE-MODE.json in the model's folder, else here",
            "type": Path,
            "metavar": "FILE.json",
        },
    )

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"--batch_size: must be at least 1, got {self.batch_size}")
        if self.plot is not None:
            require("plots", "--plot")
            if self.geometry == "none":
                raise UserError("--plot draws the similarities of the --geometry set; give dev or test")

    def result_file(self) -> Path:
        """The file of the results."""
        if self.output is not None:
            return self.output
        folder = Path(self.model)
        return evaluation_file(folder if folder.is_dir() else Path(), self.suite, self.mode)


def run(
    settings: SentEvalSettings,
    published: Mapping[str, Mapping[str, Row]] | None = None,
    draw: Draw | None = None,
) -> Results:
    """Evaluate a model: print the tables, write the result file after each task, and return the results.

    Args:
        settings: the program's options.
        published: rows of published tables by group and label, for ``--compare``.
        draw: makes the picture of ``--plot`` from similarities and a title.

    Raises:
        UserError: unknown names, no data at all, an encoder that cannot be loaded or gives useless vectors.
    """
    chosen = choose(settings.suite, settings.tasks)
    folder = suite_folder(settings.suite, settings.data_dir)
    if not folder.is_dir():
        raise UserError(
            f"no SentEval data: {folder} is not a folder; dystress prepare senteval gets them, --data_dir names "
            "another place, and --suite mini comes with the package"
        )
    if settings.engine == "original":
        import_senteval()
    encode, model = load_model(settings.model, settings.pooler_type, settings.dtype, settings.batch_size, progress=True)
    cache = cache_root() / "embeddings" / f"{model.sha256[:32]}.safetensors" if settings.cache else None
    embed = EncodedOnce(refusing_useless(encode), cache)
    groups = {group: [task.name for task in tasks] for group, tasks in chosen.items()}
    results = Results({**asdict(model), **_about(settings, folder)}, groups)
    file = settings.result_file()
    results.write(file)  # a place that cannot be written is found now, not after the last task
    try:
        for group, tasks in chosen.items():
            _run_group(settings, results, tasks, folder, embed)
            print(f"\n{_group_table(settings, results, group, published or {})}", flush=True)
        if settings.pairs is not None:
            _write_pairs(results, chosen.get("sts", []), folder, embed, settings.pairs)
        if "sts" in groups and settings.geometry != "none":
            _measure_geometry(settings, results, folder, embed, draw)
    finally:
        embed.save()
    results.write(file)
    missing = ", ".join(results.missing)
    print(f"\n{file}: {f'results except {missing}' if missing else 'all results'}")
    return results


def _about(settings: SentEvalSettings, folder: Path) -> dict[str, Any]:
    """The settings in the record; a variant of the data is printed too."""
    variant = variant_of(folder)
    if variant is not None:
        print(f"not SentEval's published data but a variant: {variant}")
    return {
        "suite": settings.suite,
        "mode": settings.mode,
        "engine": settings.engine,
        "asked": list(own_names("--tasks", settings.tasks)),
        "batch_size": settings.batch_size,
        "data": str(folder),
        "data_variant": variant,
    }


def _run_group(settings: SentEvalSettings, results: Results, tasks: Sequence[Task], folder: Path, embed: Embed) -> None:
    for task in tasks:
        start = time.perf_counter()
        try:
            result = evaluate_task(task, folder, embed, settings.mode, settings.engine)
        except DataError as error:
            results.left_out[task.name] = str(error)
            print(f"{task.name} left out: {error}", file=sys.stderr, flush=True)
        else:
            results.tasks[task.name] = result
            results.checksums[task.name] = checksums(task, folder)
            results.seconds[task.name] = round(time.perf_counter() - start, 2)
            said = f"{task.name}: {figure(result):.2f} ({results.seconds[task.name]:.1f} s)"
            print(said, file=sys.stderr, flush=True)
        results.write(settings.result_file())


def _group_table(
    settings: SentEvalSettings, results: Results, group: str, published: Mapping[str, Mapping[str, Row]]
) -> str:
    rows = {settings.model: results.row(group), **_subset_means(results, group)}
    if settings.compare and settings.suite == "senteval":
        rows |= published[group]
    return table(rows, results.groups[group], results.is_whole(group), settings.format)


def _subset_means(results: Results, group: str) -> dict[str, Row]:
    """Rows with the other aggregations, where a task has subsets; other tasks repeat their figure."""
    years = {
        name: result
        for name, result in results.tasks.items()
        if isinstance(result, StsTaskResult) and len(result.subsets) > 1
    }
    if group != "sts" or not years:
        return {}
    row = results.row(group)
    return {
        "  mean of subsets": row | {name: result.mean for name, result in years.items()},
        "  weighted mean": row | {name: result.weighted_mean for name, result in years.items()},
    }


def _write_pairs(results: Results, tasks: Sequence[Task], folder: Path, embed: Embed, file: Path) -> None:
    """Write an array (2, pairs) for each STS task, cosines and gold scores, as a paired test over pairs needs them."""
    arrays = {
        task.name: np.concatenate(list(predictions(task, folder, embed).values()), axis=1)
        for task in tasks
        if isinstance(task, StsTask) and task.name in results.tasks
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file, "wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
    except OSError as error:
        raise UserError(f"--pairs: cannot write {str(file)!r}: {error.strerror}") from error


def _measure_geometry(
    settings: SentEvalSettings, results: Results, folder: Path, embed: Embed, draw: Draw | None
) -> None:
    try:
        pairs = STS_SETS["mini_sts" if settings.suite == "mini" else f"stsb_{settings.geometry}"].pairs(folder)
    except DataError as error:
        if settings.plot is not None:
            raise
        results.left_out["geometry"] = str(error)
        print(f"geometry left out: {error}", file=sys.stderr)
        return
    measured = evaluate_sts(pairs, embed)
    results.geometry = {"set": pairs.name, "sentences": len(pairs.sentences), **asdict(measured)}
    print(
        f"\n{pairs.name}, {len(pairs.sentences):,} distinct sentences: alignment {measured.alignment:.4f} (pairs "
        f"scored above 4), uniformity {measured.uniformity:.4f}, Spearman {measured.spearman:.2f}"
    )
    if draw is not None:
        draw(pair_similarities(pairs, embed(pairs.sentences)).by_label(), f"{settings.model} on {pairs.name}")
        print(f"{settings.plot}: similarities and temperature")
