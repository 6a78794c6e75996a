"""Files and folders that are written whole or not at all."""

import pytest

from dystress_text.files.whole import whole_folder


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
