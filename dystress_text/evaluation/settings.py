"""Options of evaluation, while training and in ``dystress evaluate``."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar

from dystress_text.cli.options import check_names, check_options, option
from dystress_text.errors import ParameterError
from dystress_text.evaluation.catalogue import (
    MINI_TRANSFER_TASKS,
    STS_SETS,
    SUITES,
    TRANSFER_TASKS,
    choose,
)
from dystress_text.evaluation.lexical import LEXICAL
from dystress_text.io.paths import model_name
from dystress_text.io.words import LANGUAGES, NO_LANGUAGE

_PAIRS = (
    "your scored pairs: .csv, .tsv, .jsonl or .parquet files with the columns sentence1, "
    "sentence2 and score, or OWNER/NAME[:SPLIT] on the hub"
)
_RETRIEVAL = (
    "search: folders of collections in BEIR's layout (corpus.jsonl, queries.jsonl, qrels.tsv "
    "or qrels/test.tsv), or the file of another split (FOLDER/qrels/dev.tsv)"
)
_OLD_NAME = "words"  # the lexical baseline in 0.2


def _language_option() -> Any:
    return option(
        None,
        "language of stems and stop words in the lexical baseline, such as german; none: words and "
        "their first letters; default: the language with the most stop words in a set",
        choices=(NO_LANGUAGE, *LANGUAGES),
        metavar="NAME",
    )


@dataclass(frozen=True)
class EvaluationSettings:
    """Evaluation while training."""

    title: ClassVar[str] = "evaluation while training"

    eval_set: list[str] = option(
        ["stsb_dev"],
        "Evaluate on these sets: stsb_dev, mini_sts, sickr_dev, or the test sets sts12 to sts16, "
        "stsb_test and sickr_test, which must not select a model; none for no set.",
    )
    pairs: list[str] | None = option(None, _PAIRS, metavar="FILE")
    eval_transfer: list[str] | None = option(
        None,
        "Evaluate on the dev accuracy of these transfer tasks (MR, CR, SUBJ, MPQA, SST2, TREC, "
        "MRPC; all seven if none is named), in SentEval's fast mode.",
    )
    retrieval: list[str] | None = option(None, _RETRIEVAL, metavar="FOLDER")
    language: str | None = _language_option()

    def __post_init__(self) -> None:
        check_options(self)
        # one text in presets and records
        object.__setattr__(self, "eval_set", " ".join(self.eval_set).split())
        check_names("eval_set", self.eval_set, [*STS_SETS, "none"])
        transfer = (task.name for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS)
        check_names("eval_transfer", self.eval_transfer or [], ["all", *transfer])


@dataclass(frozen=True)
class EvaluateSettings:
    """Models, data and output of an evaluation."""

    title: ClassVar[str] = "models, data and output of an evaluation"

    model: list[str] = option(
        MISSING,
        "folder or hub name of a sentence-transformers model or, with --pooler_type, of any "
        "encoder; several make one table; lexical is TF-IDF and BM25; bert-mini-wiki is the "
        "package's small encoder",
    )
    pooler_type: str | None = option(
        None,
        "pooling of a Hugging Face encoder; pooler is its own (pooler_output), for SimCSE's "
        "supervised models; cls is for the unsupervised ones; among several models, those of "
        "sentence-transformers keep their own",
        choices=("cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last", "last", "pooler"),
    )
    tasks: list[str] | None = option(
        None,
        "sts, transfer, all, or names of tasks; default all, none with --pairs or --retrieval",
    )
    pairs: list[str] | None = option(None, _PAIRS, metavar="FILE")
    retrieval: list[str] | None = option(None, _RETRIEVAL, metavar="FOLDER")
    suite: str = option(
        "senteval",
        "senteval, or mini, the small sets that come with the package",
        choices=tuple(SUITES),
    )
    mode: str = option(
        "test", "test: the published figures; fast: fewer folds", choices=("test", "fast")
    )
    language: str | None = _language_option()
    data_dir: str | None = option(
        None, "folder of prepared data; default: that of dystress prepare"
    )
    output: Path | None = option(
        None,
        "file to append results to; default results.jsonl in a run's folder, else none",
        metavar="FILE.jsonl",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.tasks is None:
            object.__setattr__(self, "tasks", [] if self.retrieval or self.pairs else ["all"])
        chosen = choose(self.suite, self.tasks or [])
        object.__setattr__(self, "model", [model_name(model) for model in self.model])
        for model in self.model:
            if model == _OLD_NAME and not Path(model).is_dir():
                raise ParameterError("model", f"{model!r} is now called {LEXICAL!r}")
        applies = "transfer" not in chosen or "sts" in chosen or self.retrieval or self.pairs
        if self.model == [LEXICAL] and not applies:
            reason = "the lexical baseline applies to sts and search, not to transfer tasks"
            raise ParameterError("tasks", reason)
        if self.output is not None and self.output.suffix != ".jsonl":
            raise ParameterError("output", f"{self.output} does not end in .jsonl")
