"""Folders whose files are replaced when all of the new ones are complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODEL_STAGING = ".model-writing"


@contextmanager
def replaced_files(folder: str | Path) -> Iterator[Path]:
    """A new folder to write to; afterwards its files take the places of those of the same names in ``folder``.

    After an error inside, ``folder`` is as it was. Other files in it stay. The new files are readable to all whom the
    user's umask lets read.

    Raises:
        OSError: something cannot be written.
    """
    target = Path(folder)
    staging = target / MODEL_STAGING
    shutil.rmtree(staging, ignore_errors=True)  # of a program that was killed
    staging.mkdir(parents=True)
    try:
        yield staging
        mode = _usual_mode(staging)
        for file in sorted(path for path in staging.rglob("*") if path.is_file()):
            place = target / file.relative_to(staging)
            place.parent.mkdir(exist_ok=True, parents=True)
            file.chmod(mode)  # safetensors writes for the owner's eyes alone
            file.replace(place)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _usual_mode(folder: Path) -> int:
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    return mode
