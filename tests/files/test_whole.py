"""Files and folders that are written whole or not at all."""

from pathlib import Path

import pytest

from dystress_text.files.whole import recover, whole_folder


def make_folder(folder, text):
    folder.mkdir()
    (folder / "content").write_text(text)
    return folder


def test_a_failure_leaves_the_folder_as_it_was(tmp_path):
    old = make_folder(tmp_path / "final", "old")

    def fail():
        with whole_folder(old) as staging:
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

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), whole_folder(final):
        patch.setattr(Path, "rename", killed)
    assert not final.exists()
    recover(final)
    assert (final / "content").read_text() == "old"
    make_folder(tmp_path / ".final.replaced", "older")
    recover(final)
    assert (final / "content").read_text() == "old"
