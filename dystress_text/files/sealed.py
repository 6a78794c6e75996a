"""Folders that are complete or not there: a manifest has the size and checksum of each file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from dystress_text.files.records import sha256_of

MANIFEST = "manifest.json"


def seal(staging: Path, final: Path) -> None:
    """Make what was written to ``staging`` the complete folder ``final``.

    A folder of that name is replaced: set aside, and removed at the end. See :func:`recover`.

    Raises:
        OSError: a file cannot be read, written or renamed.
    """
    files = sorted(path for path in staging.rglob("*") if path.is_file())
    record = {path.relative_to(staging).as_posix(): [path.stat().st_size, sha256_of(path)] for path in files}
    (staging / MANIFEST).write_text(json.dumps({"files": record}, indent=1) + "\n", encoding="utf-8")
    for path in (*files, staging / MANIFEST, staging):
        _to_disk(path)
    aside = _aside(final)
    shutil.rmtree(aside, ignore_errors=True)
    if final.is_dir():
        final.rename(aside)
    staging.rename(final)
    _to_disk(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def recover(final: Path) -> None:
    """Put back a folder that a program was about to replace when it was killed between the two renames of :func:`seal`.

    Raises:
        OSError: it cannot be renamed.
    """
    if not final.exists() and _aside(final).is_dir():
        _aside(final).rename(final)


def damage_of(folder: Path) -> str | None:
    """What is wrong with a folder that was sealed; None for one that is as it was."""
    try:
        if not (folder / MANIFEST).resolve(strict=True).is_file():  # a pipe would be waited for
            return f"{MANIFEST} is no file"
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, (size, sha256) in files.items():
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                return f"{MANIFEST} names a file outside the folder"
            if path.exists() and not path.is_file():
                return f"{name} is no file"
            if path.stat().st_size != size or sha256_of(path) != sha256:
                return f"{name} is not what was written"
        found = {
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()
        }
        for name in sorted(found - {MANIFEST, *files}):
            if not Path(name).name.startswith("."):  # a file manager's, which nothing reads
                return f"{name} was not written with the rest"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        return f"it cannot be read: {' '.join(str(error).split())}"
    return None


def _aside(final: Path) -> Path:
    return final.with_name(f".{final.name}.replaced")


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
