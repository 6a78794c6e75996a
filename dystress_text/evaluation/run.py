"""An evaluation from the first task to the result file."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dystress_text.cli.extras import require
from dystress_text.core.registry import Temperature
from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.classifier import Fitter, fit_batched, fit_literal
from dystress_text.evaluation.embedder import Embedder, load_model
from dystress_text.evaluation.geometry import geometry_pairs, plot_similarities
from dystress_text.evaluation.original import OriginalResult, import_senteval, run_original
from dystress_text.evaluation.published import Row, average
from dystress_text.evaluation.senteval_tasks import SUITES, StsTask, Task, checksums, choose
from dystress_text.evaluation.similarities import pair_similarities
from dystress_text.evaluation.sts import Embed, evaluate_sts
from dystress_text.evaluation.sts_tasks import StsTaskResult, evaluate_sts_task, predictions
from dystress_text.evaluation.tables import table
from dystress_text.evaluation.transfer import TransferResult, evaluate_transfer
from dystress_text.files.places import EMBEDDED, cache_root, data_root
from dystress_text.files.prepared_data import variant_of
from dystress_text.files.whole import versions, write_json
from dystress_text.training.run_folder import evaluation_file

Result = StsTaskResult | TransferResult | OriginalResult
PACKAGES = ("sentence-transformers", "tokenizers", "scipy", "scikit-learn")


@dataclass
class Results:
    """What has been found so far; grows task by task.

    Attributes:
        about: the model, the suite and all settings.
        groups: names of the chosen tasks by group, in table order.
        tasks: results by task.
        left_out: why a task gave no result, by task.
        seconds: by task, reading and embedding included.
        checksums: sha256 of each file read, by task.
        geometry: of a set named in it.
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
        """The figures of a group's chosen tasks, None where there is none."""
        return {name: figure(self.tasks[name]) if name in self.tasks else None for name in self.groups[group]}

    def is_whole(self, group: str) -> bool:
        """Whether all tasks of the group were chosen."""
        return len(self.groups[group]) == len(SUITES[self.about["suite"]][group])

    def write(self, file: Path) -> None:
        """Write all of it as JSON.

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
    """The figure that tables print."""
    match result:
        case StsTaskResult():
            return result.spearman
        case TransferResult():
            return result.accuracy
    return result.figure


def evaluate_task(task: Task, folder: Path, embed: Embed, mode: str = "test", fitter: Fitter = fit_batched) -> Result:
    """Run a task of either kind; see :func:`evaluate_sts_task` and :func:`evaluate_transfer`."""
    if isinstance(task, StsTask):
        return evaluate_sts_task(task, folder, embed)
    return evaluate_transfer(task, folder, embed, mode, fitter)


@dataclass(frozen=True)
class EvalSettings:
    """What the program was told; see its help.

    Attributes:
        model: folder or name.
        pooler_type: of a Hugging Face encoder.
        tasks: names of tasks and groups.
        suite: ``senteval`` or ``mini``.
        mode: ``test`` or ``fast``.
        data_dir: where prepared data lie.
        dtype: of the forward pass.
        batch_size: sentences at a time.
        engine: ``batched``, ``literal`` or ``original``.
        cache: keep vectors on disk.
        format: of the tables.
        compare: add published rows.
        geometry: STS-B split, or ``none``.
        plot: picture to draw.
        pairs: file for the cosine of every STS pair.
        output: result file.
    """

    model: str
    pooler_type: str | None = None
    tasks: Sequence[str] = ("all",)
    suite: str = "senteval"
    mode: str = "test"
    data_dir: str | None = None
    dtype: str = "fp32"
    batch_size: int = 64
    engine: str = "batched"
    cache: bool = False
    format: str = "text"
    compare: bool = False
    geometry: str = "dev"
    plot: Path | None = None
    pairs: Path | None = None
    output: Path | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"--batch_size: must be at least 1, got {self.batch_size}")
        if self.plot is not None:
            require("plots", "--plot")
        if self.plot is not None and self.geometry == "none":
            raise UserError("--plot draws the similarities of the --geometry set; give dev or test")

    def result_file(self) -> Path:
        """Where the results go."""
        if self.output is not None:
            return self.output
        folder = Path(self.model)
        return evaluation_file(folder if folder.is_dir() else Path(), self.suite, self.mode)


def run(
    settings: EvalSettings,
    published: Mapping[str, Mapping[str, Row]] | None = None,
    temperature: tuple[Temperature, str] | None = None,
) -> Results:
    """Evaluate a model: print the tables, write the result file after each task, and return the results.

    Args:
        settings: what the program was told.
        published: rows of published tables by group and label, for ``--compare``.
        temperature: what ``--plot`` draws below the similarities, and whose it is.

    Raises:
        UserError: unknown names, no data at all, an encoder that does not load or gives no usable vectors.
    """
    chosen = choose(settings.suite, settings.tasks)
    folder = EMBEDDED / "senteval" if settings.suite == "mini" else data_root(settings.data_dir) / "senteval"
    if not folder.is_dir():
        raise UserError(
            f"no SentEval data: {folder} is no folder; python data/prepare.py senteval gets them, --data_dir names "
            "another place, and --suite mini comes with the checkout"
        )
    if settings.engine == "original":
        import_senteval()
    encode, card = load_model(settings.model, settings.pooler_type, settings.dtype, settings.batch_size, progress=True)
    embed = Embedder(
        encode, cache_root() / "embeddings" / f"{card.sha256[:32]}.safetensors" if settings.cache else None
    )
    about = {**asdict(card), "suite": settings.suite, "mode": settings.mode, "engine": settings.engine}
    groups = {group: [task.name for task in tasks] for group, tasks in chosen.items()}
    variant = variant_of(folder)
    if variant is not None:
        print(f"not SentEval's published data but a variant: {variant}")
    about |= {
        "asked": list(settings.tasks),
        "batch_size": settings.batch_size,
        "data": str(folder),
        "data_variant": variant,
    }
    results = Results(about, groups)
    file = settings.result_file()
    results.write(file)  # a place that cannot be written shows itself now, not after the last task
    try:
        for group, tasks in chosen.items():
            _run_group(settings, results, tasks, folder, embed, file)
            print(f"\n{_group_table(settings, results, group, published or {})}", flush=True)
        if settings.pairs is not None:
            _write_pairs(results, chosen.get("sts", []), folder, embed, settings.pairs)
        if "sts" in groups and settings.geometry != "none":
            _measure_geometry(settings, results, folder, embed, temperature)
    finally:
        embed.save()
    results.write(file)
    missing = ", ".join(results.missing)
    print(f"\n{file}: {f'results but for {missing}' if missing else 'all results'}")
    return results


def _run_group(
    settings: EvalSettings, results: Results, tasks: Sequence[Task], folder: Path, embed: Embedder, file: Path
) -> None:
    fitter = fit_literal if settings.engine == "literal" else fit_batched
    for task in tasks:
        start = time.perf_counter()
        try:
            if settings.engine == "original":
                result: Result = run_original(task, folder, embed, settings.mode)
            else:
                result = evaluate_task(task, folder, embed, settings.mode, fitter)
        except DataError as error:
            results.left_out[task.name] = str(error)
            print(f"{task.name} left out: {error}", file=sys.stderr, flush=True)
        else:
            results.tasks[task.name] = result
            results.checksums[task.name] = checksums(task, folder)
            results.seconds[task.name] = round(time.perf_counter() - start, 2)
            print(
                f"{task.name}: {figure(result):.2f} ({results.seconds[task.name]:.1f} s)", file=sys.stderr, flush=True
            )
        results.write(file)


def _group_table(
    settings: EvalSettings, results: Results, group: str, published: Mapping[str, Mapping[str, Row]]
) -> str:
    rows = {settings.model: results.row(group), **_subset_means(results, group)}
    if settings.compare and settings.suite == "senteval":
        rows |= published[group]
    return table(rows, results.groups[group], results.is_whole(group), settings.format)


def _subset_means(results: Results, group: str) -> dict[str, Row]:
    """Rows with the other aggregations, where a task has subsets; a task without them has one figure."""
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
    """What a paired test over pairs needs: an array (2, pairs) for each task, cosines and gold scores."""
    found = {
        task.name: predictions(task, folder, embed)
        for task in tasks
        if isinstance(task, StsTask) and task.name in results.tasks
    }
    staging = file.with_name(f".{file.name}.writing")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with staging.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **found)
        staging.replace(file)
    except OSError as error:
        raise UserError(f"--pairs: cannot write {str(file)!r}: {error.strerror}") from error


def _measure_geometry(
    settings: EvalSettings,
    results: Results,
    folder: Path,
    embed: Embedder,
    temperature: tuple[Temperature, str] | None,
) -> None:
    try:
        pairs = geometry_pairs(settings.suite, settings.geometry, folder)
    except DataError as error:
        if settings.plot is not None:
            raise
        results.left_out["geometry"] = str(error)
        print(f"geometry left out: {error}", file=sys.stderr)
        return
    found = evaluate_sts(pairs, embed)
    results.geometry = {"set": pairs.name, "sentences": len(pairs.sentences), **asdict(found)}
    print(
        f"\n{pairs.name}, {len(pairs.sentences):,} distinct sentences: alignment {found.alignment:.4f} (pairs scored "
        f"above 4), uniformity {found.uniformity:.4f}, Spearman {found.spearman:.2f}"
    )
    if settings.plot is not None and temperature is not None:
        similarities = pair_similarities(pairs, embed(pairs.sentences))
        plot_similarities(similarities, *temperature, f"{settings.model} on {pairs.name}", settings.plot)
        print(f"{settings.plot}: similarities and temperature")
