"""What ``run.json`` holds: the record of a run, written while it lives and read by everything else.

A field that a run has not reached yet, or that its program does not write, has its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

NEW, INTERRUPTED, FINISHED = "new", "interrupted", "finished"  # states of a run

Figures = Mapping[str, float]  # by metric


@dataclass(frozen=True)
class BaseModel:
    """The model that a run began with."""

    name: str | None = None
    on_hub: bool = False
    license: str | None = None


@dataclass(frozen=True)
class DenseModel(BaseModel):
    """The dense model of a hybrid."""

    dim: int = 0
    weight: float = 0.0  # of the lexical part
    gives: str = ""  # how the two make one vector


@dataclass(frozen=True)
class PaperRow:
    """The rows of the paper's tables that a preset stands for."""

    rows: Sequence[str] = ()
    differs: str = ""  # the options in which the run differs from them


@dataclass(frozen=True)
class HeldOut:
    """Half-document retrieval on texts that are held out of training, before and after it."""

    texts: int
    gain: float  # x 100
    error: float  # the standard error of the gain over the texts
    neighbours: Sequence[Sequence[str]] = ()  # some texts, each with its nearest before and after


@dataclass(frozen=True)
class RunRecord:
    """The record of a run of text or images."""

    program: str = ""
    state: str = NEW
    version: str | None = None  # of this package; None before 0.2
    revision: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    loss: str = ""
    base_model: BaseModel = BaseModel()
    beside: DenseModel | None = None  # the dense model of a hybrid
    head: Mapping[str, Any] | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)  # under LoRA
    corpus: Mapping[str, Any] = field(default_factory=dict)  # of text: sentences, sha256 and counts
    data: Mapping[str, Any] = field(default_factory=dict)  # of images
    data_variants: Mapping[str, str | None] = field(default_factory=dict)  # by option
    collections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    eval_sha256: Mapping[str, str] = field(default_factory=dict)  # of evaluation sets
    paper: PaperRow = PaperRow()
    untrained: Mapping[str, Figures] = field(default_factory=dict)  # by pooler; of images by ""
    words: Figures = field(default_factory=dict)  # of the lexical baseline
    trained: Figures = field(default_factory=dict)
    halves: HeldOut | None = None
    similarities: Mapping[str, Any] = field(default_factory=dict)  # histograms of scored pairs
    random_pairs: Mapping[str, Any] | None = None
    neighbours: Mapping[str, Any] = field(default_factory=dict)  # of images
    learned_temperature: Mapping[str, float] = field(default_factory=dict)
    steps: int | None = None
    best_step: int | None = None
    skipped_steps: int = 0
    train_seconds: float | None = None
    sentences_per_second: float | None = None
    images_per_second: float | None = None
    padding_share: float | None = None
    peak_memory_gb: float | None = None
    device: str | None = None
    processes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)  # what this version does not know

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunRecord:
        """Return the record that the content of ``run.json`` holds, of 0.2 too."""
        known = {entry.name for entry in fields(cls)} - {"more"}
        given = {name: values[name] for name in known if values.get(name) is not None}
        for name, kind in _NESTED.items():
            if name in given:
                parts = {entry.name for entry in fields(kind)} & given[name].keys()
                given[name] = kind(**{part: given[name][part] for part in parts})
        untrained = given.get("untrained", {})
        if not all(isinstance(figures, Mapping) for figures in untrained.values()):
            given["untrained"] = {"": untrained}
        if "state" not in given:  # before 0.2 a run with figures was a finished one
            given["state"] = FINISHED if "trained" in values else INTERRUPTED if values else NEW
        return cls(**given, more={name: values[name] for name in values if name not in known})

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``run.json``, without what has its default."""
        default = RunRecord()
        known = {
            name: value
            for name, value in asdict(self).items()
            if name in ("state", "head") or getattr(self, name) != getattr(default, name)
        }
        known |= known.pop("more", {})
        if list(self.untrained) == [""]:
            known["untrained"] = dict(self.untrained[""])
        return known

    @property
    def pooler(self) -> str:
        """The pooler of a run of text."""
        return str(self.settings.get("pooler_type") or "")

    @property
    def untrained_best_and_own(self) -> dict[str, Figures]:
        """The figures before training of the best pooler and of the run's own, by pooler."""
        names = dict.fromkeys([*list(self.untrained)[:1], self.pooler])
        return {name: self.untrained[name] for name in names if name in self.untrained}

    @property
    def not_above_baseline(self) -> list[str]:
        """The metrics of pairs and collections on which the model does not beat the lexical one."""
        return [
            name
            for name, figure in self.words.items()
            if name.endswith(("_spearman", "_ndcg@10"))
            and name != "avg_spearman"
            and self.trained.get(name, figure + 1) <= figure
        ]

    @property
    def step_chosen_by(self) -> str | None:
        """The metric that chose the step that was kept; None if only the last was measured."""
        every = self.settings.get("eval_steps")
        last = every is not None and (
            every == 0 or (self.steps is not None and every >= self.steps)
        )
        if last and self.best_step in (None, self.steps):
            return None
        metric: str | None = self.settings.get("metric_for_best_model")
        return metric


_NESTED = {"base_model": BaseModel, "beside": DenseModel, "paper": PaperRow, "halves": HeldOut}
