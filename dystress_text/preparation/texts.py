"""Texts: Wiki1M and SentEval's test sets, checked and copied."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from dystress_text.errors import DataError
from dystress_text.evaluation.catalogue import STSB_DEV, SUITES, Task
from dystress_text.evaluation.readers import read_sts_benchmark
from dystress_text.files.prepared_data import Manifest, read_manifest
from dystress_text.files.text_lines import UNPACK_ERRORS, open_text
from dystress_text.preparation.data_sets import DataSet
from dystress_text.preparation.sources import folder_of_tasks
from dystress_text.preparation.unpack import unpack
from dystress_text.simcse.training_text import WIKI1M

WIKI1M_FIRST_LINE = b"YMCA in South Australia"
WIKI1M_LINES = 1_000_000
STSB_DEV_PAIRS = 1500
# further files that are copied where the source has them
_EXTRA = {
    "STS-B": ("STS/STSBenchmark/sts-train.csv", "STS/STSBenchmark/sts-dev.csv", "STS/STSBenchmark/LICENSE.txt"),
    "SICK-R": ("SICK/SICK_train.txt", "SICK/SICK_trial.txt"),
}


def wiki1m(file: Path, source: str, variant: str | None, staging: Path) -> Manifest:
    """Copy the training text, unpacked, and check that it is the published one.

    Raises:
        DataError: it is not, and the user does not name a variant.
    """
    target = staging / WIKI1M
    try:
        with open_text(file) as text, target.open("wb") as copy:
            shutil.copyfileobj(text, copy, 1 << 20)
    except UNPACK_ERRORS as error:
        raise DataError(f"wiki1m: {file} is damaged: {error}") from error
    with target.open("rb") as text:
        first = text.readline(200).strip()
        text.seek(0)
        lines = sum(1 for _ in text)
    if variant is None and (first != WIKI1M_FIRST_LINE or lines != WIKI1M_LINES):
        raise DataError(
            f"wiki1m: {file} has {lines:,} lines ({WIKI1M_LINES:,} expected) and begins with {first[:60]!r} "
            f"({WIKI1M_FIRST_LINE!r} expected); --variant NAME says that it is knowingly another text"
        )
    return Manifest("wiki1m", source, variant, counts={"lines": lines})


def senteval(entry: DataSet, path: Path, source: str, variant: str | None, before: Path, staging: Path) -> Manifest:
    """Copy the files of every task that is whole, from a folder or an archive; keep what was ready before.

    Raises:
        DataError: the archive is hostile or damaged, or no task is whole.
    """
    with tempfile.TemporaryDirectory(dir=staging.parent, prefix=f".{staging.name}-") as unpacked:
        if path.is_file():
            unpack(path, Path(unpacked))
            tasks_in_archive = folder_of_tasks(Path(unpacked))
            if tasks_in_archive is None:
                raise DataError(f"{entry.name}: {path} holds no folder STS")
            path = tasks_in_archive
        tasks = [task for group in SUITES["senteval"].values() for task in group]
        wanted = [task for task in tasks if entry.name == "senteval" or task.name == "STS-B"]
        not_ready: dict[str, str] = {}
        for task in tasks:
            reason = _copy_task(task, [path, before] if task in wanted else [before], staging)
            if reason is not None:
                not_ready[task.name] = reason
    if all(task.name in not_ready for task in wanted):
        raise DataError(f"{entry.name}: nothing usable in {source}: {not_ready[wanted[0].name]}")
    old = read_manifest(before)
    return Manifest("senteval", source, variant or (old.variant if old else None), not_ready=not_ready)


def _copy_task(task: Task, places: list[Path], staging: Path) -> str | None:
    """Copy a task's files from the first place where they are whole; else say what is wrong in the first one."""
    reason = None
    for place in places:
        try:
            task.read(place)
            if task.name == "STS-B" and (pairs := len(read_sts_benchmark(place / STSB_DEV))) != STSB_DEV_PAIRS:
                raise DataError(f"{STSB_DEV} has {pairs:,} pairs, {STSB_DEV_PAIRS:,} expected")
        except DataError as error:
            reason = reason or str(error).replace(f"{place}/", "")
            continue
        for name in (*task.files, *_EXTRA.get(task.name, ())):
            if (place / name).is_file():
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(place / name, staging / name)
        return None
    return reason
