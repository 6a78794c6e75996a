"""Records that other programs read: JSON files that are whole or not there."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON as other programs read it: a number that is none becomes null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(entry) for entry in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(value), indent=indent, default=str, allow_nan=False)


def write_json(file: Path, value: Any) -> None:
    """Write a record under another name and rename it.

    Raises:
        OSError: it cannot be written.
    """
    write_text(file, to_json(value, indent=1) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write a text under another name and rename it.

    Raises:
        OSError: it cannot be written.
    """
    staging = file.with_name(f".{file.name}.writing")
    staging.write_text(text, encoding="utf-8")
    staging.replace(file)


def sha256_of(path: Path) -> str:
    """The checksum of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions(*more: str) -> dict[str, str]:
    """Versions of Python, of the packages that every run uses, and of some more packages."""
    packages = ("dystress-text", "torch", "transformers", "accelerate", *more)
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
