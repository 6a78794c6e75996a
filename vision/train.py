"""Pre-train a ResNet with a contrastive loss whose temperature depends on the similarity of each
pair.

    accelerate launch vision/train.py --preset cifar10   # the paper's CIFAR-10 run
    # no network, no GPU: shapes drawn at run time
    python vision/train.py --preset quickstart
    # own photos, with or without classes
    accelerate launch vision/train.py --preset imagenet100 --dataset FOLDER
    # SimCLR's constant temperature
    accelerate launch vision/train.py --preset cifar10 --temp 0.2
    # the methods without negatives, for comparison
    accelerate launch vision/train.py --preset imagenet100-byol

The encoder lands in ``out_vision/`` (``--output_dir``); ``python vision/evaluate.py --model
out_vision`` evaluates it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import transformers

from dystress_text.cli.command_line import exit_code
from dystress_text.cli.extras import require
from dystress_text.cli.presets import parse_options
from vision.pretraining.settings import PROGRAM, PretrainSettings


def parse(argv: Sequence[str]) -> PretrainSettings:
    """Return the settings of a command line."""
    return PretrainSettings.of(parse_options(PROGRAM, argv, "train.py", __doc__))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def work() -> bool:
        settings = parse(sys.argv[1:] if argv is None else argv)
        require("vision", "this program")
        from vision.pretraining.run import pretrain

        pretrain(settings)
        return True

    return exit_code("train.py", work)


if __name__ == "__main__":
    sys.exit(main())
