"""Image sets: where they lie, how they are decoded, split, batched and augmented.

May import dystress_text's core, cli, files, training and preparation; nothing else of vision.
"""

SET_NAMES = (  # as options have them; _lt: a long tail of the training images
    "cifar10",
    "cifar100",
    "tiny_imagenet",
    "imagenet100",
    "imagenet1k",
    "cifar10_lt",
    "cifar100_lt",
    "imagenet100_lt",
)
