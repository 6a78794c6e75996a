"""Verify and copy Wiki1M and SentEval's test sets."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dystress_text.data.texts import WIKI1M
from dystress_text.errors import DataError, reason_of
from dystress_text.evaluation.catalogue import STSB_DEV, SUITES, Task
from dystress_text.evaluation.readers import read_sts_benchmark
from dystress_text.io.prepared_data import Manifest
from dystress_text.io.text_lines import UNPACK_ERRORS, open_text
from dystress_text.preparation.data_sets import DataSet, Request
from dystress_text.preparation.prepare import files_of

MOST_MEMBERS = 500_000  # of an archive
MOST_BYTES = 32 << 30  # unpacked
# unpacked bytes per byte of the archive; a megabyte is always allowed
MOST_RATIO = 100
STSB_DEV_PAIRS = 1500
# optional files
_EXTRA = {
    "STS-B": (
        "STS/STSBenchmark/sts-train.csv",
        "STS/STSBenchmark/sts-dev.csv",
        "STS/STSBenchmark/LICENSE.txt",
    ),
    "SICK-R": ("SICK/SICK_train.txt", "SICK/SICK_trial.txt"),
}


def build(entry: DataSet, request: Request, staging: Path) -> Manifest:
    """Put the verified files of a set into a folder."""
    given = request.source
    source = str(given or entry.repository)
    if entry.name == "wiki1m":
        return wiki1m(files_of(entry, request)[0], source, request, staging)
    tasks = folder_of_tasks(given) if given is not None and given.is_dir() else None
    return senteval(tasks or files_of(entry, request)[0], source, request, staging)


def wiki1m(file: Path, source: str, request: Request, staging: Path) -> Manifest:
    """Unpack the training text and verify that it is the published one."""
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


def senteval(path: Path, source: str, request: Request, staging: Path) -> Manifest:
    """Copy the files of every complete task from a folder or an archive."""
    with tempfile.TemporaryDirectory(dir=staging.parent, prefix=f".{staging.name}-") as unpacked:
        if path.is_file():
            unpack(path, Path(unpacked))
            path = folder_of_tasks(Path(unpacked)) or path
        tasks = [task for group in SUITES["senteval"].values() for task in group]
        not_ready = {}
        for task in tasks:
            reason = _copy_task(task, path, staging)
            if reason is not None:
                not_ready[task.name] = reason
    if len(not_ready) == len(tasks):
        raise DataError(f"senteval: nothing usable in {source}: {not_ready[tasks[0].name]}")
    return Manifest("senteval", source, request.variant, not_ready=not_ready)


def folder_of_tasks(folder: Path) -> Path | None:
    """Return the folder of SentEval's tasks, at most three levels down; None if there is none."""
    for pattern in ("STS", "*/STS", "*/*/STS", "*/*/*/STS"):
        for path in sorted(folder.glob(pattern)):
            if path.is_dir():
                return path.parent
    return None


def _copy_task(task: Task, source: Path, staging: Path) -> str | None:
    """Copy a task's files; return what is wrong with them, if anything."""
    try:
        task.read(source)
        if task.name == "STS-B":
            pairs = len(read_sts_benchmark(source / STSB_DEV))
            if pairs != STSB_DEV_PAIRS:
                raise DataError(f"{STSB_DEV} has {pairs:,} pairs, {STSB_DEV_PAIRS:,} expected")
    except DataError as error:
        return str(error).replace(f"{source}/", "")
    for name in (*task.files, *_EXTRA.get(task.name, ())):
        if (source / name).is_file():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, staging / name)
    return None


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an untrusted tar archive, plain or compressed, into a folder.

    Raises:
        DataError: it is damaged, too large, or unsafe: a path outside the folder, a link, a device.
            Some files may be left in the folder.
    """
    try:
        most = min(MOST_BYTES, max(1 << 20, MOST_RATIO * archive.stat().st_size))
        with tarfile.open(archive) as tar:
            tar.extractall(folder, _bounded(tar, most), filter="data")
            # up to the checksum of the compressed data
            while tar.fileobj is not None and tar.fileobj.read(1 << 20):
                pass
    except Exception as error:  # tarfile and the decoders raise many types
        if getattr(error, "errno", None) is not None:  # of this machine, such as a full disk
            raise
        reason = f"is no archive, is damaged, or is not safe to unpack: {reason_of(error)}"
        raise DataError(f"{archive} {reason}") from error


def _bounded(tar: tarfile.TarFile, most: int) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive; raise ValueError at links and beyond the limits."""
    total = 0
    for number, member in enumerate(tar, 1):
        total += member.size
        if number > MOST_MEMBERS or total > most:
            raise ValueError(f"more than {MOST_MEMBERS:,} members, or {most:,} bytes")
        # older Pythons' filter can be tricked by links
        if not (member.isreg() or member.isdir()):
            raise ValueError(f"{member.name!r} is neither a file nor a folder")
        yield member
