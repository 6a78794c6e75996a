"""Image sets: finding, decoding, splitting, batching and augmenting them.

It imports nothing else of vision. What options need is here, without torch.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dystress_text.io.paths import data_root

SHAPES = "shapes"  # drawn at run time
SET_NAMES = (  # as on the command line; _lt marks a long tail of the training images
    "cifar10",
    "cifar100",
    "tiny_imagenet",
    "imagenet100",
    "imagenet1k",
    "cifar10_lt",
    "cifar100_lt",
    "imagenet100_lt",
)
JITTER = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation; hue as a part of the circle
STRONGEST_JITTER = 1 / max(JITTER[:3])  # beyond it, factors would be negative
# further arguments of SimclrAugment; SimCLR's
AT_IMAGENET_SCALE: dict[str, Any] = {"jitter": 2.0, "blur": True}


def is_known(dataset: str) -> bool:
    """Return whether ``dataset`` is the name of a published set, with ``-`` or ``_``, or shapes."""
    return dataset.replace("-", "_") in {*SET_NAMES, SHAPES}


def absolute_paths(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths among ``dataset``, ``data_dir`` and ``train_list``, made absolute.

    A relative ``$DYSTRESS_DATA`` becomes ``data_dir`` where it is needed to find the set.
    """
    paths = {name: options[name] for name in ("data_dir", "train_list") if options[name]}
    dataset = options["dataset"]
    root = data_root(options["data_dir"])
    if not is_known(dataset) and Path(dataset).is_dir():
        paths["dataset"] = dataset
    elif dataset != SHAPES and not root.is_absolute():
        paths["data_dir"] = root
    return {name: os.path.abspath(path) for name, path in paths.items()}
