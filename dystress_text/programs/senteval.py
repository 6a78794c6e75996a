"""Evaluate sentence vectors under SentEval's protocol: 7 STS and 7 transfer tasks.

    dystress senteval --model out/
    dystress senteval --model out/ --suite mini        # small sets that come with the package
    dystress senteval --model bert-base-uncased --pooler_type avg --tasks sts MR TREC --compare
    dystress senteval --model bert-base-uncased out/ --pooler_type cls      # a row for each
    dystress senteval --model out/ --retrieval COLLECTION       # search, in BEIR's layout
    dystress senteval --model out/ words --pairs FILE           # your own scored pairs
    dystress senteval --model princeton-nlp/sup-simcse-bert-base-uncased --pooler_type pooler

``python eval/senteval.py`` is the same in a checkout.

STS figures are Spearman's correlation x 100 over all pairs of a task ("all"), transfer figures
accuracy x 100. A task whose files are missing or damaged is marked, no average is then given, and
the exit code is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.cli.command_line import program
from dystress_text.cli.options import SettingsParser, check_names, converted
from dystress_text.evaluation.settings import SentEvalSettings
from dystress_text.simcse.arguments import SIMCSE

if TYPE_CHECKING:
    from dystress_text.evaluation.run import Evaluation


def make_parser() -> SettingsParser:
    """The program's options."""
    return SettingsParser([SentEvalSettings], "dystress senteval", __doc__, elsewhere=SIMCSE)


def evaluate(
    model: str | Path | Sequence[str | Path], **options: Any
) -> dict[str, dict[str, float | None]]:
    """Evaluate models as ``dystress senteval`` does, and return the figures of each by its name.

    Args:
        model: folder or hub name of a model, or several; ``words`` is the baseline without one.
        options: those of the command line, such as ``pairs=["mine.csv"]``,
            ``retrieval=["COLLECTION"]``, ``tasks=["STS12"]``, ``suite="mini"``. A value may stand
            for a list of one.

    Returns:
        For each model its figures by task, set of pairs, or collection and metric: Spearman's
        correlation, accuracy, nDCG@10, MRR@10 and recall@100, all times 100. A task without a
        result has none.

    Raises:
        UserError: an option is unknown or wrong, or data are.

    Examples:
        >>> rows = ["sentence1,sentence2,score", "It rains.,It pours.,5", "It rains.,No.,0"]
        >>> rows += ["A dog ran.,A cat sat.,2"]
        >>> _ = Path("pairs.csv").write_text("\\n".join(rows))
        >>> figures = evaluate("bert-mini-wiki", pooler_type="avg", pairs="pairs.csv")
        <BLANKLINE>
        results.jsonl: all results
        <BLANKLINE>
                          pairs
        bert-mini-wiki      ...
        >>> figures
        {'bert-mini-wiki': {'pairs': ...}}
    """
    given = {"model": model, **options}
    known = {entry.name: entry for entry in fields(SentEvalSettings)}
    check_names("evaluate", given, known)
    for name, value in given.items():
        given[name] = converted(known[name], SentEvalSettings, value)
    settings = SentEvalSettings(**given)
    return {each.model: each.figures for each in _evaluated(settings)}


def _evaluated(settings: SentEvalSettings) -> list[Evaluation]:
    """The results of an evaluation, which are on the pages and cards of the models too."""
    # here, so that help and errors of the command line come at once
    from dystress_text.evaluation.run import run
    from dystress_text.export.results import renew_results
    from dystress_text.models.loading import quiet
    from dystress_text.report.text_page import leave_text_report
    from dystress_text.simcse.paper import PUBLISHED
    from dystress_text.training.run_folder import REPORT

    with quiet():
        every = run(settings, PUBLISHED)
    for model in map(Path, settings.model):
        if (model / REPORT).is_file():  # the page of a run shows results
            print(leave_text_report(model))
        own = settings.mode == "test" and settings.output is None and model.is_dir()
        line = renew_results(model) if own else None
        if line is not None:
            print(line)
    return every


@program("dystress senteval", "interrupted; the result file holds what was finished")
def main(words: list[str]) -> bool:
    """The program; whether every task has its figure."""
    (settings,) = make_parser().settings(words)
    return not any(each.missing for each in _evaluated(settings))
