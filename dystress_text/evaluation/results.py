"""Results of evaluations: lines of JSON, one appended for each figure, none ever changed.

A table shows the newest line of each key; what counts as a key is the reader's choice.
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
from dystress_text.evaluation.catalogue import TASKS
from dystress_text.evaluation.lexical import LEXICAL
from dystress_text.evaluation.retrieval import GRADED, METRICS
from dystress_text.io.atomic import to_json, versions
from dystress_text.io.lock import LOCK, locked
from dystress_text.training.run_folder import RECORD

RESULTS = "results.jsonl"
GEOMETRY = ("spearman", "alignment", "uniformity")
SETTINGS = ("mode", "pooler_type", "max_seq_length", "dtype", "prompts")
OWN_SETTINGS = {"pooler_type": None, "dtype": "fp32"}  # of a model evaluated as it is loaded
_OLD_FILES = "*senteval-*.json"  # of version 0.2
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
        if not all(
            isinstance(each, int | float | None)
            for each in [*self.figures.values(), *self.lexical.values()]
        ):
            raise TypeError("figures are numbers")
        if self.kind not in _SHOWN:
            raise ValueError(f"unknown group {self.group!r}")
        if _SHOWN[self.kind][0] not in self.figures:
            raise ValueError(f"no {_SHOWN[self.kind][0]}")

    @classmethod
    def of_entry(
        cls, entry: Mapping[str, Any], group: str, task: str, about: Mapping[str, Any]
    ) -> Result:
        """Return the line of what was measured; ``about`` has the model and the settings."""
        rest = {name: value for name, value in entry.items() if name not in _FIGURES}
        return cls(
            model=about["model"],
            weights=about.get("weights"),
            group=group,
            task=task,
            data=data_checksum(rest.pop("sha256", None)),
            figures={name: entry[name] for name in _FIGURES if name in entry},
            variant=rest.pop("data_variant", None),
            settings={name: about.get(name) for name in SETTINGS},
            details=rest,
            versions=about.get("versions", {}),
            time=about.get("time", ""),
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
        """Whether it was measured with these settings."""
        return all(self.settings.get(name) == value for name, value in settings.items())


def now() -> dict[str, Any]:
    """Return the versions and the time of a new line."""
    packages = ("sentence-transformers", "tokenizers", "scipy", "scikit-learn", "bm25s")
    time = datetime.now(UTC).isoformat(timespec="seconds")
    return {"versions": versions(*packages), "time": time}


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
    names = (RECORD, RESULTS, _OLD_FILES)
    if any(file.is_file() for name in names for file in folder.glob(name)):
        return folder / RESULTS
    return None


def open_results(file: Path) -> None:
    """Create a result file, or check that the one there can be read and written.

    A new ``results.jsonl`` begins with the lines of the result files of 0.2 beside it.
    """
    with _locked(file):
        if file.exists():
            read_results(file)
        older = results_in(file.parent) if file.name == RESULTS and not file.exists() else []
        _write(file, older)


def append(file: Path, result: Result) -> None:
    """Append a line to a result file."""
    with _locked(file):
        _write(file, [result])


def results_in(folder: Path) -> list[Result]:
    """Return the results in a folder, oldest first; those of 0.2 while there are no newer ones."""
    file = folder / RESULTS
    if file.is_file():
        return read_results(file)
    return [result for old in sorted(folder.glob(_OLD_FILES)) for result in convert(old)]


def read_results(file: Path) -> list[Result]:
    """Return the lines of a result file, oldest first."""
    return [result_of(values, f"{file}: line {n}") for n, values in read_lines(file)]


def result_of(values: Mapping[str, Any], where: str) -> Result:
    """Return the result that a line holds; an error says where it stands."""
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


def convert(file: Path) -> list[Result]:
    """Return the lines of a result file of version 0.2, oldest first."""
    try:
        newest_content = json.loads(file.read_text(encoding="utf-8"))
        contents = [*reversed(newest_content.get("others", [])), newest_content]
        return [result for content in contents for result in _converted(content)]
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{file} is not a result file of version 0.2: {error!r}") from error


def _converted(content: Mapping[str, Any]) -> Iterator[Result]:
    suite = content["suite"]
    # other_data has results on data that were measured before, named "TASK (checksum)"
    for name, entry in {**content.get("other_data", {}), **content["tasks"]}.items():
        task = entry.get("set") or name.partition(" (")[0]
        yield Result.of_entry(entry, f"{suite}/{_kind_of(name, entry)}", task, content)
    geometry = content.get("geometry")
    if geometry:
        yield Result.of_entry(geometry, f"{suite}/geometry", geometry["set"], content)
    for kind in ("pairs", "retrieval"):
        for name, entry in content.get(kind, {}).items():
            yield Result.of_entry(entry, kind, name, content)


def _kind_of(task: str, entry: Mapping[str, Any]) -> str:
    if "set" in entry:
        return "geometry"
    if set(METRICS) <= entry.keys():
        return "retrieval"
    return "sts" if "spearman" in entry or task in TASKS["sts"] else "transfer"


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Let one process at a time write a result file; the others wait."""
    try:
        with locked(file.with_name(f".{file.name}{LOCK}"), wait=True):
            yield
    except OSError as error:
        reason = error.strerror or error
        raise ParameterError("output", f"cannot write {str(file)!r}: {reason}") from error


def _write(file: Path, results: Iterable[Result]) -> None:
    text = "".join(f"{to_json(asdict(result))}\n" for result in results)
    with file.open("a+b") as stream:
        if stream.tell() > 0:
            stream.seek(-1, 2)
            if stream.read(1) != b"\n":  # edited by hand, or a process died while it wrote
                text = f"\n{text}"
        stream.write(text.encode())
