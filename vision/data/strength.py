"""How strong SimCLR's augmentation is, in numbers alone: the list of presets needs no package that augments."""

from __future__ import annotations

from typing import Any

AT_IMAGENET_SCALE: dict[str, Any] = {"jitter": 2.0, "blur": True}  # of SimclrAugment; SimCLR's
