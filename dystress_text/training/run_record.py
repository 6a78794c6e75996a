"""The record of a run, which ``run.json`` contains.

Every process of a run fills a record, and the main process writes it. Fields that the run has not
reached, or that its program does not use, have their defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

# states of a run
NOT_STARTED = "new"
INTERRUPTED = "interrupted"
FINISHED = "finished"

BASE = "base model alone"  # the dense model of a hybrid, among the untrained ones

Figures = Mapping[str, float]  # by the name of the metric


def lexical_label(words: str) -> str:
    """Return the name of the lexical baseline over such words as ``English stems``, for reports."""
    return f"TF-IDF/BM25 over {words}" if words else "TF-IDF/BM25"


@dataclass(frozen=True)
class Metric:
    """A metric: a measure on a set, which is known by its kind and its name.

    Attributes:
        set: the name of the set, such as ``sts_b_dev``.
        measure: the measure, such as ``spearman``; "" if the name of the set says it.
        title: the metric's name for readers; by default its name in files.
        kind: what the set is: ``sts``, ``transfer``, the user's ``pairs``, ``retrieval``,
            ``held-out`` rows, or data of the user's ``evaluator``; "" in records without kinds.
        higher_is_better: whether higher figures are better.
        lexical: the lexical baseline to beat, ``TF-IDF`` or ``BM25``; "" for none.
        lexical_metric: the name of the baseline's metric, if it is another.
        sets: kind and name of the sets over which the figure is a mean; () for a single set.
    """

    set: str
    measure: str = ""
    title: str = ""
    kind: str = ""
    higher_is_better: bool = True
    lexical: str = ""
    lexical_metric: str = ""
    sets: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The metric's name in options and files, such as ``sts_b_dev_spearman``."""
        return f"{self.set}_{self.measure}" if self.measure else self.set

    def is_on(self, kind: str, name: str) -> bool:
        """Return whether a set has a part in the figure. A record without kinds knows its name."""
        return not {(kind, name), ("", name)}.isdisjoint(self.sets or [(self.kind, self.set)])

    @property
    def with_bm25(self) -> str:
        """The name of the same measure on the model's ranking combined with that of BM25."""
        return f"{self.name}_with_bm25"

    @property
    def full_title(self) -> str:
        """The title, followed by the direction."""
        if not self.title:
            return self.name
        return f"{self.title}, {'higher' if self.higher_is_better else 'lower'} is better"


@dataclass(frozen=True)
class BaseModel:
    """The name, origin and licence of the model that a run starts from."""

    name: str | None = None
    on_hub: bool = False
    license: str | None = None


@dataclass(frozen=True)
class Hybrid(BaseModel):
    """The dense or distilled model of a hybrid."""

    pivot: float | None = None  # p of the document coordinates


@dataclass(frozen=True)
class HeldOut:
    """Retrieval on held-out rows, before and after training."""

    texts: int  # rows
    gain: float  # x 100
    error: float | None = None  # standard error of the gain; None for one row


