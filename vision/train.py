"""Pre-train a ResNet with a contrastive loss whose temperature depends on the similarity of each pair.

    accelerate launch vision/train.py --preset cifar10            # the paper's CIFAR-10 run
    python vision/train.py --preset quickstart                    # no network, no GPU: shapes drawn at run time
    accelerate launch vision/train.py --preset imagenet100 --dataset FOLDER      # own photos, with or without classes
    accelerate launch vision/train.py --preset cifar10 --temp 0.2 # SimCLR's constant temperature
    accelerate launch vision/train.py --preset imagenet100-byol   # the methods without negatives, for comparison

The encoder lands in ``out_vision/`` (``--output_dir``); ``python vision/evaluate.py --model out_vision`` evaluates it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import transformers

from dystress_text.cli.command_line import exit_code
from dystress_text.core.registry import Temperature
from dystress_text.report.page import leave_report, render_page
from dystress_text.report.runs import read_finished
from dystress_text.training.arguments import parse_settings
from dystress_text.training.trainer import run
from vision.evaluation.table import page_tables
from vision.pretraining.presets import PRESETS
from vision.pretraining.run import build_vision_run
from vision.pretraining.settings import (
    WITHOUT_TEMPERATURE,
    PretrainSettings,
    VisionEngineSettings,
    VisionLossSettings,
    VisionSettings,
)


def parse(argv: Sequence[str]) -> PretrainSettings:
    """Settings from the command line.

    Raises:
        UserError: an unknown name or a value out of range.
    """
    groups = (VisionSettings, VisionLossSettings, VisionEngineSettings)
    (vision, loss, engine), preset = parse_settings(
        argv, groups, PRESETS, "cifar10", "train.py", __doc__, own_temperature=("macl", "siglip", *WITHOUT_TEMPERATURE)
    )
    return PretrainSettings(vision, loss, engine, preset)


def publish(folder: Path, temperature: Temperature | None) -> str:
    """Leave the page of a finished run, and return a line about it."""

    def page() -> str:
        (finished,), _ = read_finished([folder])
        return render_page([(finished, temperature)], page_tables(finished.record))

    return leave_report(folder, page)


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def work() -> bool:
        settings = parse(sys.argv[1:] if argv is None else argv)
        run(settings.engine, lambda accelerator: build_vision_run(settings, accelerator, publish))
        return True

    return exit_code("train.py", work)


if __name__ == "__main__":
    sys.exit(main())
