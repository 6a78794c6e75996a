"""Labelled and unlabelled image sets: small ones as one uint8 tensor, larger ones as files that workers decode."""

from __future__ import annotations

import hashlib
import math
import statistics
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import DataError, UserError
from vision.data.augment import EVALUATION_CROP
from vision.data.decoding import decode, decode_square, image_size
from vision.data.sources import LONG_TAILED, Source, find_images

__all__ = ["ImageSet", "decode", "load_images", "mean_std"]

MEMORY = 4 * 2**30  # bytes of the largest set that is decoded at once
SMALL, USUAL = 96, 224  # the largest side that images keep, and what an encoder takes of larger ones

Triple = tuple[float, float, float]

_MEAN_STD: dict[str, tuple[Triple, Triple]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "tiny_imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
    "imagenet100": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "imagenet1k": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
_SAMPLE, _HEADERS = 1000, 101


@dataclass
class ImageSet:
    """Images of one split, decoded or as files; one of ``images`` and ``files`` is there.

    Attributes:
        images: (n, 3, size, size) uint8.
        files: n paths, to be decoded by workers.
        labels: (n,) int64, or None.
        classes: their names, by label.
        name: of the data set.
        variant: what it is instead of the published data set, such as "JPEG copy"; reports say so beside any number.
        size: side of the images.
        corrupt: so many more were left out.
    """

    images: Tensor | None
    files: list[Path] | None
    labels: Tensor | None
    classes: tuple[str, ...]
    name: str
    variant: str | None
    size: int
    corrupt: int = 0

    def __len__(self) -> int:
        if self.images is not None:
            return len(self.images)
        assert self.files is not None
        return len(self.files)

    def subset(self, indices: Sequence[int] | Tensor) -> ImageSet:
        """The images at ``indices``, in that order."""
        rows = torch.as_tensor(indices, dtype=torch.long)
        return replace(
            self,
            images=None if self.images is None else self.images[rows.to(self.images.device)],
            files=None if self.files is None else [self.files[row] for row in rows.tolist()],
            labels=None if self.labels is None else self.labels[rows.to(self.labels.device)],
        )

    def sample(self, count: int | None, seed: int) -> ImageSet:
        """So many of the images, drawn with the seed; all of them as they are if there are no more, or for None."""
        if count is None or count >= len(self):
            return self
        return self.subset(torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:count])

    @property
    def title(self) -> str:
        """The name, and beside it what the images are instead of the published ones."""
        return self.name + (f" ({self.variant})" if self.variant else "")

    def checksum(self) -> str:
        """Names the content: pixels and labels; of files their names and sizes in place of pixels."""
        digest = hashlib.sha256()
        if self.images is not None:
            for chunk in torch.split(self.images, _SAMPLE):
                digest.update(chunk.cpu().numpy().tobytes())
        for file in self.files or ():
            digest.update(f"{file.parent.name}/{file.name} {file.stat().st_size}\n".encode())
        if self.labels is not None:
            digest.update(self.labels.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def image(self, row: int) -> Tensor:
        """One image, uint8 (3, size, size); a file is decoded, its shorter side resized, its middle square kept.

        Raises:
            DataError: the file is damaged.
        """
        if self.images is not None:
            return self.images[row]
        assert self.files is not None
        return decode_square(self.files[row], self.size)


def load_images(
    name_or_path: str,
    split: str = "train",
    data_dir: str | None = None,
    size: int | None = None,
    skip_corrupt: bool = False,
    view: int | None = None,
) -> ImageSet:
    """A split of a data set.

    Args:
        name_or_path: ``cifar10``, ``cifar100``, ``tiny_imagenet``, ``imagenet100``, ``imagenet1k`` as
            ``data/prepare.py`` has prepared them; ``cifar10_lt``, ``cifar100_lt``, ``imagenet100_lt``, their
            long-tailed forms (the prepared choice, else the same of ratio 0.01 and seed 0); ``shapes``, drawn at run
            time; a folder of images, in class folders or without labels, divided into ``train`` and ``test`` (or
            ``val``) or not; or a folder of parquet files in the hub's layout.
        split: ``train`` or ``test``.
        data_dir: where prepared data lie; see :func:`dystress_text.files.places.data_root`.
        size: side of the images; None is :func:`loaded_side`.
        skip_corrupt: count damaged images and leave them out, with one warning; files are all decoded once for it.
        view: side of what the encoder takes, where ``size`` is None; None is :func:`usual_view`.

    Raises:
        UserError: an unknown name or split, data that have not been prepared, or too large for memory.
        NoSuchSplitError: the data have no such split.
        DataError: a folder or image that is damaged.
    """
    for side in (size, view):
        if side is not None and side < 1:
            raise UserError(f"--image_size: the side of an image must be at least 1 pixel, got {side}")
    if name_or_path == "shapes":
        from vision.data.shapes import make_shapes  # which makes an ImageSet

        return make_shapes(split)
    source = find_images(name_or_path, split, data_dir)
    if size is None:
        own = _own_side(source)
        size = loaded_side(own, view or usual_view(own))
    return _load(source, size, skip_corrupt)


def usual_view(own: int) -> int:
    """Side of what an encoder takes where nothing says it: small images whole, and squares of 224 of larger ones."""
    return own if own <= SMALL else USUAL


def loaded_side(own: int, view: int) -> int:
    """Side of the middle squares that are held in memory or decoded, the same for training and evaluation.

    Images of up to 96 pixels stay as they are, unless that is more than twice what the encoder takes, from which crops
    would alias. Of others the shorter side becomes 8/7 of it: 256 for 224.

    Args:
        own: side of the images.
        view: side of what the encoder takes.
    """
    return own if own <= min(SMALL, 2 * view) else round(view / EVALUATION_CROP)


def _load(source: Source, side: int, skip_corrupt: bool) -> ImageSet:
    needed = len(source.contents) * 3 * side * side
    if needed <= MEMORY:
        return _decoded(source, side, skip_corrupt)
    files = [content for content in source.contents if isinstance(content, Path)]
    if not files:
        raise UserError(
            f"--image_size: {source.name} needs {needed / 2**30:.0f} GiB at {side} x {side}; parquet files are decoded "
            f"into memory ({MEMORY / 2**30:.0f} GiB at most), so choose a smaller size or a folder of images"
        )
    found = len(files)
    if skip_corrupt:
        with ThreadPoolExecutor() as pool:
            faults = progress_bar(pool.map(_fault_of, files), total=len(files), desc="checking", unit=" images")
            source = _without(source, {row: fault for row, fault in enumerate(faults) if fault is not None})
        files = [content for content in source.contents if isinstance(content, Path)]
    return ImageSet(
        None, files, _label_tensor(source), source.classes, source.name, source.variant, side, found - len(files)
    )


def _own_side(source: Source) -> int:
    """The median of the images' shorter sides, of 101 evenly spaced ones; damaged ones are for the decoding to name."""
    count = len(source.contents)
    sides: list[int] = []
    fault = ""
    for row in sorted({round(place * (count - 1) / (_HEADERS - 1)) for place in range(_HEADERS)}):
        try:
            sides.append(min(image_size(source.contents[row], _origin(source, row))))
        except DataError as error:
            fault = fault or str(error)
    if not sides:
        raise DataError(f"{source.name}: none of {count:,} images can be decoded: {fault}")
    return statistics.median_low(sides)


def _decoded(source: Source, side: int, skip_corrupt: bool) -> ImageSet:
    images = torch.empty(len(source.contents), 3, side, side, dtype=torch.uint8)
    faults: dict[int, str] = {}
    for row, content in enumerate(progress_bar(source.contents, desc=source.name, unit=" images")):
        try:
            images[row] = decode_square(content, side, _origin(source, row))
        except DataError as error:
            if not skip_corrupt:
                raise DataError(f"{error}; --skip_corrupt leaves such images out") from error
            faults[row] = str(error)
    if faults:
        images = images[[row for row in range(len(images)) if row not in faults]]
        source = _without(source, faults)
    variant = source.variant or _copy_of_pixels(source, side)
    return ImageSet(images, None, _label_tensor(source), source.classes, source.name, variant, side, len(faults))


def _copy_of_pixels(source: Source, side: int) -> str | None:
    """The hub's sets of 32 x 32 are PNG files; JPEG ones are lossy copies."""
    content = source.contents[0]
    jpeg = isinstance(content, bytes) and content.startswith(b"\xff\xd8\xff")
    return "JPEG copy" if jpeg and side == 32 else None


def _origin(source: Source, row: int) -> str:
    return source.origins[row] if source.origins else str(source.contents[row])


def _fault_of(file: Path) -> str | None:
    try:
        decode(file)
    except DataError as error:
        return str(error)
    return None


def _without(source: Source, faults: dict[int, str]) -> Source:
    if not faults:
        return source
    kept = [row for row in range(len(source.contents)) if row not in faults]
    first = next(iter(faults.values()))
    told = f"{len(faults):,} of {len(source.contents):,} images of {source.name} are corrupt"
    if len(kept) < 2:
        raise DataError(f"{told}, too few are left: {first}")
    warnings.warn(f"{told} and left out; the first: {first}", stacklevel=4)
    return source.subset(kept)


def _label_tensor(source: Source) -> Tensor | None:
    return None if source.labels is None else torch.tensor(source.labels, dtype=torch.long)


def mean_std(images: ImageSet | str) -> tuple[Triple, Triple]:
    """Mean and standard deviation of a data set's pixels, by channel, of values from 0 to 1.

    CIFAR, Tiny-ImageNet and ImageNet have their known numbers; a long-tailed form has those of the whole set. Of other
    sets they are computed, from at most 1,000 evenly spaced images if these are files.

    Args:
        images: the training split, or the name of one of the known sets.

    Raises:
        UserError: a name that is not known.
    """
    name = images if isinstance(images, str) else images.name
    name = name.replace("-", "_")
    known = _MEAN_STD.get(LONG_TAILED.get(name, name))
    if known is not None:
        return known
    if isinstance(images, str):
        raise UserError(f"no known mean and standard deviation of {images!r}; known are {', '.join(_MEAN_STD)}")
    return _measured(images)


def _measured(images: ImageSet) -> tuple[Triple, Triple]:
    total, squares, count = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), 0
    for chunk in _chunks(images):
        values = chunk.to("cpu", torch.float32) / 255  # (n, 3, h, w)
        total += values.sum((0, 2, 3), dtype=torch.float64)
        squares += values.square().sum((0, 2, 3), dtype=torch.float64)
        count += values.numel() // 3
    mean = total / count
    # a channel of one colour would be divided by 0
    std = (squares / count - mean.square()).clamp_min(1 / 255**2).sqrt()
    return _triple(mean), _triple(std)


def _triple(values: Tensor) -> Triple:
    red, green, blue = values.tolist()
    return red, green, blue


def _chunks(images: ImageSet) -> Iterable[Tensor]:
    if images.images is not None:
        return torch.split(images.images, _SAMPLE)
    rows = range(0, len(images), math.ceil(len(images) / _SAMPLE))
    return (images.image(row)[None] for row in rows)
