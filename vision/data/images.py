"""An image set, with or without labels: small images in memory as one tensor, or pictures to be
decoded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.errors import DataError
from dystress_text.training.batches import load_ahead
from vision.data.crops import RandomCrop, draw_box
from vision.data.decoding import decode, resized
from vision.data.pictures import Pictures

KNOWN_MEAN_STD: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "tiny-imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
    "imagenet100": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "imagenet1k": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
_SAMPLE = 1000
_DECODERS = ThreadPoolExecutor(
    thread_name_prefix="decode"
)  # its threads start with the first picture
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one split. Either ``images`` (decoded) or ``pictures`` is given."""

    images: Tensor | None  # (n, 3, size, size) uint8, on the CPU
    pictures: Pictures | None  # n encoded ones, which are decoded batch by batch
    labels: Tensor | None  # (n,) int64
    classes: tuple[str, ...]  # their names, by label
    name: str
    variant: (
        str | None
    )  # how the images differ from the published set, such as "JPEG copy"; stands beside any number
    size: int = (
        0  # side of the images; of pictures, that of the middle squares which evaluation sees
    )
    corrupt: int = 0  # how many damaged images were left out or replaced
    listed: Pictures | None = (
        None  # before damaged ones were replaced or all were decoded; they tell the set
    )

    def __len__(self) -> int:
        return len(self.encoded) if self.images is None else len(self.images)

    @property
    def encoded(self) -> Pictures:
        """The pictures of a set that is not decoded."""
        assert self.pictures is not None
        return self.pictures

    def subset(self, indices: Sequence[int] | Tensor) -> ImageSet:
        """The images at ``indices``, in that order."""
        rows = torch.as_tensor(indices, dtype=torch.long)
        return replace(
            self,
            images=None if self.images is None else self.images[rows],
            pictures=None if self.pictures is None else self.pictures.subset(rows.tolist()),
            listed=None if self.listed is None else self.listed.subset(rows.tolist()),
            labels=None if self.labels is None else self.labels[rows],
        )

    def sample(self, count: int | None, seed: int) -> ImageSet:
        """``count`` images drawn with the seed; the whole set if ``count`` is None or not below its
        size.
        """
        if count is None or count >= len(self):
            return self
        return self.subset(
            torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:count]
        )

    @property
    def title(self) -> str:
        """The name, followed by the variant in brackets."""
        return self.name + (f" ({self.variant})" if self.variant else "")

    def with_variant(self, words: str) -> ImageSet:
        """The set with words that are added to its variant."""
        return replace(self, variant=f"{self.variant}, {words}" if self.variant else words)

    def checksum(self, pixels: bool = True) -> str:
        """A hash of labels and pixels; for pictures, or without ``pixels``, of their names in place
        of pixels.
        """
        digest = hashlib.sha256()
        listed = self.listed or self.pictures
        if self.images is not None and pixels:
            digest.update(self.images.numpy().data)
        elif listed is not None:
            for part in listed.fingerprint():
                digest.update(part)
        if self.labels is not None:
            digest.update(self.labels.numpy().data)
        return digest.hexdigest()[:16]

    def image(self, row: int) -> Tensor:
        """One image, uint8 (3, size, size): of a picture the middle square, after its shorter side
        was resized.
        """
        if self.images is not None:
            return self.images[row]
        return resized(self.read(row, decode), self.size)

    def read(self, row: int, reader: Callable[[bytes | Path, str], T]) -> T:
        """What ``reader`` finds in a picture, from its content or path and its name."""
        try:
            return reader(*self.encoded[row])
        except DataError as error:
            raise DataError(f"{error}; skip_corrupt leaves such images out") from error

    def batch(self, rows: NDArray[np.int64]) -> Tensor:
        """The images at ``rows`` in that order, uint8 (b, 3, size, size) on the CPU; threads decode
        pictures.
        """
        if self.images is not None:
            return self.images[torch.from_numpy(rows)]
        return torch.stack(list(_DECODERS.map(self.image, rows.tolist())))

    def crops(
        self, rows: NDArray[np.int64], kinds: Sequence[tuple[RandomCrop, int]], key: tuple[int, ...]
    ) -> list[Tensor]:
        """Random crops of the whole pictures at ``rows``: for each kind, uint8 (b, count, 3, size,
        size) on the CPU.

        ``key`` seeds the draws, together with the row: the same key gives the same crops, in any
        batch and process.
        """

        def crops_of(row: int) -> list[Tensor]:
            random = np.random.default_rng([*key, row])
            image = self.read(row, decode)
            return [
                torch.stack(
                    [
                        resized(image, crop.size, draw_box(image.height, image.width, crop, random))
                        for _ in range(count)
                    ]
                )
                for crop, count in kinds
            ]

        return [
            torch.stack(of_kind)
            for of_kind in zip(*_DECODERS.map(crops_of, rows.tolist()), strict=True)
        ]

    def batches(self, batch_size: int, device: torch.device) -> Iterator[Tensor]:
        """All images in order, (b, 3, size, size) on the device; the last batch may have fewer."""
        rows = np.split(np.arange(len(self)), range(batch_size, len(self), batch_size))
        return (
            batch["images"]
            for batch in load_ahead(lambda rows: {"images": self.batch(rows)}, rows, device)
        )


def mean_std(images: ImageSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of a training split's pixels, by channel, of values from 0 to 1.

    CIFAR, Tiny-ImageNet and ImageNet have :data:`KNOWN_MEAN_STD`; a long-tailed set has the numbers
    of the full set. For other sets they are computed, from at most 1,000 evenly spaced images if
    these are decoded one by one.
    """
    known = images.name.replace("_", "-").removesuffix("-lt")
    if known in KNOWN_MEAN_STD:
        return KNOWN_MEAN_STD[known]
    total, squares, count = (
        torch.zeros(3, dtype=torch.float64),
        torch.zeros(3, dtype=torch.float64),
        0,
    )
    rows = range(0, len(images), math.ceil(len(images) / _SAMPLE))
    chunks = (
        torch.split(images.images, _SAMPLE)
        if images.images is not None
        else (images.image(k)[None] for k in rows)
    )
    for chunk in chunks:
        values = chunk.float() / 255  # (n, 3, h, w)
        total += values.sum((0, 2, 3), dtype=torch.float64)
        squares += values.square().sum((0, 2, 3), dtype=torch.float64)
        count += values.numel() // 3
    mean = total / count
    # a channel of one value would otherwise divide by 0
    std = (squares / count - mean.square()).clamp_min(1 / 255**2).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())
