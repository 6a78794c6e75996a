"""Evaluate models on tasks, scored pairs and collections; append the results to files.

The lexical baseline is measured on the same data, except for transfer tasks. It is the last row of
each table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from dystress_text.cli.progress import OUTPUT, PROGRESS
from dystress_text.cli.text_table import cell
from dystress_text.evaluation.catalogue import (
    FiguresByTask,
    StsTask,
    Task,
    choose,
    files_needed,
    suite_folder,
)
from dystress_text.evaluation.evaluators import (
    Evaluator,
    PairsEvaluator,
    RetrievalEvaluator,
    TransferEvaluator,
)
from dystress_text.evaluation.lexical import LEXICAL, describe_lexical
from dystress_text.evaluation.results import Result, append, open_results, result_file
from dystress_text.evaluation.retrieval import Collection, read_collections
from dystress_text.evaluation.settings import EvaluateSettings
from dystress_text.evaluation.statistics import EACH
from dystress_text.evaluation.text_encoder import describe_model, load_model
from dystress_text.evaluation.text_sets import StsPairs, check_distinct, joined, read_scored_pairs
from dystress_text.io.paths import model_path
from dystress_text.io.prepared_data import variant_of
from dystress_text.models.loading import check_sentence_transformer, is_sentence_transformer


@dataclass
class ModelEvaluation:
    """The results of one model, and the file to which they are appended."""

    model: str
    file: Path | None  # None: not saved
    results: list[Result] = field(default_factory=list)

    @property
    def figures(self) -> FiguresByTask:
        """The figures by table column, such as ``STS12`` or ``cisi nDCG@10``."""
        figures: FiguresByTask = {}
        for result in self.results:
            figures |= result.columns
        return figures

    @property
    def dense_model(self) -> list[ModelEvaluation]:
        """The results of a hybrid's dense model; [] for any other model."""
        dense = [result.dense_model for result in self.results if result.dense_model is not None]
        return [ModelEvaluation(dense[0].model, None, dense)] if dense else []

    def add(
        self,
        evaluator: Evaluator,
        figures: Mapping[str, Any],
        metadata: Mapping[str, Any],
        lexical: Mapping[str, Any],
        dense: Mapping[str, Any],
    ) -> None:
        """Add a result, and append it to the file at once.

        Args:
            evaluator: the evaluator that measured the figures.
            figures: the figures of the model.
            metadata: facts about the model and the settings.
            lexical: the figures of the lexical baseline.
            dense: the figures of a hybrid's dense model.
        """
        each = {} if evaluator.scores == () else {"scores": evaluator.scores}
        for name, measured in (("model", figures), ("lexical", lexical), ("dense", dense)):
            values = measured.get(EACH, ())
            if values and np.isfinite(values).all():
                each[name] = [float(f"{value:.6g}") for value in values]
        entry = {**_rounded(figures), **evaluator.details}
        similarity = evaluator.similarity or metadata.get("similarity")
        if similarity is not None and evaluator.has_baseline:
            entry["similarity"] = similarity
        if evaluator.has_baseline:
            entry["lexical_words"] = evaluator.reader.title
        result = Result.of_entry(entry, evaluator.group, evaluator.task, metadata)
        floor, alone = (
            {name: x for name, x in _rounded(beside).items() if name in result.figures}
            for beside in (lexical, dense)
        )
        result = replace(result, lexical=floor, dense=alone, each=each)
        if self.file is not None:
            append(self.file, result)
        self.results.append(result)
        shown = [f"{column} {cell(figure)}" for column, figure in result.columns.items()]
        if "similarity" in entry:
            shown.append(f"by {similarity}")
        PROGRESS.info(f"{self.model}: {', '.join(shown)}")


