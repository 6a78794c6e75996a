"""Files and folders that are written whole or not at all."""

import pytest

from dystress_text.files.whole import recover, swap, whole_folder


def make_folder(folder, text):
    folder.mkdir()
    (folder / "content").write_text(text)
    return folder


def test_a_program_killed_between_the_two_renames_loses_nothing(tmp_path, monkeypatch):
    old, new = make_folder(tmp_path / "final", "old"), make_folder(tmp_path / "staging", "new")
    rename = type(old).rename

    def killed(path, target):
        if path == new:
            raise KeyboardInterrupt
        rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(type(old), "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            swap(new, old)
    assert not old.exists()
    recover(old)
    assert (old / "content").read_text() == "old"
    swap(new, old)
    recover(old)
    assert (old / "content").read_text() == "new"
    assert list(tmp_path.iterdir()) == [old]


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
