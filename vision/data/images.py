"""Image sets: small images decoded in memory, or files that are decoded batch by batch."""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dystress_text.errors import DataError, ParameterError
from dystress_text.training.batches import Batch, prefetch
from vision.data.crops import ASPECT, RandomCrop, draw_crops
from vision.data.decoding import BILINEAR, cut_square, decode, pixels_of
from vision.resnet import Square

MeanStd = tuple[tuple[float, ...], tuple[float, ...]]  # by channel, of values from 0 to 1
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KNOWN_MEAN_STD: dict[str, MeanStd] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "tiny-imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
    "imagenet100": _IMAGENET,
    "imagenet1k": _IMAGENET,
}
EVALUATION_CROP = 7 / 8  # 224 of 256
_SAMPLE = 1000  # files that are decoded for mean and deviation
DECODERS = ThreadPoolExecutor(thread_name_prefix="decode")  # its threads start when it is used
T = TypeVar("T")
Kinds = Iterable[tuple[RandomCrop, int]]  # of crops, each with its number of crops of an image


class NoAccuracyError(ParameterError):
    """A test split, labels or a second class is missing, so that accuracy cannot be measured."""


@dataclass(frozen=True)
class ImageFiles:
    """Image files by row, read when they are needed."""

    contents: Sequence[Path] | pa.ChunkedArray  # paths, or a column of files, perhaps mapped
    rows: NDArray[np.int64]  # the chosen rows of the contents, in order
    origin: str = ""  # folder of the paths; or the parquet files of the column, for errors

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[bytes | Path, str]:
        """Return the content or the path of an image file, and its name in errors."""
        content = self.contents[int(self.rows[row])]
        if not isinstance(content, Path):
            content = content.as_py()
        return content, self.name(row)

    def name(self, row: int) -> str:
        """Return the path of an image file, or the origin of a parquet column and the row in it."""
        stored_row = int(self.rows[row])
        if isinstance(self.contents, pa.ChunkedArray):
            return f"{self.origin}, row {stored_row}"
        return str(self.contents[stored_row])

    def subset(self, rows: NDArray[np.int64]) -> ImageFiles:
        return replace(self, rows=self.rows[rows])

    def fingerprint(self) -> Iterable[bytes]:
        """Return what to hash: file names, or a column's rows with the lengths of their files."""
        if isinstance(self.contents, pa.ChunkedArray):
            lengths = pc.binary_length(self.contents).to_numpy().astype(np.int64)
            return self.rows.tobytes(), lengths[self.rows].tobytes()
        paths = (self.contents[row] for row in self.rows)
        return (os.fsencode(f"{path.parent.name}/{path.name}\n") for path in paths)


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSet(ABC):
    """A split of a data set, with or without labels."""

    name: str
    labels: Tensor | None = None  # (n,) int64
    classes: tuple[str, ...] = ()  # their names, by label
    variant: str | None = None  # how it differs from the published set
    corrupt: int = 0  # number of damaged images that were left out or replaced
    files_id: str = ""  # a hash of the files' names and labels, before damaged ones were replaced
    notes: tuple[str, ...] = ()  # lines for the user about what is not read
    files: ImageFiles | None = None  # None for drawn images

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def size(self) -> tuple[int, ...] | None:
        """Return height and width; None if they differ between images."""

    @abstractmethod
    def _fingerprint(self) -> Iterable[bytes | memoryview]:
        """Return bytes that identify the images."""

    @abstractmethod
    def picture(self, row: int) -> Image.Image:
        """Return an image as RGB, in its own size."""

    @abstractmethod
    def to_crop(self, rows: NDArray[np.int64], kinds: Kinds, key: tuple[int, ...]) -> Batch:
        """Return whole images, or random crops of them, from which augmentation makes views.

        Args:
            rows: indices of the images.
            kinds: sizes of crops, and the number of crops of each size.
            key: seeds the draws together with the row, so that an image has the same crops in any
                batch and process.

        Returns:
            ``images``, uint8 (b, 3, height, width), if they are to be cropped on the device; else
            ``crops0``, ``crops1`` and so on, uint8 (b, count, 3, size, size) for each kind. All are
            on the CPU.
        """

    def squares(self, rows: NDArray[np.int64], square: Square) -> Tensor:
        """Cut the middle square of each image at ``rows``: uint8 (b, 3, side, side), on the CPU."""

        def pixels(row: int) -> Tensor:
            return pixels_of(cut_square(self.picture(row), square))

        return torch.stack(list(DECODERS.map(pixels, rows.tolist())))

    def subset(self, rows: Sequence[int] | NDArray[np.int64] | Tensor) -> Self:
        """Return the images at ``rows``, in that order."""
        rows = torch.as_tensor(rows, dtype=torch.long)
        changed: dict[str, Any] = {}
        for name in ("labels", "pixels"):
            values = getattr(self, name, None)
            if values is not None:
                changed[name] = values[rows]
        if self.files is not None:
            changed["files"] = self.files.subset(rows.numpy())
        return replace(self, **changed)

    @property
    def targets(self) -> Tensor:
        """The labels, (n,). Without labels this raises NoAccuracyError."""
        if self.labels is None:
            reason = f"the images of {self.name} have no labels (class folders)"
            raise NoAccuracyError("dataset", reason)
        return self.labels

    @property
    def title(self) -> str:
        """Return the name, with the variant in brackets."""
        if self.variant is None:
            return self.name
        return f"{self.name} ({self.variant})"

    def with_variant(self, note: str) -> Self:
        """Add a note to the variant, and return the set."""
        if self.variant is not None:
            note = f"{self.variant}, {note}"
        return replace(self, variant=note)

    def with_note(self, note: str) -> Self:
        """Add a line for the user, and return the set."""
        return replace(self, notes=(*self.notes, note))

    def sample(self, count: int | None, seed: int) -> Self:
        """Draw ``count`` images with the seed; return all images if there are not more."""
        if count is None or count >= len(self):
            return self
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator)
        return self.subset(order[:count])

    def checksum(self) -> str:
        """Return a hash of the labels and the pixels, or of labels and file names if encoded."""
        digest = hashlib.sha256()
        for part in self._fingerprint():
            digest.update(part)
        if self.labels is not None:
            digest.update(self.labels.numpy().data)
        return digest.hexdigest()[:16]

    def batches(self, batch_size: int, device: torch.device, square: Square) -> Iterator[Tensor]:
        """Yield the squares of all images in order, uint8 (b, 3, side, side) on the device."""
        starts = range(batch_size, len(self), batch_size)
        rows = np.split(np.arange(len(self)), starts)
        loaded = prefetch(lambda rows: {"images": self.squares(rows, square)}, rows, device)
        return (batch["images"] for batch in loaded)


