"""Parts of the training images: published lists, and exponential long tails of balanced sets."""

from __future__ import annotations

import codecs
import hashlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dystress_text.errors import DataError, ParameterError, reason_of
from vision.data.images import EncodedImages

RATIO = 0.01  # images of the last class by images of the first; the paper's


def long_tail_counts(n_max: int, classes: int) -> list[int]:
    """Return the number of images of each class: ``floor(n_max * RATIO ** (i / (classes - 1)))``.

    In floating point 29 may come out as 28.999..., so the product is rounded to nine decimals
    first.

    Args:
        n_max: images of the first class.
        classes: number of classes.

    Raises:
        DataError: the last class would be empty.
    """
    last = max(1, classes - 1)
    counts = [math.floor(round(n_max * RATIO ** (i / last), 9)) for i in range(classes)]
    if min(counts) < 1:
        reason = f"leaves no image of the last class: the first has only {n_max}"
        raise DataError(f"a long tail of ratio {RATIO} {reason}")
    return counts


def long_tail_indices(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the ascending rows that a long tail keeps.

    The smallest class has ``n_max`` images, so that every class has enough. A class keeps the
    images with the smallest ``sha256("0:row")``, which is the same choice on every machine.

    Args:
        labels: (images,), from 0.
    """

    def key(row: int) -> bytes:
        return hashlib.sha256(f"0:{row}".encode()).digest()

    sizes = np.bincount(labels)
    kept: list[int] = []
    for label, count in enumerate(long_tail_counts(int(sizes.min()), len(sizes))):
        of_class = np.flatnonzero(labels == label).tolist()
        kept += sorted(of_class, key=key)[:count]
    return np.array(sorted(kept), dtype=np.int64)


def select_listed(images: EncodedImages, file: Path) -> EncodedImages:
    """Select the images that a list names, as often as it names them.

    The variant of the result states its class sizes: they reveal a list whose positions count the
    images in another order.
    """
    try:
        rows = _positions(file, len(images)) if file.suffix == ".npy" else _named(file, images)
    except (OSError, EOFError, ValueError) as error:
        reason = f"{str(file)!r} cannot be read: {reason_of(error)}"
        raise ParameterError("train_list", reason) from error
    selected = images.subset(sorted(rows))
    variant = f"listed in {file.name}, {len(selected):,} images"
    if selected.labels is not None:
        sizes = torch.bincount(selected.labels, minlength=len(images.classes))
        variant += f", {sizes.min():,} to {sizes.max():,} a class"
    return selected.with_variant(variant)


def _positions(file: Path, count: int) -> list[int]:
    """Read a NumPy array of positions, counted from 0, as Kukleva et al. publish them."""
    rows = np.load(file, mmap_mode="r", allow_pickle=False)
    is_list = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype.kind in "iu"
    if not is_list or not len(rows) or rows.min() < 0 or rows.max() >= count:
        raise ValueError(f"expected one row of positions from 0 to {count - 1:,}")
    positions: list[int] = rows.tolist()
    return positions


def _named(file: Path, images: EncodedImages) -> list[int]:
    """Read paths, one a line, absolute or relative to the images' folder or the two above it."""
    files = images.files.contents
    if not isinstance(files, list):
        raise ValueError(f"{images.name} has parquet files, whose rows only FILE.npy can choose")
    folder = Path(images.files.origin).absolute()
    starts = (folder, *folder.parents[:2])
    row_of = {os.path.abspath(path): row for row, path in enumerate(files)}
    content = file.read_bytes()
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
    rows = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        paths = {os.path.abspath(start / name) for name in _paths_in(line) for start in starts}
        named = [row_of[path] for path in paths if path in row_of]
        is_header = number == 1 and not re.search(r"[./\\]", line)
        if len(named) > 1 or not (named or is_header or line == ""):
            reason = f"{line} names {len(named)} images of {folder} and the folders above"
            raise ValueError(f"line {number}: {reason}")
        rows += named
    if not rows:
        raise ValueError("it names no file")
    return rows


def _paths_in(line: str) -> Iterator[str]:
    """Yield what may be the path in a line.

    Published lists put the class's number after each path, in another order than ours; tables
    have a path in any column, perhaps quoted.
    """
    unnumbered = re.sub(r"[\s,;]+[^\s,;./]+$", "", line)
    for part in (line, unnumbered, *re.findall('"([^"]+)"', line), *re.split(r"[,;|\t]", line)):
        name = part.strip("\"' ")
        yield name
        yield name.replace("\\", "/")
