"""Write files and folders atomically: under a temporary name, then renamed.

Readers never see a partial file, and if the program is killed the old content remains.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dystress_text.errors import UserError

MODEL_STAGING = ".model-writing"


def to_json(value: Any, indent: int | None = None) -> str:
    """Return standard JSON, in which null replaces numbers that are not finite."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(entry) for entry in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value

    return json.dumps(plain(value), indent=indent, default=str, allow_nan=False)


def write_json(file: Path, value: Any) -> None:
    write_text(file, to_json(value, indent=1) + "\n")


def write_text(file: Path, text: str) -> None:
    write_bytes(file, text.encode())


def append_json(file: Path, *values: Any) -> None:
    """Append each value as a line.

    First remove an incomplete last line, which a kill or a full disk leaves.
    """
    with file.open("ab+") as stream:
        end = stream.tell()
        stream.seek(max(0, end - 1))
        if stream.read() not in (b"", b"\n"):
            stream.seek(0)
            last = stream.read().rpartition(b"\n")[2]
            try:
                json.loads(last)
                stream.write(b"\n")
            except ValueError:
                stream.truncate(end - len(last))
        for value in values:
            stream.write(f"{to_json(value)}\n".encode())


def json_lines(file: Path) -> dict[int, Any]:
    """Return the values of :func:`append_json` by the number of their line, from 1.

    A last line that was cut off is left out.

    Raises:
        UserError: the file cannot be read, or a line is not JSON.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    values = {}
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                values[number] = json.loads(line)
        except (ValueError, RecursionError) as error:
            is_cut_off = number == len(lines) and line.startswith("{")
            if not is_cut_off:
                raise UserError(f"{file}: line {number} is not JSON: {error}") from error
    return values


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file atomically; its folder must exist."""
    staging = _staging(file)
    try:
        staging.write_bytes(content)
        staging.replace(file)
    finally:
        staging.unlink(missing_ok=True)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn errors of Rust libraries, which report an OSError only as text, into that OSError."""
    try:
        yield
    except Exception as error:  # tokenizers raises no subclass
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


@contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces ``final`` at the end unless an error was raised."""
    staging = _staging(final)
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed process with the same process id
    staging.mkdir(parents=True)
    try:
        with _os_errors():
            yield staging
        aside = _aside(final)
        shutil.rmtree(aside, ignore_errors=True)
        if final.is_dir():
            final.rename(aside)
        staging.rename(final)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def recover(final: Path) -> None:
    """Restore the old folder if :func:`atomic_folder` was killed between its two renames."""
    aside = _aside(final)
    if aside.is_dir() and not final.exists():
        aside.rename(final)


@contextmanager
def atomic_files(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder, whose files then replace those of the same names in ``folder``."""
    target = Path(folder)
    staging = target / MODEL_STAGING
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed program
    staging.mkdir(parents=True)
    try:
        with _os_errors():
            yield staging
        mode = staging.stat().st_mode & 0o666  # of a new file under the user's umask
        for path in staging.rglob("*"):
            if path.is_file():
                path.chmod(mode)  # safetensors makes files that only their owner can read
        move_files(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def move_files(source: Path, target: Path) -> None:
    """Move all files below a folder to the same paths in another, replacing files there."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            new = target / path.relative_to(source)
            new.parent.mkdir(exist_ok=True, parents=True)
            path.replace(new)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python, of the main packages, and of the packages ``more``."""
    packages = ("dystress-text", "torch", "transformers", "accelerate", *more)
    return {"python": platform.python_version(), **{name: _version_of(name) for name in packages}}


@cache
def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # imported from a folder or another distribution
        return "not installed"


def _staging(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.writing")


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")
