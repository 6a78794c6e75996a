"""Evaluate a pre-trained image encoder: nearest neighbours, linear probe, geometry, fine-tuning.

    # on the data set that it was trained on
    python vision/evaluate.py --model out_vision/
    # next to an untrained encoder
    python vision/evaluate.py --model out_vision/ --dataset cifar10 --compare
    python vision/evaluate.py --model out_vision/ --dataset sorted/ --tasks transfer \\
        --class_weights mhist
    # features with file names, also of images without labels
    python vision/evaluate.py --model out_vision/ --dataset photos/ --features features.npz

Accuracies are x 100, on the test images, with features of the backbone. Images are cut and
normalised as in training. Training images are the bank of the nearest neighbours and train the
probe. The kNN weighs neighbours by exp(s / 0.1), as in the paper. All figures are
appended to a file of JSON lines.
"""

from __future__ import annotations

import sys

from dystress_text.cli.command_line import program
from dystress_text.cli.extras import require
from dystress_text.cli.options import SettingsParser
from vision.evaluation.settings import ImageEvaluationSettings


def make_parser() -> SettingsParser:
    return SettingsParser([ImageEvaluationSettings], "evaluate.py", __doc__)


@program("evaluate.py", "interrupted; the result file holds what was finished")
def main(argv: list[str]) -> None:
    (settings,) = make_parser().settings(argv)
    require("vision", "this program")
    from transformers.utils import logging

    from vision.data.decoding import pixel_limit
    from vision.evaluation.evaluate_encoders import evaluate_encoders

    logging.set_verbosity_error()
    with pixel_limit(settings.max_pixels):
        evaluate_encoders(settings)


if __name__ == "__main__":
    sys.exit(main())