def evaluate_models(
    settings: EvaluateSettings,
    models: Sequence[SentenceTransformer] = (),
    own_data: Sequence[StsPairs | Collection] = (),
) -> list[ModelEvaluation]:
    """Evaluate models as the settings say.

    Args:
        settings: the models to load, and the data to evaluate them on.
        models: models in memory, called ``model``, or ``model 1`` and so on.
        own_data: scored pairs and a collection in memory.

    Returns:
        The evaluation of each model, in order; a hybrid is followed by its dense model. The
        lexical baseline is last.
    """
    names = [name for name in settings.model if name != LEXICAL]
    loaders = {name: partial(load_model, name, _pooler_of(settings, name)) for name in names}
    evaluations = [
        ModelEvaluation(name, settings.output or result_file(Path(name))) for name in names
    ]
    for number, model in enumerate(models, 1):
        name = f"model {number}" if len(models) > 1 else "model"
        loaders[name] = partial(describe_model, model, name)
        evaluations.append(ModelEvaluation(name, settings.output))
    evaluators = [*_suite(settings), *_own_data(settings, own_data)]
    for file in {settings.output, *(each.file for each in evaluations)}:
        if file is not None:
            open_results(file)

    for evaluator in evaluators:
        evaluator.language = settings.language
    words = [each.reader.title for each in evaluators if each.has_baseline]
    OUTPUT.info(f"{LEXICAL}: {describe_lexical(', '.join(dict.fromkeys(words)))}")
    for each in evaluations:
        encoder, metadata = loaders[each.model]()
        metadata["mode"] = settings.mode
        for evaluator in evaluators:
            figures = evaluator.figures(encoder)
            dense = evaluator.dense_figures(encoder)
            each.add(evaluator, figures, metadata, evaluator.lexical, dense)
    # saved if the user names it as a model
    baseline = ModelEvaluation(LEXICAL, settings.output if LEXICAL in settings.model else None)
    for evaluator in evaluators:
        if evaluator.lexical:
            metadata = {"model": LEXICAL, "mode": settings.mode}
            baseline.add(evaluator, evaluator.lexical, metadata, {}, {})
    return [shown for each in (*evaluations, baseline) for shown in (each, *each.dense_model)]


def _pooler_of(settings: EvaluateSettings, model: str) -> str | None:
    """Return the pooler to evaluate a model with; None for its own pooling."""
    if len(settings.model) > 1 and is_sentence_transformer(model_path(model)):
        return None
    if settings.pooler_type is None:
        check_sentence_transformer(model_path(model))
    return settings.pooler_type


def _own_data(
    settings: EvaluateSettings, in_memory: Sequence[StsPairs | Collection]
) -> list[Evaluator]:
    """Return the evaluators of the user's scored pairs and collections."""
    pairs = [read_scored_pairs(file) for file in settings.pairs or []]
    check_distinct("pairs", [each.name for each in pairs])
    evaluators: list[Evaluator] = []
    for data in [*pairs, *read_collections(settings.retrieval or []), *in_memory]:
        if isinstance(data, Collection):
            PROGRESS.info(data.summary())
            evaluators.append(RetrievalEvaluator(data))
        else:
            evaluators.append(PairsEvaluator(data))
    return evaluators


def _suite(settings: EvaluateSettings) -> list[Evaluator]:
    folder = suite_folder(settings.suite, settings.data_dir)
    tasks = choose(settings.suite, settings.tasks or [])
    variant = variant_of(folder)
    if variant is not None and tasks:
        OUTPUT.info(f"not SentEval's published data but a variant: {variant}")
    evaluators = []
    for kind, several in tasks.items():
        for task in several:
            with files_needed(task.name, "data_dir"):
                evaluator = evaluator_of(task, folder, f"{settings.suite}/{kind}", settings.mode)
            evaluator.details = {**evaluator.details, "data_variant": variant}
            evaluators.append(evaluator)
    return evaluators


def evaluator_of(task: Task, folder: Path, group: str = "", mode: str = "test") -> Evaluator:
    """Read the data of a task and return its evaluator."""
    if isinstance(task, StsTask):
        subsets = task.read(folder)
        return PairsEvaluator(joined([*subsets.values()], task.name), group, subsets)
    return TransferEvaluator(task, task.read(folder), group, mode)


def _rounded(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Round figures, also those of subsets, to two decimals; None if not finite."""
    rounded: dict[str, Any] = {}
    for name, figure in figures.items():
        if isinstance(figure, Mapping):
            rounded[name] = _rounded(figure)
        elif name != EACH:
            rounded[name] = round(figure, 2) if math.isfinite(figure) else None
    return rounded
