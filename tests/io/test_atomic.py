"""Files and folders that are written completely or not at all."""

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dystress_text.io.atomic import atomic_files, atomic_folder, recover


def make_folder(folder, text):
    folder.mkdir()
    (folder / "content").write_text(text)
    return folder


def write_and_fail(folder):
    (folder / "content").write_text("new")
    raise RuntimeError("mine")


@pytest.mark.parametrize("writing", [atomic_folder, atomic_files])
def test_failure_leaves_the_old_content(writing, tmp_path):
    old = make_folder(tmp_path / "final", "old")
    with pytest.raises(RuntimeError, match="mine"), writing(old) as staging:
        write_and_fail(staging)
    assert (old / "content").read_text() == "old"
    assert list(tmp_path.rglob("*")) == [old, old / "content"]


@pytest.mark.parametrize("writing", [atomic_folder, atomic_files])
def test_full_disk_leaves_the_old_content(writing, small_disk):
    old = make_folder(small_disk(100_000) / "final", "old")
    with pytest.raises(OSError, match="No space left") as caught, writing(old) as staging:
        save_file({"a": torch.rand(50_000)}, staging / "content")  # raises no OSError
    assert caught.value.errno == errno.ENOSPC
    assert (old / "content").read_text() == "old"


def test_recovers_from_a_kill_between_renames(tmp_path, monkeypatch):
    final = make_folder(tmp_path / "final", "old")
    rename = Path.rename

    def killed(path, target):
        if target == final:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), atomic_folder(final):
        patch.setattr(Path, "rename", killed)
    assert not final.exists()
    recover(final)
    assert (final / "content").read_text() == "old"
