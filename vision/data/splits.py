"""The names of the splits of a data set, and which split is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dystress_text.errors import DataError
from vision.data.images import NoAccuracyError

# the names that ``datasets`` knows; the first one that a set has is read
SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation", "eval", "evaluation", "dev"),
}
SPLIT_NAMES = {name for names in SPLITS.values() for name in names}


def exact_splits(names: Iterable[str]) -> list[str]:
    """Return the names that name a split and nothing else, such as ``train``."""
    return [name for name in names if name.casefold() in SPLIT_NAMES]


def split_word(name: str) -> str:
    """Return the first split that a name mentions, such as train in ``own-train2017``, else ""."""
    return next(filter(SPLIT_NAMES.__contains__, re.split("[^a-z]", name.casefold())), "")


def names_of_split(names: Iterable[str], split: str) -> list[str]:
    """Return the names that mention ``train`` or ``test`` or its synonyms, the preferred first."""
    synonyms = SPLITS[split]
    of_split = [name for name in names if split_word(name) in synonyms]
    return sorted(of_split, key=lambda name: synonyms.index(split_word(name)))


def is_divided(names: Sequence[str]) -> bool:
    """Return whether the names mention both a training and a test split."""
    return all(names_of_split(names, split) for split in SPLITS)


def choose_split(
    root: Path,
    names: Sequence[str],
    split: str,
    has_labels: Callable[[str], bool],
    unread: Iterable[Path],
) -> tuple[str, tuple[str, ...]]:
    """Choose the split to read, and return its name and notes for the user.

    Published test splits often have no labels, so the first one with labels is read.

    Args:
        root: folder of the set.
        names: candidates, the preferred one first.
        split: ``train`` or ``test``.
        has_labels: whether the split of a name has labels.
        unread: paths that belong to no split; the notes of the training split name them.

    Raises:
        NoAccuracyError: there is no candidate.
        DataError: several may be the training split.
    """
    if not names:
        name = SPLITS[split][0]
        reason = f"no {split} split, a folder {name} or files {name}-*.parquet"
        if split == "train":
            reason += "; move its other images there"
        raise NoAccuracyError("dataset", f"{str(root)!r} has {reason}")
    known = " and ".join(names)
    if split == "train":
        if len(names) > 1:
            raise DataError(f"{known} of {root} may be the training split; keep one")
        name = names[0]
        return name, tuple(f"{path} is not read, as it lies next to {name}" for path in unread)
    if len(names) == 1:
        return names[0], ()
    chosen = next(filter(has_labels, names), names[0])
    return chosen, (f"of {known}, {chosen} is the test split: the first with labels, if any",)