@dataclass(frozen=True, eq=False, kw_only=True)
class DecodedImages(ImageSet):
    """Small images of one size, in memory."""

    pixels: Tensor  # (n, 3, height, width) uint8, on the CPU

    @property
    def size(self) -> tuple[int, ...]:
        return tuple(self.pixels.shape[2:])

    def __len__(self) -> int:
        return len(self.pixels)

    def _fingerprint(self) -> Iterable[memoryview]:
        return [self.pixels.numpy().data]

    def picture(self, row: int) -> Image.Image:
        return Image.fromarray(self.pixels[row].permute(1, 2, 0).numpy())

    def to_crop(self, rows: NDArray[np.int64], kinds: Kinds, key: tuple[int, ...]) -> Batch:
        return {"images": self.pixels[torch.from_numpy(rows)]}

    def squares(self, rows: NDArray[np.int64], square: Square) -> Tensor:
        side = square.image_size
        if square.crop == 1 and self.size == (side, side):
            return self.pixels[torch.from_numpy(rows)]
        return super().squares(rows, square)


@dataclass(frozen=True, eq=False, kw_only=True)
class EncodedImages(ImageSet):
    """Files of images, which threads decode batch by batch."""

    files: ImageFiles = field()  # always there
    size: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.files)

    def _fingerprint(self) -> Iterable[bytes]:
        return self.files.fingerprint()

    def picture(self, row: int) -> Image.Image:
        return self.read(row, decode)

    def read(self, row: int, reader: Callable[[bytes | Path, str], T]) -> T:
        """Call ``reader`` with the content or path of a file and its name; return the result."""
        content, name = self.files[row]
        try:
            return reader(content, name)
        except DataError as error:
            raise DataError(f"{error}; `skip_corrupt` leaves such images out") from error

    def to_crop(self, rows: NDArray[np.int64], kinds: Kinds, key: tuple[int, ...]) -> Batch:
        kinds = [*kinds]
        # the smallest crops keep twice their views' side in a picture that is decoded smaller
        enough = max(2 * crop.size / math.sqrt(ASPECT[0] * crop.min_scale) for crop, _ in kinds)

        def crop_picture(row: int) -> list[Tensor]:
            (seed,) = np.random.SeedSequence([*key, row]).generate_state(1)
            generator = torch.Generator().manual_seed(int(seed))
            picture = self.read(row, partial(decode, enough=enough))
            views_by_kind = []
            for crop, count in kinds:
                drawn = draw_crops(count, picture.height, picture.width, crop, generator=generator)
                size = (crop.size, crop.size)
                parts = [picture.crop(box).resize(size, BILINEAR) for box in drawn.boxes.tolist()]
                views = torch.stack([*map(pixels_of, parts)])  # (count, 3, size, size)
                flip = drawn.flip[:, None, None, None]
                views_by_kind.append(torch.where(flip, views.flip(3), views))
            return views_by_kind

        by_kind = zip(*DECODERS.map(crop_picture, rows.tolist()), strict=True)
        return {f"crops{kind}": torch.stack(views) for kind, views in enumerate(by_kind)}


def square_of(images: ImageSet, side: int) -> Square:
    """Return the square that evaluation cuts out: the whole image if it has the input's size.

    Args:
        images: the training images.
        side: side of the encoder's input, in pixels.
    """
    crop = 1.0 if images.size == (side, side) else EVALUATION_CROP
    return Square(side, crop)


def mean_std(images: ImageSet, square: Square) -> MeanStd:
    """Return mean and standard deviation of each channel, for values from 0 to 1.

    For CIFAR, Tiny-ImageNet, ImageNet and their long tails they are in :data:`KNOWN_MEAN_STD`. For
    other sets they are computed from the squares of all images if these are in memory, else from
    those of at most 1,000 evenly spaced files.
    """
    known = images.name.replace("_", "-").removesuffix("-lt")
    if known in KNOWN_MEAN_STD:
        return KNOWN_MEAN_STD[known]
    step = 1 if isinstance(images, DecodedImages) else math.ceil(len(images) / _SAMPLE)
    rows = range(0, len(images), step)

    def histogram_of(row: int) -> list[int]:
        return cut_square(images.picture(row), square).histogram()

    counts = np.zeros(3 * 256, dtype=np.int64)  # of each channel's values
    for histogram in DECODERS.map(histogram_of, rows):
        counts += histogram
    shares = counts.reshape(3, 256) / (len(rows) * square.image_size**2)
    values = np.arange(256, dtype=np.float32) / 255
    mean = shares @ values
    variance = shares @ np.square(values) - np.square(mean)
    # a channel of one value would otherwise divide by 0
    std = np.sqrt(variance.clip(min=1 / 255**2))
    return tuple(mean.tolist()), tuple(std.tolist())
