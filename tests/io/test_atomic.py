"""Files and folders that are written whole or not at all."""

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

from dystress_text.io.atomic import recover, atomic_files, atomic_folder


def make_folder(folder, text):
    folder.mkdir()
    (folder / "content").write_text(text)
    return folder


def test_a_failure_leaves_the_folder_as_it_was(tmp_path):
    old = make_folder(tmp_path / "final", "old")

    def fail():
        with atomic_folder(old) as staging:
            (staging / "content").write_text("half")
            raise ValueError("full")

    with pytest.raises(ValueError, match="full"):
        fail()
    assert (old / "content").read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_a_kill_between_the_two_renames_is_mended(tmp_path, monkeypatch):
    """The old folder is aside, and the new one has not taken its place."""
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
    make_folder(tmp_path / ".final.replaced", "older")
    recover(final)
    assert (final / "content").read_text() == "old"


WRITERS = {
    "safetensors": lambda folder: save_file({"a": LARGE}, folder / "a"),
    "torch": lambda folder: torch.save({"a": LARGE}, folder / "a"),
    "torch, an open file": lambda folder: torch.save({"a": LARGE}, (folder / "a").open("wb")),
    "torch, many files": lambda folder: [
        torch.save(LARGE[:9999], folder / f"{i}") for i in range(99)
    ],
    "numpy": lambda folder: np.save(folder / "a.npy", LARGE.numpy()),
    "numpy, zip": lambda folder: np.savez(folder / "a.npz", LARGE.numpy()),
    "tokenizers": lambda folder: [
        build_tokenizer().save_pretrained(folder / f"{i}") for i in range(999)
    ],
    "python": lambda folder: (folder / "a").write_bytes(bytes(4 * len(LARGE))),
}
LARGE = torch.rand(500_000)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("writing", [atomic_folder, atomic_files])
def test_a_full_disk_is_said_as_such_by_whatever_finds_it(writer, writing, small_disk):
    final = small_disk(1_000_000) / "final"
    with (
        pytest.raises(OSError, match="No space left on device") as caught,
        writing(final) as folder,
    ):
        WRITERS[writer](folder)
    assert caught.value.errno == errno.ENOSPC


def fill(writer, folder):
    """In a new process where no file may be larger than 100,000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        with atomic_folder(folder / "final") as staging:
            WRITERS[writer](staging)
    except OSError as error:
        os._exit(error.errno)


@pytest.mark.parametrize("writer", ["safetensors", "torch", "numpy", "numpy, zip", "python"])
def test_a_limit_on_files_is_said_as_such_though_the_disk_has_space(writer, tmp_path):
    process = multiprocessing.get_context("fork").Process(target=fill, args=(writer, tmp_path))
    process.start()
    assert finish(process) == errno.EFBIG


def test_another_error_stays_what_it_is(tmp_path):
    with pytest.raises(RuntimeError, match="mine"), atomic_folder(tmp_path / "final"):
        raise RuntimeError("mine")
