"""Decide where a run lives, by the state of the run that its folder already holds.

A run is new, interrupted (it has a checkpoint) or finished: ``state`` in ``run.json``. Only
``--overwrite_output_dir`` replaces a finished run. The new run is trained in a folder inside the
old one's, and its files then replace the old ones. An interrupted replacement is finished at the
next start.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dystress_text.errors import ParameterError
from dystress_text.io.atomic import MODEL_STAGING, move_files
from dystress_text.io.lock import LOCK, locked
from dystress_text.training import run_folder
from dystress_text.training.run_folder import RECORD, checkpoint_folders, read_record, write_record
from dystress_text.training.run_record import FINISHED, INTERRUPTED, NOT_STARTED, state_of
from dystress_text.training.settings import TrainingSettings

REPLACING = ".replacing"  # a run that is to replace the one in the folder
TRAINED = ".replacing-trained"  # the same folder while its files are moved


@contextmanager
def locked_folder(output: Path) -> Iterator[None]:
    """Lock a folder, and finish an interrupted replacement."""
    with locked(output / LOCK):
        if (output / TRAINED).is_dir():
            finish_replacement(output)
        yield


def choose_folder(
    output: Path,
    settings: TrainingSettings,
    requested: Mapping[str, Any],
    content: Callable[[], Mapping[str, str]] = dict,
) -> tuple[Path, dict[str, Any] | None]:
    """Return the folder of a run, and its record if it has finished and is asked to resume.

    Write nothing. A replacement is resumed only with the options that it was started with.

    Args:
        output: the user's ``--output_dir``.
        settings: of the run.
        requested: all options by name.
        content: returns checksums of what the options name, as :func:`finished_record` needs them.

    Raises:
        ParameterError: the folder may not be used.
    """
    record = read_record(output)
    is_run = record.get("program") in run_folder.PROGRAMS
    occupied = output.is_dir() and any(path.name != LOCK for path in output.iterdir())
    if not is_run:
        if occupied or settings.resume_from_checkpoint == "yes":
            reason = "holds no run of this program; name another folder"
            raise ParameterError("output_dir", f"{str(output)!r} {reason}")
        return output, None
    if settings.overwrite_output_dir:
        return output / REPLACING, None
    if not settings.resumes:
        state = state_of(record)
        reason = f"holds a run ({state}); add --overwrite_output_dir or --resume_from_checkpoint"
        raise ParameterError("output_dir", f"{str(output)!r} {reason}")
    replacing = read_record(output / REPLACING)
    if replacing and not run_folder.changed_options(replacing, requested):
        return output / REPLACING, None
    return output, finished_record(output, requested, content)


def finished_record(
    folder: Path,
    requested: Mapping[str, Any],
    content: Callable[[], Mapping[str, str]] = dict,
) -> dict[str, Any] | None:
    """Return the record of the run in a folder; None if it has not finished.

    Args:
        folder: of the run.
        requested: all options by name.
        content: returns checksums of what the options name, which the record has as ``content``;
            called for a finished run with these options.

    Raises:
        ParameterError: the run has other options, or read other data or models.
    """
    record = read_record(folder)
    if state_of(record) != FINISHED:
        return None
    changed = run_folder.changed_options(record, requested)
    if not changed and "content" in record:  # 0.2 did not record it
        changed = run_folder.differences(record["content"], content())
    if changed:
        further = f"--model_name_or_path {folder} --output_dir NEW trains its model further"
        reason = f"holds a finished run of other settings or data ({changed}); {further}"
        raise ParameterError("output_dir", f"{str(folder)!r} {reason}")
    return record


def prepare_folder(folder: Path, settings: TrainingSettings, record: dict[str, Any]) -> None:
    """Create the folder of a run and write its record; without a checkpoint, start again."""
    if folder.name == REPLACING and not settings.resumes:
        shutil.rmtree(folder, ignore_errors=True)  # an abandoned replacement
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / run_folder.STAGING, ignore_errors=True)  # from a killed run
    if settings.resumes and checkpoint_folders(folder):
        record["state"] = INTERRUPTED
    else:
        record["state"] = NOT_STARTED
        _remove_run(folder)
    write_record(folder, record)


def finish_replacement(output: Path) -> None:
    """Replace the run in a folder by the trained one inside it. Safe to repeat after a kill."""
    inside = output / TRAINED
    if (output / REPLACING).is_dir():
        (output / REPLACING).rename(inside)
    if (inside / RECORD).is_file():  # run.json is moved first, after the old run is removed
        _remove_run(output, {path.name for path in inside.iterdir()})
        (inside / RECORD).replace(output / RECORD)
    move_files(inside, output)
    shutil.rmtree(inside)


def _remove_run(folder: Path, replaced: Collection[str] = ()) -> None:
    """Remove the files of a run except those in ``replaced``; keep the user's own."""
    for pattern in run_folder.FILES:
        for path in folder.glob(pattern):
            if path.name not in replaced:
                path.unlink()
    tracker = folder / run_folder.TRACKER_FOLDER / "dystress"
    for inner in (*checkpoint_folders(folder), folder / MODEL_STAGING, tracker):
        shutil.rmtree(inner, ignore_errors=True)
