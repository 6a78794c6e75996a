"""Verify and copy the data sets Wiki1M and SentEval."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dystress_text.errors import DataError, reason_of
from dystress_text.evaluation.catalogue import SUITES
from dystress_text.io.prepared_data import WIKI1M, Manifest
from dystress_text.io.text_lines import UNPACK_ERRORS, open_text
from dystress_text.preparation.data_sets import DataSet, Request
from dystress_text.preparation.prepare import files_of

MOST_RATIO = 100  # unpacked bytes per byte of an archive; a megabyte is always allowed


def build(entry: DataSet, request: Request, staging: Path) -> Manifest:
    """Put the verified files of a data set into a folder."""
    source = str(request.source or entry.repository)
    if entry.name == "wiki1m":
        return wiki1m(files_of(entry, request)[0], source, request, staging)
    if request.source is not None and request.source.is_dir():
        tasks = folder_of_tasks(request.source)
        if tasks is not None:
            return senteval(tasks, source, request, staging)
    archive = files_of(entry, request)[0]
    with tempfile.TemporaryDirectory(dir=staging.parent, prefix=f".{staging.name}-") as unpacked:
        unpack(archive, Path(unpacked))
        tasks = folder_of_tasks(Path(unpacked))
        if tasks is None:
            raise DataError(f"senteval: no folder STS in {archive}")
        return senteval(tasks, source, request, staging)


def wiki1m(file: Path, source: str, request: Request, staging: Path) -> Manifest:
    """Unpack the training text, and verify that it is the published one."""
    target = staging / WIKI1M
    try:
        with open_text(file) as text, target.open("wb") as copy:
            shutil.copyfileobj(text, copy, 1 << 20)
    except UNPACK_ERRORS as error:
        raise DataError(f"wiki1m: {file} is damaged: {error}") from error
    with target.open("rb") as text:
        first = text.readline(200).strip()[:60]
        text.seek(0)
        lines = sum(1 for _ in text)
    published = f"1,000,000 lines, the first {b'YMCA in South Australia'!r}"
    request.compare("wiki1m", file, f"{lines:,} lines, the first {first!r}", published)
    return Manifest("wiki1m", source, request.variant, counts={"lines": lines})


def senteval(folder: Path, source: str, request: Request, staging: Path) -> Manifest:
    """Copy the files of all tasks that are complete."""
    tasks = [task for group in SUITES["senteval"].values() for task in group]
    not_ready = {}
    for task in tasks:
        try:
            task.read(folder)
        except DataError as error:
            not_ready[task.name] = str(error).replace(f"{folder}/", "")
            continue
        for part in {Path(name).parent for name in task.files}:
            shutil.copytree(folder / part, staging / part, dirs_exist_ok=True)
    if len(not_ready) == len(tasks):
        raise DataError(f"senteval: nothing usable in {source}: {not_ready[tasks[0].name]}")
    return Manifest("senteval", source, request.variant, not_ready=not_ready)


def folder_of_tasks(folder: Path) -> Path | None:
    """Find SentEval's folder of tasks inside a folder; None without one."""
    found = sorted(folder.rglob("STS/"))
    return found[0].parent if found else None


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an untrusted tar archive, plain or compressed, into a folder.

    Raises:
        DataError: the archive is damaged, too large or unsafe, as it contains a path outside the
            folder, a link or a device. Some files may remain in the folder.
    """
    most = max(1 << 20, MOST_RATIO * archive.stat().st_size)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, _bounded(tar, most), filter="data")
    except Exception as error:  # tarfile and the decoders raise many types
        if getattr(error, "errno", None) is not None:  # of this machine, such as a full disk
            raise
        reason = f"is not an archive, is damaged, or is not safe to unpack: {reason_of(error)}"
        raise DataError(f"{archive} {reason}") from error


def _bounded(tar: tarfile.TarFile, most: int) -> Iterator[tarfile.TarInfo]:
    """Yield an archive's members; raise ValueError for a link, or for more than ``most`` bytes."""
    total = 0
    for member in tar:
        total += tarfile.BLOCKSIZE + member.size  # an empty file takes room, too
        if total > most:
            raise ValueError(f"more than {most:,} bytes")
        # older Pythons' filter can be tricked by links
        if not (member.isreg() or member.isdir()):
            raise ValueError(f"{member.name!r} is neither a file nor a folder")
        yield member
