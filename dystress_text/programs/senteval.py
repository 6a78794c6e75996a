"""Evaluate sentence vectors under SentEval's protocol: 7 STS and 7 transfer tasks.

    dystress senteval --model out/
    dystress senteval --model out/ --suite mini        # small sets that come with the package
    dystress senteval --model bert-base-uncased --pooler_type avg --tasks sts MR TREC --compare
    dystress senteval --model bert-base-uncased out/ --pooler_type cls      # a row for each
    dystress senteval --model out/ --retrieval COLLECTION       # search, in BEIR's layout
    dystress senteval --model out/ --pairs FILE                 # your own scored pairs
    dystress senteval --model princeton-nlp/sup-simcse-bert-base-uncased --pooler_type pooler

``python eval/senteval.py`` is the same in a checkout.

STS figures are Spearman's correlation x 100 over all pairs of a task ("all"), transfer figures
accuracy x 100; the row lexical is TF-IDF and BM25. A named task whose files are missing or damaged
is marked, no average is then given, and the exit code is 1. Results are appended to results.jsonl
in the folder of a run, or to --output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.cli.command_line import program
from dystress_text.cli.options import SettingsParser, check_names, converted
from dystress_text.config.arguments import SIMCSE
from dystress_text.errors import ParameterError
from dystress_text.evaluation.settings import SentEvalSettings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from dystress_text.evaluation.readers import StsPairs
    from dystress_text.evaluation.retrieval import Collection
    from dystress_text.evaluation.run import ModelEvaluation


def make_parser() -> SettingsParser:
    """The program's options."""
    return SettingsParser([SentEvalSettings], "dystress senteval", __doc__, elsewhere=SIMCSE)


def evaluate(
    model: str | Path | Sequence[str | Path] | SentenceTransformer,
    pairs: Any = None,
    retrieval: Any = None,
    **options: Any,
) -> dict[str, dict[str, float | None]]:
    """Evaluate models as ``dystress senteval`` does, and return the figures of each by its name.

    The figures of the lexical baseline are those of ``lexical``. Nothing of a model in memory is
    written unless ``output`` names a file.

    Args:
        model: folder or hub name of a model, or several; or a ``SentenceTransformer``, whose
            figures are those of ``model``. ``lexical`` is the baseline alone.
        pairs: files of scored pairs as on the command line; or pairs themselves, (text, text,
            score) each, or a table of pandas or ``datasets`` with the columns ``sentence1``,
            ``sentence2`` and ``score``.
        retrieval: folders of collections; or a tuple of queries, documents and judgements. Queries
            and documents are mappings from ids to texts, or lists of texts, whose ids are 0, 1 and
            so on. Judgements map the id of a query to a list of ids of relevant documents, or to
            their grades by id.
        options: further ones of the command line, such as ``tasks=["STS12"]``, ``suite="mini"``. A
            value may stand for a list of one.

    Returns:
        For each model its figures by task, set of pairs, or collection and metric: Spearman's
        correlation, accuracy, nDCG@10, MRR@10 and recall@100, all times 100. A task without a
        result has none.

    Raises:
        UserError: an option is unknown or wrong, or data are; no message shows texts.

    Examples:
        >>> pairs = [("It rains.", "It pours.", 5), ("It rains.", "No.", 0)]
        >>> pairs += [("A dog ran.", "A cat sat.", 2)]
        >>> figures = evaluate("bert-mini-wiki", pairs, pooler_type="avg")
        lexical: ...
        <BLANKLINE>
                        pairs
        bert-mini-wiki  ...
        lexical         ...
        bert-mini-wiki: all results; not saved, --output FILE.jsonl saves them
        >>> figures
        {'bert-mini-wiki': {'pairs': ...}, 'lexical': {'pairs': ...}}
    """
    from sentence_transformers import SentenceTransformer

    from dystress_text.evaluation.readers import pairs_from
    from dystress_text.evaluation.retrieval import collection_from

    loaded = model if isinstance(model, SentenceTransformer) else None
    if loaded is not None and "pooler_type" in options:
        raise ParameterError("pooler_type", "a SentenceTransformer has its own pooling")
    own: list[StsPairs | Collection] = []
    if not _are_names(pairs):
        own.append(pairs_from(pairs))
        pairs = None
    if not _are_names(retrieval):
        own.append(collection_from(retrieval))
        retrieval = None
    if own:
        options = {"tasks": [], **options}
    models = [] if loaded is not None else model
    given = {"model": models, "pairs": pairs, "retrieval": retrieval, **options}
    known = {entry.name: entry for entry in fields(SentEvalSettings)}
    check_names("evaluate", given, known)
    for name, value in given.items():
        given[name] = converted(known[name], SentEvalSettings, value)
    every = _evaluated(SentEvalSettings(**given), loaded, own)
    return {each.model: each.figures for each in every}


def _are_names(data: Any) -> bool:
    """Whether data are None, or a file or several, which are read as on the command line."""
    several = data if isinstance(data, list | tuple) and data else [data]
    return all(isinstance(each, str | PathLike | None) for each in several)


def _evaluated(
    settings: SentEvalSettings,
    model: SentenceTransformer | None = None,
    own: Sequence[StsPairs | Collection] = (),
) -> list[ModelEvaluation]:
    """The results of an evaluation, which are on the pages and cards of the models too."""
    # here, so that help and errors of the command line come at once
    from dystress_text.analysis.text_page import leave_text_report
    from dystress_text.config.paper import PUBLISHED
    from dystress_text.evaluation.run import run
    from dystress_text.export.results import renew_results
    from dystress_text.models.loading import quiet
    from dystress_text.training.run_folder import REPORT

    with quiet():
        every = run(settings, PUBLISHED, model, own)
    if settings.output is not None:
        return every
    for folder in [each.file.parent for each in every if each.file is not None]:
        if (folder / REPORT).is_file():  # the page of a run shows results
            print(leave_text_report(folder))
        line = renew_results(folder) if settings.mode == "test" else None
        if line is not None:
            print(line)
    return every


@program("dystress senteval", "interrupted; the result file holds what was finished")
def main(argv: list[str]) -> bool:
    """The program; whether every task has its figure."""
    (settings,) = make_parser().settings(argv)
    every = _evaluated(settings)
    return not any(each.missing for each in every if each.model in settings.model)
