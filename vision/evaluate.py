"""Evaluate a pre-trained image encoder: nearest neighbours, linear probe, geometry, fine-tuning.

    python vision/evaluate.py --model out_vision/                  # on the data set that it was trained on
    python vision/evaluate.py --model out_vision/ --dataset cifar10 --compare      # beside an untrained encoder
    python vision/evaluate.py --model out_vision/ --dataset chaoyang/ --tasks transfer --class_weights chaoyang

Accuracies are x 100, on the test images, by features of the backbone. Images are cut and normalised as in training.
Training images are the bank of the nearest neighbours and train the probe. The cosine kNN weighs neighbours by
exp(s / 0.1), as the paper does; the L2 kNN is that of its long-tailed rows. All figures of one run go into a JSON file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import transformers

from dystress_text.cli.command_line import OneLineParser, exit_code
from vision.evaluation.knn import WEIGHTS
from vision.evaluation.run import TASKS, EvaluationSettings, run


def make_parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = OneLineParser("evaluate.py", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="folder that vision/train.py wrote")
    add("--dataset", help="name of an image set, or a folder of class folders; default: what the model was trained on")
    add("--data_dir", help="where prepared data lie; default: as in training, $DYSTRESS_DATA, or data/prepared")
    add("--tasks", nargs="+", choices=TASKS, default=["knn", "linear", "geometry"],
        help="default: all but transfer, which trains the whole encoder")  # fmt: skip
    add("--compare", nargs="?", const="untrained", metavar="FOLDER",
        help="evaluate another encoder too; without FOLDER, an untrained one of the same kind")  # fmt: skip
    add("--k", type=int, default=200, help="neighbours of the cosine kNN (default 200)")
    add("--knn_temperature", type=float, default=0.1, help="of its weights (default 0.1)")
    add("--l2_k", type=int, nargs="+", default=[1, 10], help="neighbours of the L2 kNN (default 1 10)")
    add("--l2_weights", choices=WEIGHTS, default="distance", help="of its neighbours (default distance)")
    add("--probe_epochs", type=int, default=90, help="of the linear probe (default 90)")
    add("--class_weights", nargs="+", default=[], metavar="W",
        help="of fine-tuning: numbers, one a class, of two the second's alone; or a name such as mura")  # fmt: skip
    add("--transfer_epochs", type=int, default=50, help="of fine-tuning (default 50)")
    add("--transfer_lr", type=float, help="of fine-tuning (default 0.1, with two classes 1.0)")
    add("--image_size", type=int, help="pixels a side of what the encoder sees (default: as in training)")
    add("--limit", type=int, help="images of each split, drawn by --seed (default all)")
    add("--batch_size", type=int, default=256, help="images at a time in evaluation (default 256)")
    add("--skip_corrupt", action="store_true", help="count and skip images that cannot be read")
    add("--seed", type=int, default=0, help="of all that is drawn (default 0)")
    add("--plot", type=Path, metavar="FILE.png", help="draw the similarity histograms of geometry")
    add("--output", type=Path, metavar="FILE.json",
        help="all results; default vision-DATA.json in the model's folder")  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    transformers.utils.logging.set_verbosity_error()

    def work() -> bool:
        run(EvaluationSettings(**vars(make_parser().parse_args(argv))))
        return True

    return exit_code("evaluate.py", work, "interrupted; the result file holds what was finished")


if __name__ == "__main__":
    sys.exit(main())