@dataclass
class RunRecord:
    """The record of a run on text or images."""

    program: str = ""
    version: str = ""  # of this package
    state: str = NOT_STARTED
    settings: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, str] | None = None  # checksums of what the settings name
    base_model: BaseModel = BaseModel()
    hybrid: Hybrid | None = None
    head: Mapping[str, Any] | None = None
    document_row: bool = False  # of a table, which encode_document uses
    corpus: Mapping[str, Any] = field(default_factory=dict)  # of text: sentences, sha256 and counts
    data: Mapping[str, Any] = field(default_factory=dict)  # of images
    data_variants: Mapping[str, str | None] = field(default_factory=dict)  # by option
    start: str = "untrained"  # what reports call the model before training
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # of the figures, by name
    untrained: Mapping[str, Figures] = field(default_factory=dict)  # by pooler; of images by ""
    lexical: Figures = field(default_factory=dict)  # of the lexical baseline
    lexical_words: str = ""  # what it compares, such as English stems
    trained: Figures = field(default_factory=dict)
    held_out: HeldOut | None = None
    # of the scored pairs that the page shows: histograms before and after training
    similarities: dict[str, Any] = field(default_factory=dict)
    random_pairs: Mapping[str, Any] | None = None
    # some texts, each with its nearest three, by model: BASE, untrained, trained
    samples: dict[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    # some images, each with its nearest five before training, by row of the set
    nearest: Sequence[Sequence[int]] | None = None
    learned_temperature: Mapping[str, float] = field(default_factory=dict)
    steps: int | None = None
    best_step: int | None = None
    skipped_steps: int | None = None  # by fp16
    collapsed_step: int | None = None  # the evaluation since which all embeddings are one
    train_seconds: float | None = None
    samples_per_second: float | None = None  # sentences or images
    peak_memory_gb: float | None = None
    device: str | None = None
    processes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunRecord:
        """Return the record in the content of ``run.json``; unknown keys are ignored."""
        known = _known(cls, values)
        for entry in fields(cls):
            is_mapping = isinstance(known.get(entry.name, {}), Mapping)
            if entry.default_factory is dict and not is_mapping:
                raise TypeError(f"{entry.name} is not an object")
        for name, kind in _NESTED.items():
            if name in known:
                known[name] = kind(**_known(kind, known[name]))
        metrics = known.get("metrics", {})
        known["metrics"] = {name: _metric_from(metric) for name, metric in metrics.items()}
        untrained = known.get("untrained", {})  # of images, 0.2 had the figures themselves
        known["untrained"] = {name: x for name, x in untrained.items() if isinstance(x, Mapping)}
        return cls(**known)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``run.json``."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def loss(self) -> str:
        """The loss as a string."""
        return str(self.settings.get("loss", ""))

    @property
    def pooler(self) -> str:
        """The pooler of a run on text."""
        return str(self.settings.get("pooler_type") or "")

    @property
    def train_files(self) -> list[str]:
        """The training files as the user named them; [] for Wiki1M."""
        named = self.settings.get("train_file") or []
        return [named] if isinstance(named, str) else list(named)

    @property
    def compared(self) -> dict[str, Figures]:
        """The figures by what reports call the model.

        They are those of the best pooler before training, of the run's, of the trained model and of
        the lexical baseline.
        """
        own = {self.pooler: self.start, BASE: BASE}
        poolers = dict.fromkeys([*list(self.untrained)[:1], self.pooler])
        figures = {}
        for pooler in poolers:
            label = own.get(pooler, f"{self.start}, best pooler {pooler}")
            figures[label] = self.untrained.get(pooler, {})
        figures |= {"trained": self.trained, self.lexical_label: self.lexical}
        return {label: measured for label, measured in figures.items() if measured}

    @property
    def lexical_label(self) -> str:
        """The name of the lexical baseline in reports."""
        return lexical_label(self.lexical_words)

    def metric(self, name: str) -> Metric:
        """Return a metric by its name. Records of earlier versions contain only the name."""
        return self.metrics.get(name, Metric(name))

    @property
    def not_above_baseline(self) -> list[tuple[str, str, float]]:
        """The baselines that the model does not beat: metric, baseline and its figure.

        A hybrid has to beat its dense model combined with BM25, too.
        """
        dense = self.untrained.get(BASE, {})
        found = []
        for name, figure in self.trained.items():
            metric = self.metric(name)
            if metric.lexical:
                label = self.lexical_label.replace("TF-IDF/BM25", metric.lexical)
                floors = {
                    label: self.lexical.get(metric.lexical_metric or name),
                    f"{BASE} with BM25": dense.get(metric.with_bm25),
                }
                for baseline, floor in floors.items():
                    if floor is not None and figure <= floor:
                        found.append((name, baseline, floor))
        return found

    @property
    def step_chosen_by(self) -> str | None:
        """The metric that selected the kept step; None if only the last step was evaluated."""
        every = self.settings.get("eval_steps")
        single = every == 0 or (every is not None and every >= (self.steps or math.inf))
        if single and self.best_step in (None, self.steps):
            return None
        metric: str | None = self.settings.get("metric_for_best_model")
        return metric


def _metric_from(values: Mapping[str, Any]) -> Metric:
    known = _known(Metric, values)
    sets = []
    for each in known.get("sets", ()):
        kind, name = ("", each) if isinstance(each, str) else each
        sets.append((kind, name))
    return Metric(**{**known, "sets": tuple(sets)})


_NESTED = {"base_model": BaseModel, "hybrid": Hybrid, "held_out": HeldOut}


def _known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that belong to fields of a dataclass and are not None."""
    names = {entry.name for entry in fields(kind)}
    return {name: x for name, x in values.items() if name in names and x is not None}
