"""Paths of data, caches and the embedded model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from dystress_text.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
# None if installed from a wheel
CHECKOUT = PACKAGE.parent if (PACKAGE.parent / "pyproject.toml").is_file() else None
EMBEDDED = PACKAGE / "embedded"  # the small model and the small evaluation sets
EMBEDDED_MODEL = "bert-mini-wiki"  # folder there, and its name in options
K = TypeVar("K")


def data_root(data_dir: str | Path | None = None) -> Path:
    """Return the folder of prepared data.

    This is ``data_dir``, else ``$DYSTRESS_DATA``, else ``data/prepared`` in a checkout. Without a
    checkout, it is ``dystress-text`` in ``$XDG_DATA_HOME`` or in ``~/.local/share``.
    """
    named = data_dir or os.environ.get("DYSTRESS_DATA")
    if named:
        return Path(named).expanduser()
    if CHECKOUT is not None:
        return CHECKOUT / "data" / "prepared"
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "dystress-text"


def model_path(name: str) -> str:
    """Return the folder or hub name of a model.

    ``bert-mini-wiki`` is always the model in the package, even if the working folder has a folder
    of that name.
    """
    return str(EMBEDDED / name) if name == EMBEDDED_MODEL else os.path.expanduser(name)


def model_name(path: str) -> str:
    """Return ``bert-mini-wiki`` for the folder of the package's model, else the path.

    Thus results are never written into the package.
    """
    return EMBEDDED_MODEL if Path(path).resolve() == EMBEDDED / EMBEDDED_MODEL else path


def distinct_names(contents: Mapping[K, tuple[str, str | None]]) -> dict[K, str]:
    """Map each key to the shortest unique suffix of its path.

    Args:
        contents: path and checksum by key. If several contents share a path, their names contain
            the checksum too.
    """
    ends = {}
    for key, (path, checksum) in contents.items():
        ends[key] = (str(checksum)[:12], *Path(path).absolute().parts[1:])
    names = {}
    for key, parts in ends.items():
        length = 1
        while sum(each[-length:] == parts[-length:] for each in {*ends.values()}) > 1:
            length += 1
        names[key] = "/".join(parts[-length:])
    return names


def cache_root() -> Path:
    """Return ``$DYSTRESS_CACHE``, else ``dystress-text`` in the user's cache folder."""
    configured = os.environ.get("DYSTRESS_CACHE")
    if configured:
        return Path(configured).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "dystress-text"


def cache_error(folder: Path, error: OSError) -> UserError:
    """Return the error for a cache folder that is not writable."""
    return UserError(
        f"cannot write to the cache {str(folder)!r}: {error.strerror}; "
        "set the environment variable DYSTRESS_CACHE to another folder"
    )
