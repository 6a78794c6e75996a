"""The state of a run, and the folder it lives in.

A run is new, interrupted (it has a checkpoint) or finished: ``state`` in ``run.json``. Only
``--overwrite_output_dir`` replaces a finished run. The new run lives in a folder inside the old
one's, so that the old model stays until the new one is trained; then its files are renamed into the
old run's place. A swap that was interrupted is completed at the next start.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dystress_text.errors import ParameterError
from dystress_text.io.atomic import MODEL_STAGING, move_files
from dystress_text.io.lock import LOCK, locked
from dystress_text.training import run_folder
from dystress_text.training.run_folder import RECORD, checkpoint_folders, read_record, write_record
from dystress_text.training.run_record import FINISHED, INTERRUPTED, NOT_STARTED, state_of
from dystress_text.training.settings import TrainingSettings

REPLACING = ".replacing"  # where a run lives that replaces another one
TRAINED = ".replacing-trained"  # the same folder once its files take the old run's place


@contextmanager
def locked_folder(output: Path) -> Iterator[None]:
    """Let this process alone write a folder; complete a swap that was interrupted."""
    with ExitStack() as held:
        try:
            held.enter_context(locked(output / LOCK))
            if (output / TRAINED).is_dir():
                finish_replacement(output)
        except OSError as error:
            raise _unwritable(error.filename or output, error) from error
        yield


def choose_folder(
    output: Path, settings: TrainingSettings, asked: Mapping[str, Any]
) -> tuple[Path, dict[str, Any] | None]:
    """Return where a run lives, and its record if it is to be resumed and has finished.

    Refuses a folder that may not be used, and writes nothing. A replacement is resumed only with
    the options, ``asked``, that it was begun with.
    """
    record = read_record(output)
    is_run = record.get("program") in run_folder.PROGRAMS
    occupied = output.is_dir() and any(not path.name.startswith(LOCK) for path in output.iterdir())
    if occupied and not settings.resumes and not settings.overwrite_output_dir:
        reason = "is not empty; name another folder"
        if is_run:
            reason = f"holds a run, which is {state_of(record)}; name another folder, or add "
            reason += "--overwrite_output_dir or --resume_from_checkpoint"
        raise ParameterError("output_dir", f"{str(output)!r} {reason}")
    if not is_run:
        if occupied or settings.resume_from_checkpoint == "yes":
            reason = "holds no run of this program; nothing was changed"
            raise ParameterError("output_dir", f"{str(output)!r} {reason}")
        return output, None
    replacing = read_record(output / REPLACING)
    resumes = replacing and not run_folder.changed_options(replacing, asked)
    if settings.overwrite_output_dir or resumes:
        return output / REPLACING, None
    finished = finished_record(output, asked)
    if _would_lose_model(output):
        return output / REPLACING, None
    return output, finished


def finished_record(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the record of the run in a folder if it has finished; refuse one of other options."""
    record = read_record(folder)
    run_folder.check_version(folder, record)
    finished = state_of(record) == FINISHED
    changed = ""
    if finished or _would_lose_model(folder):
        changed = run_folder.changed_options(record, asked)
    if changed:
        run = "a finished run" if finished else "a run"
        reason = f"holds {run} with other settings ({changed}); name another folder"
        raise ParameterError("output_dir", f"{str(folder)!r} {reason}")
    return record if finished else None


def _would_lose_model(output: Path) -> bool:
    """Return whether a run has saved a model, but neither ended nor left a checkpoint."""
    record = read_record(output)
    if not record or state_of(record) == FINISHED or checkpoint_folders(output):
        return False
    return any(any(output.glob(pattern)) for pattern in run_folder.MODEL_FILES)


def prepare_folder(folder: Path, settings: TrainingSettings, record: dict[str, Any]) -> None:
    """Create the folder of a run and write its record; a run without a checkpoint starts anew."""
    try:
        if folder.name == REPLACING and not settings.resumes:
            shutil.rmtree(folder, ignore_errors=True)  # a replacement that was given up
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / run_folder.STAGING, ignore_errors=True)  # of a killed run
        if settings.resumes and checkpoint_folders(folder):
            record["state"] = INTERRUPTED
        else:
            record["state"] = NOT_STARTED
            _remove_run(folder)
        write_record(folder, record)
    except OSError as error:
        raise _unwritable(folder, error) from error


def finish_replacement(output: Path) -> None:
    """Put the trained run inside a folder in the place of the folder's own; safe to repeat."""
    inside = output / TRAINED
    if (output / REPLACING).is_dir():
        (output / REPLACING).rename(inside)
    if (inside / RECORD).is_file():  # it is moved first, once the old run is gone
        _remove_run(output, {path.name for path in inside.iterdir()})
        (inside / RECORD).replace(output / RECORD)
    move_files(inside, output)
    shutil.rmtree(inside)


def _remove_run(folder: Path, replaced: Collection[str] = ()) -> None:
    """Remove the files of a run, except those that ``replaced`` names; the user's own stay."""
    for pattern in run_folder.FILES:
        for path in folder.glob(pattern):
            if path.name not in replaced:
                path.unlink()
    tracker = folder / run_folder.TRACKER_FOLDER / "dystress"
    for inner in (*checkpoint_folders(folder), folder / MODEL_STAGING, tracker):
        shutil.rmtree(inner, ignore_errors=True)


def _unwritable(path: str | Path, error: OSError) -> ParameterError:
    return ParameterError("output_dir", f"cannot write to {str(path)!r}: {error.strerror}")
