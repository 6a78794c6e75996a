"""Checkpoint folders: complete or passed over."""

import json
import shutil

import pytest

from dystress_text.errors import UserError
from dystress_text.files.whole import MANIFEST, damage_of, seal
from dystress_text.training.checkpoints import newest_complete, remove_old
from dystress_text.training.run_folder import STAGING, checkpoint_folder, checkpoint_folders


def write(output, step, content=b"weights"):
    staging = output / STAGING
    (staging / "part").mkdir(parents=True)
    (staging / "model.bin").write_bytes(content)
    (staging / "part" / "state.json").write_text("{}")
    seal(staging, checkpoint_folder(output, step))
    return checkpoint_folder(output, step)


def test_the_newest_is_found_by_its_step_and_not_by_its_name(tmp_path):
    for step in (9, 100, 20):
        write(tmp_path, step)
    (tmp_path / "checkpoint-mine").mkdir()
    (tmp_path / "checkpoint-500").write_text("a file")
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["checkpoint-100", "checkpoint-20", "checkpoint-9"]
    assert newest_complete(tmp_path) == tmp_path / "checkpoint-100"
    assert not (tmp_path / STAGING).exists()
    assert newest_complete(tmp_path / "nowhere") is None


def torn(path):
    path.write_bytes(path.read_bytes()[:-1])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.bin", "part/state.json", MANIFEST])
@pytest.mark.parametrize("harm", [torn, flipped, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_one_is_passed_over_with_a_warning(tmp_path, name, harm):
    write(tmp_path, 1)
    newest = write(tmp_path, 2)
    if name == MANIFEST and harm is torn:
        pytest.skip("the last byte is the end of the line")
    harm(newest / name)
    if name == MANIFEST and harm is flipped and damage_of(newest) is None:
        pytest.skip("a space became another character that JSON takes")
    with pytest.warns(UserWarning, match="checkpoint-2 is damaged and passed over: "):
        assert newest_complete(tmp_path) == tmp_path / "checkpoint-1"


def test_all_damaged_is_an_error(tmp_path):
    torn(write(tmp_path, 1) / "model.bin")
    damaged = pytest.warns(UserWarning, match="passed over")
    with damaged, pytest.raises(UserError, match=r"every checkpoint in .* is damaged"):
        newest_complete(tmp_path)


@pytest.mark.parametrize(
    "manifest",
    ["[]", "null", "{}", '{"files": 3}', '{"files": {"model.bin": 7}}', '{"files": {"model.bin": ["a"]}}', "\0"],
)
def test_a_manifest_of_another_form_is_damage(tmp_path, manifest):
    folder = write(tmp_path, 1)
    (folder / MANIFEST).write_text(manifest)
    assert damage_of(folder) is not None


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname"])
def test_a_manifest_reads_nothing_outside(tmp_path, name):
    folder = write(tmp_path, 1)
    (tmp_path / "secret").write_text("x")
    (folder / MANIFEST).write_text(json.dumps({"files": {name: [1, "0"]}}))
    assert "outside the folder" in damage_of(folder)


def test_the_same_step_again_takes_the_place_of_the_first(tmp_path):
    write(tmp_path, 1, b"old")
    assert (write(tmp_path, 1, b"new") / "model.bin").read_bytes() == b"new"
    assert newest_complete(tmp_path) == tmp_path / "checkpoint-1"


def test_only_the_newest_are_kept(tmp_path):
    for step in range(1, 6):
        write(tmp_path, step)
    (tmp_path / "checkpoint-mine").mkdir()
    remove_old(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-5", "checkpoint-mine"]


def test_what_was_removed_in_part_is_passed_over(tmp_path):
    write(tmp_path, 1)
    shutil.rmtree(write(tmp_path, 2) / "part")
    with pytest.warns(UserWarning, match=r"state\.json is missing"):
        assert newest_complete(tmp_path) == tmp_path / "checkpoint-1"
