"""The options of evaluation while training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dystress_text.cli.options import check_names, check_options, option
from dystress_text.errors import ParameterError
from dystress_text.evaluation.catalogue import MINI_TRANSFER_TASKS, STS_SETS, TRANSFER_TASKS


@dataclass(frozen=True)
class EvaluationSettings:
    """Sets, files and tasks to evaluate on."""

    _argument_group_name = "evaluation"

    eval_set: list[str] = option(
        ["stsb_dev"],
        "Evaluate on these: stsb_dev, mini_sts, sickr_dev, or the test sets sts12 to sts16, stsb_test and "
        "sickr_test, which must not choose a model; none for no set.",
    )
    eval_file: list[str] | None = option(
        None,
        "Evaluate on scored pairs of your own too: .csv, .tsv, .jsonl or .parquet files with the columns "
        "sentence1, sentence2 and score (or any three, in that order), or OWNER/NAME[:SPLIT] on the hub.",
    )
    eval_columns: list[str] | None = option(
        None, "eval_file: names of the columns of first sentence, second sentence and score.", needs="eval_file"
    )
    eval_score_range: list[float] | None = option(
        None, "eval_file: lowest and highest score; one outside is refused; default any.", needs="eval_file"
    )
    eval_transfer: list[str] | None = option(
        None,
        "Evaluate on the dev accuracy of these transfer tasks too (MR, CR, SUBJ, MPQA, SST2, TREC, MRPC; "
        "all seven if none is named), SentEval's fast mode.",
    )

    def __post_init__(self) -> None:
        given: Any = self.eval_set  # a preset's or a record's is one text
        object.__setattr__(self, "eval_set", " ".join([given] if isinstance(given, str) else given).split())
        check_options(self)
        check_names("eval_set", self.eval_set, [*STS_SETS, "none"])
        transfer = (task.name for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS)
        check_names("eval_transfer", self.eval_transfer or [], ["all", *transfer])
        limits = self.eval_score_range
        if limits is not None and not (len(limits) == 2 and -math.inf < limits[0] < limits[1] < math.inf):
            found = " ".join(f"{limit:g}" for limit in limits)
            raise ParameterError("eval_score_range", f"two numbers, the lowest and the highest score; got {found}")
