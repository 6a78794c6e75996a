"""Files and folders that are written completely or not at all."""

import errno
import multiprocessing
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import build_tokenizer
from processes import finish
from safetensors.torch import save_file

from dystress_text.io.atomic import atomic_files, atomic_folder, recover


def make_folder(folder, text):
    folder.mkdir()
    (folder / "content").write_text(text)
    return folder


def fail(folder):
    (folder / "content").write_text("new")
    raise RuntimeError("mine")


def test_failure_leaves_the_old_folder(tmp_path):
    old = make_folder(tmp_path / "final", "old")
    with pytest.raises(RuntimeError, match="mine"), atomic_folder(old) as staging:
        fail(staging)
    assert (old / "content").read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_recovers_from_a_kill_between_renames(tmp_path, monkeypatch):
    final, rename = make_folder(tmp_path / "final", "old"), Path.rename

    def killed(path, target):
        if target == final:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), atomic_folder(final):
        patch.setattr(Path, "rename", killed)
    assert not final.exists()
    recover(final)
    assert (final / "content").read_text() == "old"


LARGE = torch.rand(500_000)
WRITERS = {
    "safetensors": lambda folder: save_file({"a": LARGE}, folder / "a"),
    "torch": lambda folder: torch.save({"a": LARGE}, folder / "a"),
    "numpy": lambda folder: np.savez(folder / "a.npz", LARGE.numpy()),
    "tokenizers": lambda folder: [
        build_tokenizer().save_pretrained(folder / f"{i}") for i in range(999)
    ],
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("writing", [atomic_folder, atomic_files])
def test_full_disk_is_an_os_error(writer, writing, small_disk):
    final = small_disk(1_000_000) / "final"
    with pytest.raises(OSError, match="No space left") as caught, writing(final) as folder:
        WRITERS[writer](folder)
    assert caught.value.errno == errno.ENOSPC


def fill(writer, folder):
    """Write in a new process where no file may be larger than 100,000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        with atomic_folder(folder / "final") as staging:
            WRITERS[writer](staging)
    except OSError as error:
        os._exit(error.errno)


@pytest.mark.parametrize("writer", ["safetensors", "torch", "numpy"])
def test_file_size_limit_is_an_os_error(writer, tmp_path):
    process = multiprocessing.get_context("fork").Process(target=fill, args=(writer, tmp_path))
    process.start()
    assert finish(process) == errno.EFBIG
