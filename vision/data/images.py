"""An image set, with or without labels: small images decoded in memory, or files to be decoded."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.errors import DataError, ParameterError
from dystress_text.training.batches import prefetch
from vision.data.crops import RandomCrop, draw_box
from vision.data.decoding import decode, resized
from vision.data.image_files import ImageFiles

MeanStd = tuple[tuple[float, ...], tuple[float, ...]]  # by channel, of values from 0 to 1
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KNOWN_MEAN_STD: dict[str, MeanStd] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "tiny-imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
    "imagenet100": _IMAGENET,
    "imagenet1k": _IMAGENET,
}
_SAMPLE = 1000
_DECODERS = ThreadPoolExecutor(thread_name_prefix="decode")  # its threads start when it is used
T = TypeVar("T")


class NoAccuracyError(ParameterError):
    """No accuracy can be measured: a test split, labels or a second class are missing."""


@dataclass(frozen=True, eq=False, kw_only=True)
class _Split(ABC):
    """What both kinds of image sets have."""

    name: str
    labels: Tensor | None = None  # (n,) int64
    classes: tuple[str, ...] = ()  # their names, by label
    variant: str | None = None  # how it differs from the published set; shown with each figure
    size: int = 0  # side of the images as evaluation sees them, before its own crop
    corrupt: int = 0  # how many damaged images were left out or replaced
    files_id: str = ""  # a hash of the files' names and labels, before damaged ones were replaced

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _content(self, rows: Tensor) -> dict[str, Any]:
        """Return the field that holds the images, with those at ``rows`` alone."""

    @abstractmethod
    def batch(self, rows: NDArray[np.int64]) -> Tensor:
        """The images at ``rows`` in that order, uint8 (b, 3, size, size) on the CPU."""

    def subset(self, indices: Sequence[int] | Tensor) -> Self:
        """Return the images at ``indices``, in that order."""
        rows = torch.as_tensor(indices, dtype=torch.long)
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, **self._content(rows), labels=labels)

    @property
    def targets(self) -> Tensor:
        """The labels (n,) of a set that must have some."""
        if self.labels is None:
            reason = f"the images of {self.name} have no labels (class folders)"
            raise NoAccuracyError("dataset", reason)
        return self.labels

    @property
    def title(self) -> str:
        """The name, followed by the variant in brackets."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def with_variant(self, words: str) -> Self:
        """The set with words that are added to its variant."""
        return replace(self, variant=f"{self.variant}, {words}" if self.variant else words)

    def sample(self, count: int | None, seed: int) -> Self:
        """``count`` images drawn with the seed; all if it is None or not below their number."""
        if count is None or count >= len(self):
            return self
        generator = torch.Generator().manual_seed(seed)
        return self.subset(torch.randperm(len(self), generator=generator)[:count])

    def batches(self, batch_size: int, device: torch.device) -> Iterator[Tensor]:
        """All images in order, (b, 3, size, size) on the device; the last batch may have fewer."""
        rows = np.split(np.arange(len(self)), range(batch_size, len(self), batch_size))
        loaded = prefetch(lambda rows: {"images": self.batch(rows)}, rows, device)
        return (batch["images"] for batch in loaded)


@dataclass(frozen=True, eq=False, kw_only=True)
class DecodedImages(_Split):
    """Small images in memory."""

    pixels: Tensor  # (n, 3, size, size) uint8, on the CPU

    def __len__(self) -> int:
        return len(self.pixels)

    def _content(self, rows: Tensor) -> dict[str, Any]:
        return {"pixels": self.pixels[rows]}

    def image(self, row: int) -> Tensor:
        """One image, uint8 (3, size, size)."""
        return self.pixels[row]

    def batch(self, rows: NDArray[np.int64]) -> Tensor:
        return self.pixels[torch.from_numpy(rows)]

    def checksum(self) -> str:
        """A hash of pixels and labels."""
        return _digest([self.pixels.numpy().data], self.labels)


@dataclass(frozen=True, eq=False, kw_only=True)
class EncodedImages(_Split):
    """Images that threads decode batch by batch; evaluation sees their middle squares."""

    files: ImageFiles

    def __len__(self) -> int:
        return len(self.files)

    def _content(self, rows: Tensor) -> dict[str, Any]:
        return {"files": self.files.subset(rows.tolist())}

    def image(self, row: int) -> Tensor:
        """The middle square, uint8 (3, size, size), after the shorter side was resized."""
        return resized(self.read(row, decode), self.size)

    def batch(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.stack(list(_DECODERS.map(self.image, rows.tolist())))

    def checksum(self) -> str:
        """A hash of the files' names, or lengths, and of labels."""
        return _digest(self.files.fingerprint(), self.labels)

    def read(self, row: int, reader: Callable[[bytes | Path, str], T]) -> T:
        """What ``reader`` finds in a file, from its content or path and its name."""
        try:
            return reader(*self.files[row])
        except DataError as error:
            raise DataError(f"{error}; skip_corrupt leaves such images out") from error

    def crops(
        self, rows: NDArray[np.int64], kinds: Sequence[tuple[RandomCrop, int]], key: tuple[int, ...]
    ) -> list[Tensor]:
        """Random crops of the whole images at ``rows``: for each kind, uint8 (b, count, 3, size,
        size) on the CPU.

        ``key`` seeds the draws, together with the row: the same key gives the same crops, in any
        batch and process.
        """

        def crops_of(row: int) -> list[Tensor]:
            random = np.random.default_rng([*key, row])
            image = self.read(row, decode)
            found = []
            for crop, count in kinds:
                boxes = [draw_box(image.height, image.width, crop, random) for _ in range(count)]
                found.append(torch.stack([resized(image, crop.size, box) for box in boxes]))
            return found

        by_image = _DECODERS.map(crops_of, rows.tolist())
        return [torch.stack(of_kind) for of_kind in zip(*by_image, strict=True)]


ImageSet = DecodedImages | EncodedImages


def _digest(parts: Iterable[bytes | memoryview], labels: Tensor | None) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    if labels is not None:
        digest.update(labels.numpy().data)
    return digest.hexdigest()[:16]


def mean_std(images: ImageSet) -> MeanStd:
    """Mean and standard deviation of a training split's pixels, by channel, of values from 0 to 1.

    CIFAR, Tiny-ImageNet and ImageNet have :data:`KNOWN_MEAN_STD`; a long-tailed set has the numbers
    of the full set. For other sets they are computed, from at most 1,000 evenly spaced images if
    these are decoded one by one.
    """
    known = images.name.replace("_", "-").removesuffix("-lt")
    if known in KNOWN_MEAN_STD:
        return KNOWN_MEAN_STD[known]
    chunks: Iterable[Tensor]
    if isinstance(images, DecodedImages):
        chunks = torch.split(images.pixels, _SAMPLE)
    else:
        step = math.ceil(len(images) / _SAMPLE)
        chunks = (images.image(row)[None] for row in range(0, len(images), step))
    moments = torch.zeros(2, 3, dtype=torch.float64)  # sums of values and of their squares
    count = 0
    for chunk in chunks:
        values = chunk.float() / 255  # (n, 3, h, w)
        both = torch.stack((values, values.square()))
        moments += both.sum((1, 3, 4), dtype=torch.float64)
        count += values.numel() // 3
    mean, squares = moments / count
    # a channel of one value would otherwise divide by 0
    std = (squares - mean.square()).clamp_min(1 / 255**2).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())
