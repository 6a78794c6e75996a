"""Results of evaluations, stored as lines of JSON that are appended and never changed.

Tables show the newest result of each model on each task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dystress_text.errors import ParameterError, UserError
from dystress_text.evaluation.lexical import LEXICAL
from dystress_text.evaluation.retrieval import GRADED, METRICS, WITH_BM25
from dystress_text.evaluation.statistics import Estimate, estimate, without_units
from dystress_text.io.atomic import append_json, json_lines, versions
from dystress_text.io.lock import LOCK, locked
from dystress_text.io.paths import distinct_names
from dystress_text.training.run_folder import RECORD
from dystress_text.training.run_record import BASE

RESULTS = "results.jsonl"
SETTINGS = ("mode", "pooler_type", "max_seq_length", "truncate_dim", "prompts")
OWN_SETTINGS = {"pooler_type": None}  # of a model evaluated as it is loaded
_PACKAGES = (
    "sentence-transformers",
    "tokenizers",
    "scipy",
    "scikit-learn",
    "bm25s",
    "snowballstemmer",
)
_FIGURES = {  # by kind, the main one first
    "sts": ("spearman",),
    "transfer": ("accuracy",),
    "pairs": ("spearman",),
    "retrieval": (*METRICS, GRADED, WITH_BM25),
}
Content = tuple[str, str, str | None]  # group, task, and checksum of the user's data
_TYPES = {"str": str, "str | None": str | None}  # by annotation; the others are mappings


@dataclass(frozen=True)
class Result:
    """The figures of a model on one task or set, which are a line of a result file."""

    model: str  # as it was named
    weights: str | None  # checksum
    group: str  # such as senteval/sts and mini/transfer; pairs or retrieval for the user's own
    task: str
    data: str | None  # checksum
    figures: Mapping[str, float | None]  # None for what is not finite
    # of the lexical baseline on the same data; empty where there is none
    lexical: Mapping[str, float | None] = field(default_factory=dict)
    # of a hybrid's dense model on the same data; empty for other models
    dense: Mapping[str, float | None] = field(default_factory=dict)
    variant: str | None = None  # of the published data
    # nDCG@10 of each query, or similarity of each pair, by ``model``, ``lexical`` and ``dense``;
    # for pairs also their ``scores``
    each: Mapping[str, Sequence[float]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)  # counts, seconds and so on
    versions: Mapping[str, str] = field(default_factory=dict)
    time: str = ""  # UTC

    def __post_init__(self) -> None:
        for entry in fields(self):
            if not isinstance(getattr(self, entry.name), _TYPES.get(str(entry.type), Mapping)):
                raise TypeError(f"{entry.name} is not of type {entry.type}")
        if self.kind not in _FIGURES:
            raise ValueError(f"unknown group {self.group!r}")
        if self.main not in self.figures:
            raise ValueError(f"the figures lack {self.main!r}")
        for figure in (*self.figures.values(), *self.lexical.values(), *self.dense.values()):
            if not isinstance(figure, int | float | None):
                raise TypeError("figures must be numbers")
        if len({len(np.asarray(values, np.float64)) for values in self.each.values()}) > 1:
            raise ValueError("the lists in each differ in length")

    @classmethod
    def of_entry(
        cls, entry: Mapping[str, Any], group: str, task: str, metadata: Mapping[str, Any]
    ) -> Result:
        """Return a result for a new measurement.

        Args:
            entry: figures, ``sha256`` of the data, ``data_variant``, and details such as counts.
            group: a group such as ``senteval/sts``.
            task: a task such as ``STS12``.
            metadata: facts about the model and the settings of the evaluation.
        """
        known = _FIGURES[group.rpartition("/")[2]]
        details = {name: value for name, value in entry.items() if name not in known}
        return cls(
            model=metadata["model"],
            weights=metadata.get("weights"),
            group=group,
            task=task,
            data=details.pop("sha256", None),
            figures={name: entry[name] for name in known if name in entry},
            variant=details.pop("data_variant", None),
            settings={name: metadata.get(name) for name in SETTINGS},
            details=details,
            versions=versions(*_PACKAGES),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    @property
    def kind(self) -> str:
        """What was measured: ``sts``, ``transfer``, ``pairs`` or ``retrieval``."""
        return self.group.rpartition("/")[2]

    @property
    def main(self) -> str:
        """The name of the main figure."""
        return _FIGURES[self.kind][0]

    @property
    def content(self) -> Content:
        """What identifies the data: suite and task, or the checksum of the user's data."""
        return self.group, self.task, None if "/" in self.group else self.data

    @property
    def is_reference(self) -> bool:
        """Whether this is the lexical baseline, or the dense model of a hybrid."""
        return self.model == LEXICAL or self.model.endswith(f": {BASE}")

    @property
    def baseline(self) -> Result | None:
        """The result of the lexical baseline on the same data."""
        return self._beside(LEXICAL, self.lexical, "lexical")

    @property
    def dense_model(self) -> Result | None:
        """The result of a hybrid's dense model on the same data."""
        return self._beside(f"{self.model}: {BASE}", self.dense, "dense")

    def _beside(self, model: str, figures: Mapping[str, float | None], key: str) -> Result | None:
        if not figures:
            return None
        names = {key: "model", "scores": "scores"}
        each = {names[name]: values for name, values in self.each.items() if name in names}
        empty: dict[str, Any] = {"weights": None, "lexical": {}, "dense": {}, "settings": {}}
        return replace(self, model=model, figures=figures, each=each, **empty)

    @cached_property
    def estimate(self) -> Estimate | None:
        """The main figure with its resamples; None if it is not finite."""
        figure = self.figures[self.main]
        if figure is None:
            return None
        if not self.each.get("model"):  # such as an accuracy
            return without_units([figure])
        return estimate(self.each["model"], self.each.get("scores"), self.data or "")

    @property
    def columns(self) -> dict[str, float | None]:
        """The figures by table column: a task or, for search, a task with a metric."""
        if self.kind == "retrieval":
            return {f"{self.task} {metric}": figure for metric, figure in self.figures.items()}
        return {self.task: self.figures[self.main]}

    def has(self, settings: Mapping[str, Any]) -> bool:
        """Return whether the model was measured with these settings."""
        return all(self.settings.get(name) == value for name, value in settings.items())


