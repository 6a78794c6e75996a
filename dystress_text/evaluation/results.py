"""Results of evaluations: lines of JSON, which are appended and never changed.

Tables show the newest line of each key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from dystress_text.errors import ParameterError, UserError
from dystress_text.evaluation.lexical import LEXICAL
from dystress_text.evaluation.retrieval import GRADED, METRICS
from dystress_text.io.atomic import to_json, versions
from dystress_text.io.lock import LOCK, locked
from dystress_text.training.run_folder import RECORD

RESULTS = "results.jsonl"
GEOMETRY = ("spearman", "alignment", "uniformity")
SETTINGS = ("mode", "pooler_type", "max_seq_length", "dtype", "prompts")
OWN_SETTINGS = {"pooler_type": None, "dtype": "fp32"}  # of a model evaluated as it is loaded
_PACKAGES = ("sentence-transformers", "tokenizers", "scipy", "scikit-learn", "bm25s")
_FIGURES = (
    "spearman",
    "mean",
    "weighted_mean",
    "accuracy",
    "dev_accuracy",
    "f1",
    "alignment",
    "uniformity",
    *METRICS,
    GRADED,
)
_SHOWN = {  # the figures that tables show, by kind
    "sts": ("spearman",),
    "transfer": ("accuracy",),
    "geometry": GEOMETRY,
    "pairs": ("spearman",),
    "retrieval": (*METRICS, GRADED),
}


@dataclass(frozen=True)
class Result:
    """The figures of a model on one task or set: a line of a result file."""

    model: str  # as it was named
    weights: str | None  # checksum
    group: str  # such as senteval/sts and mini/transfer; pairs or retrieval for the user's own
    task: str
    data: str | None  # checksum
    figures: Mapping[str, float | None]  # None for what is not finite, or does not exist
    # of the lexical baseline on the same data; empty where there is none
    lexical: Mapping[str, float | None] = field(default_factory=dict)
    variant: str | None = None  # what the data are, where they are not the published ones
    settings: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)  # counts, folds, seconds and so on
    versions: Mapping[str, str] = field(default_factory=dict)
    time: str = ""  # UTC

    def __post_init__(self) -> None:
        for name in ("model", "group", "task", "time"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is not a text")
        for name in ("figures", "lexical", "settings", "details", "versions"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"{name} is not an object")
        for figure in (*self.figures.values(), *self.lexical.values()):
            if not isinstance(figure, int | float | None):
                raise TypeError("figures are numbers")
        if self.kind not in _SHOWN:
            raise ValueError(f"unknown group {self.group!r}")
        if _SHOWN[self.kind][0] not in self.figures:
            raise ValueError(f"no {_SHOWN[self.kind][0]}")

    @classmethod
    def of_entry(
        cls, entry: Mapping[str, Any], group: str, task: str, metadata: Mapping[str, Any]
    ) -> Result:
        """Return the line for a new measurement.

        Args:
            entry: figures, and details such as counts and checksums of the data.
            group: such as ``senteval/sts``.
            task: such as ``STS12``.
            metadata: of the model and the settings.
        """
        details = {name: value for name, value in entry.items() if name not in _FIGURES}
        time = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(
            model=metadata["model"],
            weights=metadata.get("weights"),
            group=group,
            task=task,
            data=data_checksum(details.pop("sha256", None)),
            figures={name: entry[name] for name in _FIGURES if name in entry},
            variant=details.pop("data_variant", None),
            settings={name: metadata.get(name) for name in SETTINGS},
            details=details,
            versions=versions(*_PACKAGES),
            time=time,
        )

    @property
    def kind(self) -> str:
        """What was measured: sts, transfer, geometry, pairs or retrieval."""
        return self.group.rpartition("/")[2]

    @property
    def baseline(self) -> Result | None:
        """The result of the lexical baseline on the same data."""
        if not self.lexical:
            return None
        return replace(self, model=LEXICAL, weights=None, figures=self.lexical, lexical={})

    @property
    def shown(self) -> dict[str, float | None]:
        """The figures that tables show, by metric."""
        return {name: self.figures[name] for name in _SHOWN[self.kind] if name in self.figures}

    @property
    def columns(self) -> dict[str, float | None]:
        """The figures that tables show, by column: the task, in search also the metric."""
        if self.kind not in ("retrieval", "geometry"):
            return {self.task: self.figures[_SHOWN[self.kind][0]]}
        return {f"{self.task} {metric}": figure for metric, figure in self.shown.items()}

    def has(self, settings: Mapping[str, Any]) -> bool:
        """Return whether the model was measured with these settings."""
        return all(self.settings.get(name) == value for name, value in settings.items())


def data_checksum(sums: Mapping[str, str] | str | None) -> str | None:
    """Return one checksum of data: their own, or one over those of several files."""
    if not sums:
        return None
    if isinstance(sums, str):
        return sums
    return sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def newest(results: Iterable[Result], key: Callable[[Result], Hashable]) -> list[Result]:
    """Return the newest result of each key, in the order in which the keys appeared."""
    return list({key(result): result for result in results}.values())


def result_file(folder: Path) -> Path | None:
    """Return the result file of a run's folder, or of one that has results; None for others."""
    file = folder / RESULTS
    if file.is_file() or (folder / RECORD).is_file():
        return file
    return None


def open_results(file: Path) -> None:
    """Create a result file, or check that the existing one can be read and written."""
    with _locked(file):
        if file.exists():
            read_results(file)
        _write(file, "")


def append(file: Path, result: Result) -> None:
    """Append a line to a result file."""
    with _locked(file):
        _write(file, f"{to_json(asdict(result))}\n")


def results_in(folder: Path) -> list[Result]:
    """Return the results in a folder, oldest first."""
    file = folder / RESULTS
    return read_results(file) if file.is_file() else []


def read_results(file: Path) -> list[Result]:
    """Return the lines of a result file, oldest first."""
    return [result_of(values, f"{file}: line {n}") for n, values in read_lines(file)]


def result_of(values: Mapping[str, Any], where: str) -> Result:
    """Return the result that a line holds; errors begin with ``where``."""
    known = {entry.name for entry in fields(Result)}
    try:
        return Result(**{name: value for name, value in values.items() if name in known})
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} is not a result: {error}") from error


def read_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines with their line numbers."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}: line {number} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise UserError(f"{file}: line {number} is not a JSON object")
        yield number, values


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock of a result file; other processes wait."""
    try:
        with locked(file.with_name(f".{file.name}{LOCK}"), wait=True):
            yield
    except OSError as error:
        reason = error.strerror or error
        raise ParameterError("output", f"cannot write {str(file)!r}: {reason}") from error


def _write(file: Path, text: str) -> None:
    with file.open("a+b") as stream:
        if stream.tell() > 0:
            stream.seek(-1, 2)
            if stream.read(1) != b"\n":  # edited by hand, or a process died while writing
                stream.write(b"\n")
        stream.write(text.encode())
