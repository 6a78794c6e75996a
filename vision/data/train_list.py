"""Lists that choose training images, as published long tails are: paths, or positions."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from dystress_text.errors import ParameterError, reason_of
from vision.data.images import EncodedImages


def listed(images: EncodedImages, file: Path) -> EncodedImages:
    """Return the images that a list chooses, as often as it has them.

    The variant states the sizes of the classes, as they reveal a list in another order than the
    images.
    """
    try:
        rows = _positions(file, len(images)) if file.suffix == ".npy" else _named(file, images)
    except (OSError, EOFError, ValueError) as error:
        reason = f"{str(file)!r} cannot be read: {reason_of(error)}"
        raise ParameterError("train_list", reason) from error
    chosen = images.subset(sorted(rows))
    variant = f"listed in {file.name}, {len(chosen):,} images"
    if chosen.labels is not None:
        sizes = torch.bincount(chosen.labels, minlength=len(images.classes))
        variant += f", {sizes.min():,} to {sizes.max():,} a class"
    return chosen.with_variant(variant)


def _positions(file: Path, count: int) -> list[int]:
    """Read a NumPy array of positions, counted from 0, as Kukleva et al. publish them."""
    rows = np.load(file, mmap_mode="r", allow_pickle=False)
    is_list = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype.kind in "iu"
    positions: list[int] = rows.tolist() if is_list else []
    if not positions or min(positions) < 0 or max(positions) >= count:
        raise ValueError(f"expected one row of positions from 0 to {count - 1:,}")
    return positions


def _named(file: Path, images: EncodedImages) -> list[int]:
    """Read paths, one a line; relative ones begin in the images' folder or one of two above it."""
    files = images.files.contents
    if not isinstance(files, list):
        raise ValueError(f"{images.name} has parquet files, whose rows only FILE.npy can choose")
    folder = Path(images.files.origin).absolute()
    starts = (folder, *folder.parents[:2])
    row_of = {os.path.abspath(path): row for row, path in enumerate(files)}
    rows = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        paths = {os.path.abspath(start / name) for name in _names(line) for start in starts}
        named = [row_of[path] for path in paths if path in row_of]
        is_header = number == 1 and not re.search(r"[./\\]", line)
        if len(named) > 1 or not (named or is_header or not line.strip()):
            reason = f"{line.strip()} names {len(named)} images of {folder} and the folders above"
            raise ValueError(f"line {number}: {reason}")
        rows += named
    if not rows:
        raise ValueError("it names no file")
    return rows


def _text(file: Path) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark."""
    content = file.read_bytes()
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf16 else "utf-8-sig")


def _names(line: str) -> Iterator[str]:
    """Yield what may be the path in a line.

    Published lists put the class's number after each path, in another order than ours; tables
    have a path in any column, perhaps quoted.
    """
    line = line.strip()
    unnumbered = re.sub(r"[\s,;]+[^\s,;./]+$", "", line)
    for part in (line, unnumbered, *re.findall('"([^"]+)"', line), *re.split(r"[,;|\t]", line)):
        name = part.strip("\"' ")
        yield name
        yield name.replace("\\", "/")