def newest(results: Iterable[Result], key: Callable[[Result], Hashable]) -> list[Result]:
    """Return the newest result for each key, in the order in which the keys first appear."""
    return list({key(result): result for result in results}.values())


def task_names(results: Iterable[Result]) -> dict[Content, str]:
    """Map each set whose task name is not unique to the shortest unique suffix of its path."""
    by_content = {each.content: each for each in results}
    count = Counter(content[:2] for content in by_content)
    paths = {}
    for content, result in by_content.items():
        if count[content[:2]] > 1:
            paths[content] = str(result.details.get("source") or result.task), result.data
    return distinct_names(paths)


def result_file(folder: Path) -> Path | None:
    """Return the result file of a folder; None if it is no run and has no results."""
    file = folder / RESULTS
    return file if file.is_file() or (folder / RECORD).is_file() else None


def open_results(file: Path) -> None:
    """Create a result file, or check that an existing one can be read and written."""
    with _locked(file):
        if file.is_file():
            read_results(file)  # first, as the last line of another file must stay
        append_json(file)


def append(file: Path, result: Result) -> None:
    with _locked(file):
        append_json(file, asdict(result))


def lexical_words(results: Iterable[Result]) -> str:
    """Return the terms that the lexical baseline compares in these results; "" if unknown."""
    words = (each.details.get("lexical_words") for each in results)
    return ", ".join(dict.fromkeys(filter(None, words)))


def results_in(folder: Path) -> list[Result]:
    """Return the results in a folder, oldest first."""
    file = folder / RESULTS
    return read_results(file) if file.is_file() else []


def read_results(file: Path) -> list[Result]:
    """Return the lines of a result file, oldest first."""
    known = {entry.name for entry in fields(Result)}
    results = []
    for number, values in json_lines(file).items():
        try:
            results.append(Result(**{name: values[name] for name in values if name in known}))
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(f"{file}: line {number} is not a result: {error}") from error
    return results


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock a result file; other processes wait."""
    try:
        with locked(file.with_name(f".{file.name}{LOCK}"), wait=True):
            yield
    except OSError as error:
        reason = error.strerror or error
        raise ParameterError("output", f"cannot write {str(file)!r}: {reason}") from error
