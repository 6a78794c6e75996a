"""Checkpoint folders: complete or passed over, found by their step.

A checkpoint is written under another name, gets a manifest with the size and checksum of each of its files, goes to the
disk, and is then renamed. Whatever happens on the way, the checkpoints before it stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dystress_text.errors import UserError

STAGING, MANIFEST = ".checkpoint-writing", "manifest.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def checkpoint_folder(output: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return output / f"checkpoint-{step}"


def checkpoint_folders(output: Path) -> list[Path]:
    """A run's checkpoints, complete or not, the newest one first."""
    found = [(int(match[1]), path) for path in output.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True) if path.is_dir()]


def seal(staging: Path, final: Path) -> None:
    """Make what was written to ``staging`` the complete checkpoint ``final``.

    Raises:
        OSError: a file cannot be read, written or renamed.
    """
    files = sorted(path for path in staging.rglob("*") if path.is_file())
    record = {path.relative_to(staging).as_posix(): [path.stat().st_size, _sha256(path)] for path in files}
    (staging / MANIFEST).write_text(json.dumps({"files": record}, indent=1) + "\n", encoding="utf-8")
    for path in (*files, staging / MANIFEST, staging):
        _to_disk(path)
    shutil.rmtree(final, ignore_errors=True)
    staging.rename(final)
    _to_disk(final.parent)


def damage_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint; None for a complete one."""
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
            if path.stat().st_size != size or _sha256(path) != sha256:
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


def check_optimizer(optimizer: torch.optim.Optimizer, before: Sequence[Mapping[str, Any]]) -> None:
    """See that what an optimizer has taken up fits its parameters; its fused step would not look.

    Args:
        optimizer: with the state of a checkpoint.
        before: its parameter groups as they were made.

    Raises:
        ValueError: other options than before, or a state of another form.
    """
    for group, own in zip(optimizer.param_groups, before, strict=True):
        for name in own.keys() | group.keys():
            fits = isinstance(group.get(name), float) if name == "lr" else group.get(name) == own.get(name)
            if name != "params" and not fits:
                raise ValueError(f"the optimizer's {name} is {group.get(name)!r}")
        states = [optimizer.state[parameter] for parameter in group["params"] if parameter in optimizer.state]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if states and state.keys() != states[0].keys():
                raise ValueError("the optimizer's state is not of one form")
            for name, entry in state.items():
                if isinstance(entry, torch.Tensor):
                    fits = entry.is_floating_point() and (entry.ndim == 0 or entry.shape == parameter.shape)
                else:
                    fits = entry is None or isinstance(entry, int | float)
                if not fits:
                    raise ValueError(f"the optimizer's {name} does not fit its parameter")
        if (
            states
            and isinstance(optimizer, torch.optim.AdamW)
            and not {"step", "exp_avg", "exp_avg_sq"} <= states[0].keys()
        ):
            raise ValueError("the optimizer's state is not whole")


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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
