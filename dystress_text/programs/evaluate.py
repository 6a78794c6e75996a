"""Evaluate sentence vectors under SentEval's protocol: 7 STS and 7 transfer tasks.

    dystress evaluate --model out/
    dystress evaluate --model out/ --suite mini                 # small sets of the package
    dystress evaluate --model bert-base-uncased --pooler_type avg --tasks sts MR TREC
    dystress evaluate --model bert-base-uncased out/ --pooler_type cls     # one row each
    dystress evaluate --model out/ --retrieval COLLECTION       # search, in BEIR's layout
    dystress evaluate --model out/ --pairs FILE                 # your own scored pairs
    dystress evaluate --model princeton-nlp/sup-simcse-bert-base-uncased --pooler_type pooler

``dystress senteval`` and, in a checkout, ``python eval/senteval.py`` are the same.

STS figures are Spearman's correlation x 100 over all pairs of a task (SentEval's "all"), transfer
figures are accuracy x 100. The last row is the lexical baseline, TF-IDF and BM25 over stems. The 95
% intervals are over pairs or queries; the differences, to the first model and to TF-IDF or BM25,
are paired. Results are appended to results.jsonl in the folder of a run, or to --output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.cli.command_line import any_character_printable, program
from dystress_text.cli.options import SettingsParser, check_names
from dystress_text.cli.progress import OUTPUT
from dystress_text.errors import ParameterError
from dystress_text.evaluation.settings import EvaluateSettings
from dystress_text.finetuning.arguments import SIMCSE

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from dystress_text.evaluation.evaluate_models import ModelEvaluation
    from dystress_text.evaluation.retrieval import Collection
    from dystress_text.evaluation.text_sets import StsPairs


def make_parser() -> SettingsParser:
    """Return the parser of the program."""
    return SettingsParser([EvaluateSettings], "dystress evaluate", __doc__, epilog=SIMCSE)


@any_character_printable()
def evaluate(
    model: str | Path | SentenceTransformer | Sequence[str | Path | SentenceTransformer],
    pairs: Any = None,
    retrieval: Any = None,
    **options: Any,
) -> dict[str, dict[str, float | None]]:
    """Evaluate models as ``dystress evaluate`` does, and return the figures of each by its name.

    Differences between models are printed with paired 95 % intervals.

    Results of a model in memory are written only if ``output`` names a file.

    Args:
        model: folders or hub names of models, ``lexical`` for the lexical baseline; or a
            ``SentenceTransformer``, which is called ``model``; or several of both, of which those
            in memory come last and are called ``model 1``, ``model 2``.
        pairs: files of scored pairs; or pairs in memory, (text, text, score) each; or a table of
            pandas or ``datasets`` with the columns ``sentence1``, ``sentence2`` and ``score``.
        retrieval: folders of collections; or a tuple of queries, documents and judgements. Queries
            and documents are texts by id, or lists of texts, whose ids are 0, 1 and so on.
            Judgements map the id of a query to ids of relevant documents, or to scores by id.
        options: options of the command line, such as ``tasks=["STS12"]`` or ``suite="mini"``.

    Returns:
        For each model, and for ``lexical``, the figures by task, set of pairs, or collection and
        metric: Spearman's correlation, accuracy, nDCG@10, MRR@10 and recall@100, all times 100.

    Raises:
        UserError: an option or the data are invalid. Messages do not quote texts.

    Example:
        >>> figures = evaluate("bert-mini-wiki", pooler_type="avg", suite="mini", tasks="sts")
        lexical: ...
        <BLANKLINE>
                                          MiniSTS    avg
        bert-mini-wiki                      37.98  37.98
        TF-IDF/BM25 over English stems      37.61  37.61
        95 % intervals, avg:
        bert-mini-wiki: 38.0 (29.4 to 46.1; 526 pairs)
        TF-IDF/BM25 over English stems: 37.6 (28.6 to 46.3; 526 pairs)
        bert-mini-wiki - TF-IDF/BM25 over English stems: +0.4 (-4.5 to 5.3; 526 pairs, paired)
        >>> figures
        {'bert-mini-wiki': {'MiniSTS': 37.98}, 'lexical': {'MiniSTS': 37.61}}
    """
    from sentence_transformers import SentenceTransformer

    from dystress_text.evaluation.retrieval import collection_from
    from dystress_text.evaluation.text_sets import pairs_from

    several = model if isinstance(model, list | tuple) else [model]
    loaded = [each for each in several if isinstance(each, SentenceTransformer)]
    if loaded and "pooler_type" in options:
        raise ParameterError("pooler_type", "a SentenceTransformer has its own pooling")
    own_data: list[StsPairs | Collection] = []
    if not _are_names(pairs):
        own_data.append(pairs_from(pairs))
        pairs = None
    if not _are_names(retrieval):
        own_data.append(collection_from(retrieval))
        retrieval = None
    if own_data:
        options = {"tasks": [], **options}
    names = [each for each in several if not isinstance(each, SentenceTransformer)]
    given = {"model": names, "pairs": pairs, "retrieval": retrieval, **options}
    check_names("evaluate", given, [entry.name for entry in fields(EvaluateSettings)])
    evaluations = _evaluate(EvaluateSettings(**given), loaded, own_data)
    return {each.model: each.figures for each in evaluations}


def _are_names(data: Any) -> bool:
    """Return whether data are names of files, or None."""
    several = data if isinstance(data, list | tuple) and data else [data]
    return all(isinstance(each, str | PathLike | None) for each in several)


def _evaluate(
    settings: EvaluateSettings,
    models: Sequence[SentenceTransformer] = (),
    own_data: Sequence[StsPairs | Collection] = (),
) -> list[ModelEvaluation]:
    """Evaluate models, and update their pages and cards."""
    # imported here, so that the command line's help and errors are fast
    from dystress_text.analysis.compared_models import evaluated_models
    from dystress_text.analysis.finished_run import leave_report
    from dystress_text.analysis.tables import render_evaluation
    from dystress_text.evaluation.evaluate_models import evaluate_models
    from dystress_text.export.results import renew_results
    from dystress_text.models.loading import quiet
    from dystress_text.training.run_folder import REPORT

    with quiet():
        evaluations = evaluate_models(settings, models, own_data)
    results = {each.model: each.results for each in evaluations}
    OUTPUT.info(render_evaluation(evaluated_models(results)))
    for each in evaluations:
        if each.file is not None:
            OUTPUT.info(f"{each.model}: results in {each.file}")
    if settings.output is not None:
        return evaluations
    for folder in [each.file.parent for each in evaluations if each.file is not None]:
        if (folder / REPORT).is_file():  # the page of a run shows results
            OUTPUT.info(leave_report(folder, partial(_page, folder)))
        line = renew_results(folder) if settings.mode == "test" else None
        if line is not None:
            OUTPUT.info(line)
    return evaluations


def _page(folder: Path) -> str:
    """Make the page of the run in a folder."""
    from dystress_text.analysis.compared_models import read_compared_models
    from dystress_text.analysis.tables import text_page

    return text_page(read_compared_models([folder]))


@program("dystress evaluate", "interrupted; finished results are saved")
def main(argv: list[str]) -> None:
    (settings,) = make_parser().settings(argv)
    _evaluate(settings)
