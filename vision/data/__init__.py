"""Image sets: finding, decoding, splitting, batching and augmenting them.

It imports nothing else of vision.
"""

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
