"""Texts: Wiki1M and SentEval's test sets, checked and copied."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import DataError
from dystress_text.evaluation.catalogue import STSB_DEV, SUITES, Task
from dystress_text.evaluation.readers import read_sts_benchmark
from dystress_text.files.prepared_data import Manifest, read_manifest
from dystress_text.files.text_lines import UNPACK_ERRORS, open_text
from dystress_text.preparation.data_sets import WIKI1M_FIRST_LINE, WIKI1M_LINES, WIKI1M_VARIANTS, DataSet
from dystress_text.preparation.unpack import UnpackLimits, unpack
from dystress_text.simcse.training_text import WIKI1M

STSB_DEV_PAIRS = 1500
# further files that are copied where the source has them
_EXTRA = {
    "STS-B": ("STS/STSBenchmark/sts-train.csv", "STS/STSBenchmark/sts-dev.csv", "STS/STSBenchmark/LICENSE.txt"),
    "SICK-R": ("SICK/SICK_train.txt", "SICK/SICK_trial.txt"),
}


def wiki1m(file: Path, source: str, variant: str | None, staging: Path) -> Manifest:
    """Copy the training text, unpacked, and check that it is the published one.

    Raises:
        DataError: it is neither the published text nor a known variant, and the user does not name a variant.
    """
    digest, lines, first, last = hashlib.sha256(), 0, b"", b""
    try:
        with (
            open_text(file) as text,
            (staging / WIKI1M).open("wb") as copy,
            progress_bar(desc="wiki1m", unit="B", unit_scale=True) as bar,
        ):
            while block := text.read(1 << 20):
                first = first or block[:200]
                last = block[-1:]
                digest.update(block)
                lines += block.count(b"\n")
                copy.write(block)
                bar.update(len(block))
    except UNPACK_ERRORS as error:
        raise DataError(f"wiki1m: {file} is damaged: {error}") from error
    lines += last not in (b"", b"\n")
    published = first.split(b"\n")[0].strip() == WIKI1M_FIRST_LINE.encode()
    known = WIKI1M_VARIANTS.get(digest.hexdigest())
    variant = variant or known
    if variant is None and not (published and lines == WIKI1M_LINES):
        raise DataError(
            f"wiki1m: {file} has {lines:,} lines ({WIKI1M_LINES:,} expected) and "
            f"{'begins' if published else 'does not begin'} as SimCSE's text does; --variant NAME says that it is "
            "knowingly another text"
        )
    return Manifest("wiki1m", source, variant, counts={"lines": lines})


def senteval(entry: DataSet, path: Path, source: str, variant: str | None, before: Path, staging: Path) -> Manifest:
    """Copy the files of every task that is whole, from a folder or an archive; keep what was ready before.

    Raises:
        DataError: the archive is hostile or damaged, or no task is whole.
    """
    with tempfile.TemporaryDirectory(dir=staging.parent, prefix=f".{staging.name}-") as unpacked:
        if path.is_file():
            unpack(path, Path(unpacked) / "archive", UnpackLimits())
            path = _downstream(Path(unpacked) / "archive", path)
        tasks = [task for group in SUITES["senteval"].values() for task in group]
        wanted = [task for task in tasks if entry.name == "senteval" or task.name == "STS-B"]
        not_ready: dict[str, str] = {}
        for task in tasks:
            places = [path, before] if task in wanted else [before]
            reason = _copy_task(task, places, staging)
            if reason is not None:
                not_ready[task.name] = reason
    missing = [task.name for task in wanted if task.name in not_ready]
    if len(missing) == len(wanted):
        raise DataError(f"{entry.name}: nothing usable in {source}: {not_ready[wanted[0].name]}")
    old = read_manifest(before)
    return Manifest("senteval", source, variant or (old.variant if old else None), not_ready=not_ready)


def _copy_task(task: Task, places: list[Path], staging: Path) -> str | None:
    """Copy a task's files from the first place where they are whole; else say what is wrong in the first one."""
    reason = None
    for place in places:
        try:
            task.read(place)
        except DataError as error:
            reason = reason or str(error).replace(f"{place}/", "")
            continue
        if task.name == "STS-B" and (problem := _dev_problem(place)) is not None:
            reason = reason or problem
            continue
        for name in (*task.files, *_EXTRA.get(task.name, ())):
            if (place / name).is_file():
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(place / name, staging / name)
        return None
    return reason


def _dev_problem(place: Path) -> str | None:
    """What is wrong with STS-B's dev split, by which training chooses its model."""
    try:
        pairs = len(read_sts_benchmark(place / STSB_DEV))
    except DataError as error:
        return str(error).replace(f"{place}/", "")
    return None if pairs == STSB_DEV_PAIRS else f"{STSB_DEV} has {pairs:,} pairs, {STSB_DEV_PAIRS:,} expected"


def _downstream(folder: Path, archive: Path) -> Path:
    """The folder of an unpacked archive that holds the tasks."""
    found = sorted((path.parent for path in folder.rglob("STS") if path.is_dir()), key=lambda path: len(path.parts))
    if not found:
        raise DataError(f"senteval: {archive} holds no folder STS")
    return found[0]
