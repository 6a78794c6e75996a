"""The record of a run, which ``run.json`` contains.

Each process of a run fills its own record; the main process writes its one. A field has its default
until the run sets it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dystress_text.errors import OTHER_NAMES

# states of a run
NOT_STARTED = "new"
INTERRUPTED = "interrupted"
FINISHED = "finished"

BASE = "base model alone"  # the dense model of a hybrid, among the untrained ones

MetricValues = Mapping[str, float]  # by the name of the metric


def lexical_label(words: str) -> str:
    """Return the title of the lexical baseline in reports.

    Args:
        words: what it counts, such as ``English stems``; "" if the record does not say.
    """
    return f"TF-IDF/BM25 over {words}" if words else "TF-IDF/BM25"


@dataclass(frozen=True)
class Metric:
    """A metric: a measure on a set, which is known by its kind and its name.

    Attributes:
        set: the name of the set, such as ``sts_b_dev``.
        measure: the measure, such as ``spearman``; "" if ``set`` is the whole name.
        title: the name in pages and cards; "" for :attr:`name`.
        kind: what the set is: ``sts``, ``transfer``, the user's ``pairs``, ``retrieval``,
            ``held-out`` rows, or data of the user's ``evaluator``; "" in records without kinds.
        higher_is_better: whether higher values are better.
        lexical: the lexical baseline to beat, ``TF-IDF`` or ``BM25``; "" for none.
        lexical_metric: the name of the baseline's metric; "" if it is the same as the model's.
        sets: kind and name of the sets that the value is averaged over; () for a single set.
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
        """Return whether the metric is on this set, or averages over it; records may lack kinds."""
        return not {(kind, name), ("", name)}.isdisjoint(self.sets or [(self.kind, self.set)])

    @property
    def with_bm25(self) -> str:
        """The name of this metric on the ranking that combines model and BM25."""
        return f"{self.name}_with_bm25"

    @property
    def full_title(self) -> str:
        """The title and whether higher or lower is better."""
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
    """How much training improves retrieval on held-out rows."""

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
    corpus: Mapping[str, Any] = field(default_factory=dict)  # the training text: sha256 and counts
    data: Mapping[str, Any] = field(default_factory=dict)  # the training images
    data_variants: Mapping[str, str | None] = field(default_factory=dict)  # by option
    start: str = "untrained"  # what reports call the model before training
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # by name
    untrained: Mapping[str, MetricValues] = field(default_factory=dict)  # by pooler; "" for images
    lexical: MetricValues = field(default_factory=dict)  # the lexical baseline's
    lexical_words: str = ""  # what the lexical baseline counts, such as English stems
    trained: MetricValues = field(default_factory=dict)
    held_out: HeldOut | None = None
    # histograms of the scored pairs on the page, before and after training
    similarities: dict[str, Any] = field(default_factory=dict)
    random_pairs: Mapping[str, Any] | None = None
    # by model (BASE, untrained, trained): some texts, each followed by its nearest three
    samples: dict[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    # indices of some images, each followed by its nearest five before training
    nearest: Sequence[Sequence[int]] | None = None
    learned_temperature: Mapping[str, float] = field(default_factory=dict)
    steps: int | None = None
    best_step: int | None = None
    skipped_steps: int | None = None  # by fp16
    collapsed_step: int | None = None  # since this evaluation all embeddings are equal
    train_seconds: float | None = None
    samples_per_second: float | None = None  # sentences or images
    peak_memory_gb: float | None = None
    device: str | None = None
    processes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunRecord:
        """Return the record in the content of ``run.json``; ignore unknown keys.

        Options that were renamed since get their new names.
        """
        known = _known(cls, values)
        for entry in fields(cls):
            is_mapping = isinstance(known.get(entry.name, {}), Mapping)
            if entry.default_factory is dict and not is_mapping:
                raise TypeError(f"{entry.name} is not an object")
        for name, kind in _NESTED.items():
            if name in known:
                known[name] = kind(**_known(kind, known[name]))
        settings = known.get("settings", {}).items()
        known["settings"] = {OTHER_NAMES.get(name, name): value for name, value in settings}
        metrics = known.get("metrics", {})
        known["metrics"] = {name: _metric_from(metric) for name, metric in metrics.items()}
        untrained = known.get("untrained", {})  # once, those of images were not by pooler
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
    def compared(self) -> dict[str, MetricValues]:
        """The metrics of the models to compare in reports, by the models' titles.

        In order: the untrained model with its best pooler and with the run's, the trained model,
        the lexical baseline. Models without metrics are left out.
        """
        titles = {self.pooler: self.start, BASE: BASE}
        models = {}
        for pooler in [*list(self.untrained)[:1], self.pooler]:
            title = titles.get(pooler, f"{self.start}, best pooler {pooler}")
            models[title] = self.untrained.get(pooler, {})
        models |= {"trained": self.trained, self.lexical_label: self.lexical}
        return {title: values for title, values in models.items() if values}

    @property
    def lexical_label(self) -> str:
        """The title of the lexical baseline in reports."""
        return lexical_label(self.lexical_words)

    def metric(self, name: str) -> Metric:
        """Return the metric of a name; one without title or baseline if the record lacks it."""
        return self.metrics.get(name, Metric(name))

    @property
    def not_above_baseline(self) -> list[tuple[str, str, float]]:
        """For each baseline that the model does not beat: metric, baseline, the baseline's value.

        A hybrid must also beat its dense model combined with BM25.
        """
        dense = self.untrained.get(BASE, {})
        not_beaten = []
        for name, value in self.trained.items():
            metric = self.metric(name)
            if metric.lexical:
                label = self.lexical_label.replace("TF-IDF/BM25", metric.lexical)
                floors = {
                    label: self.lexical.get(metric.lexical_metric or name),
                    f"{BASE} with BM25": dense.get(metric.with_bm25),
                }
                for baseline, floor in floors.items():
                    if floor is not None and value <= floor:
                        not_beaten.append((name, baseline, floor))
        return not_beaten

    @property
    def step_chosen_by(self) -> str | None:
        """The metric that selected the saved model; None if only the last step was evaluated."""
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
    """Return the entries for fields of a dataclass, without None; a list becomes a tuple."""
    names = {entry.name for entry in fields(kind)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in names and value is not None
    }
