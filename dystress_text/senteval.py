"""Evaluate sentence vectors under SentEval's protocol: 7 STS and 7 transfer tasks.

    python eval/senteval.py --model out/
    python eval/senteval.py --model out/ --suite mini                      # small sets that come with the checkout
    python eval/senteval.py --model bert-base-uncased --pooler_type avg --tasks sts MR TREC --compare
    python eval/senteval.py --model princeton-nlp/sup-simcse-bert-base-uncased --pooler_type pooler

STS figures are Spearman's correlation x 100 over all pairs of a task ("all"), transfer figures accuracy x 100. A task
whose files are missing or damaged is marked, no average is then given, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import transformers

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.cli.text_table import FORMATS
from dystress_text.errors import UserError
from dystress_text.evaluation.embedder import DTYPES, EVALUATED
from dystress_text.evaluation.run import EvalSettings, run
from dystress_text.evaluation.senteval_tasks import SUITES
from dystress_text.report.page import leave_report
from dystress_text.report.text_page import write_text_report
from dystress_text.simcse.objective import temperature_of
from dystress_text.simcse.paper import PUBLISHED
from dystress_text.training.run_folder import REPORT

# options of SimCSE's evaluation.py
SIMCSE_OPTIONS = {
    "--model_name_or_path": "--model",
    "--pooler": "--pooler_type, and its cls is pooler",
    "--task_set": "--tasks sts, transfer or all",
    "--mode=fasttest": "--mode fast",
    "--mode=dev": "train.py --eval_set stsb_dev sickr_dev --eval_transfer",
}


def make_parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = OneLineParser("senteval.py", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="sentence-transformers folder; with --pooler_type a Hugging Face folder or name")
    add("--pooler_type", choices=EVALUATED,
        help="of a Hugging Face encoder; pooler is its own (pooler_output), for SimCSE's supervised models; cls is for "
        "the unsupervised ones")  # fmt: skip
    add("--tasks", nargs="+", default=["all"], help="sts, transfer, all, or names of tasks (default all)")
    add("--suite", choices=SUITES, default="senteval", help="senteval, or mini: small sets of the checkout")
    add("--mode", choices=("test", "fast"), default="test", help="test: the published figures; fast: fewer folds")
    add("--data_dir", help="where prepared data lie; default $DYSTRESS_DATA, else data/prepared")
    add("--dtype", choices=DTYPES, default="fp32", help="of the encoder's forward pass (default fp32)")
    add("--batch_size", type=int, default=64, help="sentences at a time (default 64)")
    add("--engine", choices=("batched", "literal", "original"), default="batched",
        help="transfer classifiers: all fits at once; one by one; or everything by the senteval package")  # fmt: skip
    add("--cache", action="store_true", help="keep vectors on disk, by model content and sentence")
    add("--format", choices=FORMATS, default="text", help="of the tables (default text)")
    add("--compare", action="store_true", help="add the rows of the published tables (BERT-base)")
    add("--geometry", choices=("dev", "test", "none"), default="dev",
        help="STS-B split for alignment and uniformity (default dev)")  # fmt: skip
    add("--plot", type=Path, metavar="FILE.png", help="draw similarity histograms and the temperature")
    add("--pairs", type=Path, metavar="FILE.npz", help="keep the cosine of every STS pair, for tests over pairs")
    add("--output", type=Path, metavar="FILE.json",
        help="all results; default senteval-SUITE-MODE.json in the model's folder, else here")  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def work() -> bool:
        words = sys.argv[1:] if argv is None else list(argv)
        pairs = ["=".join(pair) for pair in itertools.pairwise(words)]
        for option in (*(word.split("=")[0] for word in words), *words, *pairs):
            if option in SIMCSE_OPTIONS:
                raise UserError(f"{option}: here it is {SIMCSE_OPTIONS[option]} (docs/from-simcse.md)")
        settings = EvalSettings(**vars(make_parser().parse_args(words)))
        results = run(settings, PUBLISHED, None if settings.plot is None else temperature_of(settings.model))
        if (Path(settings.model) / REPORT).is_file():  # a run's, which shows results
            print(leave_report(Path(settings.model), write=write_text_report))
        return not results.missing

    return exit_code("senteval.py", work, "interrupted; the result file holds what was finished")


if __name__ == "__main__":
    sys.exit(main())
