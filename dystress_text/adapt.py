"""Adapt a model to your own sentences, and hear whether it helped.

    dystress adapt mine.txt --base sentence-transformers/all-MiniLM-L6-v2 --output_dir out/
    python -m dystress_text.adapt mine.txt --base out --output_dir adapted    # the same program

No labels are needed. A part of the sentences is held out: one half of it chooses the model, the other half judges it
against the base. The verdict is WIN, TIE or WORSE, with an interval and the reasons; without a WIN the model that is
written is the base (``--keep_anyway`` writes the adapted one). It stands in ``verdict.json``, on the page
``report.html`` and in the model's card.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import transformers

from dystress_text.adaptation.run import adapt as run_adaptation
from dystress_text.adaptation.settings import AdaptSettings, Recipe
from dystress_text.adaptation.verdict import Bars
from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.cli.options import default_of
from dystress_text.export.card import describe_base, write_card
from dystress_text.report.page import leave_report
from dystress_text.report.text_page import write_text_report
from dystress_text.simcse.run import model_path
from dystress_text.training.run_folder import write_record

_TYPES = {"int": int, "float": float}


def adapt(settings: AdaptSettings, recipe: Recipe = Recipe(), bars: Bars = Bars()) -> dict[str, Any]:  # noqa: B008
    """Adapt, judge and write; with a card and a page.

    Returns:
        What ``verdict.json`` holds.

    Raises:
        UserError: see :func:`dystress_text.adaptation.run.adapt`.
    """

    def publish(output: Path, record: Mapping[str, Any]) -> str:
        described = {**record, "base_model": describe_base(model_path(settings.base))}
        write_record(output, described)
        write_card(output, described)
        return leave_report(output, write=write_text_report)

    return run_adaptation(settings, publish, recipe, bars)


def make_parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = OneLineParser("dystress adapt", __doc__)
    for entry in fields(AdaptSettings):
        given: dict[str, Any] = {name: value for name, value in entry.metadata.items() if name != "interval"}
        default = default_of(entry)
        if entry.name == "file":
            parser.add_argument("file", metavar="FILE", help=given["help"])
        elif isinstance(default, bool):
            parser.add_argument(f"--{entry.name}", action="store_true", help=given["help"])
        else:
            if default not in (None, "", "no"):
                given["help"] += f" Default {default}."
            kind = _TYPES.get(str(entry.type).split(" ")[0], str)
            parser.add_argument(f"--{entry.name}", type=kind, default=default, required=default == "", **given)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)

    def work() -> bool:
        adapt(AdaptSettings(**vars(make_parser().parse_args(argv))))
        return True

    return exit_code("dystress adapt", work)


if __name__ == "__main__":
    sys.exit(main())
