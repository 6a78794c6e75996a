"""Pre-train a ResNet with a contrastive loss whose temperature depends on the similarity of each
pair.

    accelerate launch vision/train.py --preset cifar10   # the paper's CIFAR-10 run
    # no network, no GPU: shapes drawn at run time
    python vision/train.py --preset quickstart
    # own photos, with or without classes: ResNet-18 at 96 pixels
    python vision/train.py --dataset FOLDER
    # and ResNet-50 at 224
    accelerate launch vision/train.py --preset imagenet100 --dataset FOLDER
    # SimCLR's constant temperature
    accelerate launch vision/train.py --preset cifar10 --temp 0.2
    # the methods without negatives, for comparison
    accelerate launch vision/train.py --preset imagenet100-byol

The encoder lands in ``out_vision/`` (``--output_dir``). ``python vision/evaluate.py --model
out_vision`` evaluates it, with ``--features FILE.npz`` also where there are no labels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dystress_text.cli.command_line import program
from dystress_text.cli.extras import require
from dystress_text.cli.presets import parse_options
from vision.pretraining.settings import PROGRAM, PretrainSettings


def parse(argv: Sequence[str]) -> PretrainSettings:
    return PretrainSettings.of(parse_options(PROGRAM, argv, "train.py", __doc__))


@program("train.py")
def main(argv: list[str]) -> None:
    settings = parse(argv)
    require("vision", "this program")
    from transformers.utils import logging

    from vision.pretraining.pretrain import pretrain

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    pretrain(settings)


if __name__ == "__main__":
    sys.exit(main())
