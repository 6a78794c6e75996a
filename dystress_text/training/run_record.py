"""The record of a run: the content of ``run.json``.

A field that the run has not reached, or that its program does not write, has its default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

# states of a run
NOT_STARTED = "new"
INTERRUPTED = "interrupted"
FINISHED = "finished"

BASE = "base model alone"  # the dense model of a hybrid, among the untrained ones

# the ends of the metrics that are compared with a baseline
_COMPARED = ("_spearman", "_ndcg@10", "_ndcg@10_with_bm25", "_recall@1")

Figures = Mapping[str, float]  # by metric


def state_of(record: Mapping[str, Any]) -> str:
    """Return the state of a run."""
    return str(record.get("state", NOT_STARTED))


def lexical_label(words: str) -> str:
    """Return what reports call the lexical baseline over such words as ``English stems``."""
    return f"TF-IDF/BM25 over {words}" if words else "TF-IDF/BM25"


@dataclass(frozen=True)
class BaseModel:
    """Name, origin and licence of the model that a run started from."""

    name: str | None = None
    on_hub: bool = False
    license: str | None = None


@dataclass(frozen=True)
class Hybrid(BaseModel):
    """The dense or distilled model of a hybrid, and its parts by name."""

    dims: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    pivot: float | None = None  # p of the document coordinates
    words: str | None = None  # of the lexical part, such as English stems


@dataclass(frozen=True)
class HeldOut:
    """Retrieval among rows that are held out of training, before and after it."""

    texts: int  # rows
    gain: float  # x 100
    error: float | None  # standard error of the gain; None for one row


@dataclass(frozen=True)
class RunRecord:
    """The record of a run on text or images."""

    program: str = ""
    state: str = NOT_STARTED
    settings: Mapping[str, Any] = field(default_factory=dict)
    loss: str = ""
    base_model: BaseModel = BaseModel()
    hybrid: Hybrid | None = None
    head: Mapping[str, Any] | None = None
    document_row: bool = False  # of a table, which encode_document uses
    corpus: Mapping[str, Any] = field(default_factory=dict)  # of text: sentences, sha256 and counts
    data: Mapping[str, Any] = field(default_factory=dict)  # of images
    data_variants: Mapping[str, str | None] = field(default_factory=dict)  # by option
    start: str = "untrained"  # what reports call the model before training
    untrained: Mapping[str, Figures] = field(default_factory=dict)  # by pooler; of images by ""
    lexical: Figures = field(default_factory=dict)  # of the lexical baseline
    lexical_words: str = ""  # what it compares, such as English stems
    trained: Figures = field(default_factory=dict)
    held_out: HeldOut | None = None
    similarities: Mapping[str, Any] = field(default_factory=dict)  # histograms of scored pairs
    random_pairs: Mapping[str, Any] | None = None
    # some texts, each with its nearest three, by model: BASE, untrained, trained
    samples: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    learned_temperature: Mapping[str, float] = field(default_factory=dict)
    steps: int | None = None
    best_step: int | None = None
    collapsed_step: int | None = None  # the evaluation since which all embeddings are one
    train_seconds: float | None = None
    device: str | None = None
    processes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunRecord:
        """Return the record for the content of ``run.json``, without keys that are unknown."""
        names = {entry.name for entry in fields(cls)}
        given = {name: x for name, x in values.items() if name in names and x is not None}
        for name, kind in _NESTED.items():
            if name in given:
                parts = {entry.name for entry in fields(kind)} & given[name].keys()
                given[name] = kind(**{part: given[name][part] for part in parts})
        untrained = given.get("untrained", {})
        if not all(isinstance(figures, Mapping) for figures in untrained.values()):
            given["untrained"] = {"": untrained}
        return cls(**given)

    @property
    def pooler(self) -> str:
        """Return the pooler of a run on text."""
        return str(self.settings.get("pooler_type") or "")

    @property
    def train_files(self) -> list[str]:
        """Return the training files as the user named them; [] for Wiki1M."""
        named = self.settings.get("train_file") or []
        return [named] if isinstance(named, str) else list(named)

    @property
    def untrained_best_and_own(self) -> dict[str, Figures]:
        """Return the metrics before training of the best pooler and the run's, by pooler."""
        names = dict.fromkeys([*list(self.untrained)[:1], self.pooler])
        return {name: self.untrained[name] for name in names if name in self.untrained}

    @property
    def lexical_label(self) -> str:
        """What reports call the lexical baseline."""
        return lexical_label(self.lexical_words)

    @property
    def not_above_baseline(self) -> list[tuple[str, str, float]]:
        """Return where the model is not above a baseline: metric, baseline and its figure.

        A hybrid has to be above its dense model with BM25, too.
        """
        dense = self.untrained.get(BASE, {})
        label = self.lexical_label
        found = []
        for name, figure in self.trained.items():
            lexical = self.lexical.get(name.removesuffix("_with_bm25"))
            own = "TF-IDF" if name.endswith("_spearman") else "BM25"
            floors = {label.replace("TF-IDF/BM25", own): lexical}
            floors[f"{BASE} with BM25"] = dense.get(f"{name}_with_bm25")
            if name.endswith(_COMPARED) and name != "avg_spearman":
                for baseline, floor in floors.items():
                    if floor is not None and figure <= floor:
                        found.append((name, baseline, floor))
        return found

    @property
    def step_chosen_by(self) -> str | None:
        """Return the metric that selected the model; None if only the last step was evaluated."""
        every = self.settings.get("eval_steps")
        single = every == 0 or (every is not None and every >= (self.steps or math.inf))
        if single and self.best_step in (None, self.steps):
            return None
        metric: str | None = self.settings.get("metric_for_best_model")
        return metric


_NESTED = {"base_model": BaseModel, "hybrid": Hybrid, "held_out": HeldOut}
