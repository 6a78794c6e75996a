"""The networks by name, without torch, so that help and errors of options come at once."""

from typing import Any

_BASIC = {"layer_type": "basic", "hidden_sizes": (64, 128, 256, 512)}
ARCHITECTURES: dict[str, dict[str, Any]] = {  # as ResNetConfig takes them
    "resnet10_narrow": {
        "layer_type": "basic",
        "depths": (1, 1, 1, 1),
        "hidden_sizes": (32, 64, 128, 256),
        "embedding_size": 32,
    },
    "resnet18": {**_BASIC, "depths": (2, 2, 2, 2)},
    "resnet34": {**_BASIC, "depths": (3, 4, 6, 3)},
    "resnet50": {
        "layer_type": "bottleneck",
        "depths": (3, 4, 6, 3),
        "hidden_sizes": (256, 512, 1024, 2048),
    },
}
IN_OTHER_LIBRARIES = ("resnet18", "resnet34", "resnet50")  # timm and torchvision
STEMS = ("cifar", "imagenet")
PROJECTORS = ("cifar", "simclr", "expander", "byol")
LARGEST_OUT_DIM = 65_536
