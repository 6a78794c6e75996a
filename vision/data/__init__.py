"""Image sets: finding, decoding, splitting, batching and augmenting them.

It imports nothing else of vision. What options need is here, without torch.
"""

from typing import Any

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
