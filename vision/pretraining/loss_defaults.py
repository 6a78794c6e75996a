"""Vision's defaults of the loss, in numbers alone: the list of presets needs no package for images."""

from __future__ import annotations

from dystress_text.training.settings import LossDefaults

# the paper's CIFAR row; Kukleva et al.'s swing over hundreds of epochs; and MACL's numbers for images, where those for
# text would make the temperature negative; its base is SimCLR
VISION = LossDefaults("cosine", {"tau_min": 0.07, "tau_max": 0.2}, {"unit": "epoch"},
                      {"tau_0": 0.1, "alpha": 0.5, "a_0": 0.0}, "ntxent")  # fmt: skip
