"""Checkpoint folders: complete or passed over, found by their step.

A checkpoint is written under another name, gets a manifest with the size and checksum of each of its files, goes to the
disk, and is then renamed. Whatever happens on the way, the checkpoints before it stay as they are.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

from dystress_text.errors import UserError
from dystress_text.files.whole import damage_of
from dystress_text.training.run_folder import checkpoint_folders


def newest_complete(output: Path) -> Path | None:
    """The newest checkpoint of a run that is as it was written; None if the run has no checkpoints.

    A damaged one is passed over with a warning.

    Raises:
        UserError: there are checkpoints, and all of them are damaged.
    """
    folders = checkpoint_folders(output)
    for folder in folders:
        damage = damage_of(folder)
        if damage is None:
            return folder
        warnings.warn(f"{folder} is damaged and passed over: {damage}", stacklevel=2)
    if folders:
        raise UserError(f"--resume_from_checkpoint: every checkpoint in {str(output)!r} is damaged")
    return None


def remove_old(output: Path, keep: int) -> None:
    """Remove all checkpoints but the newest ``keep``."""
    for folder in checkpoint_folders(output)[keep:]:
        shutil.rmtree(folder, ignore_errors=True)
