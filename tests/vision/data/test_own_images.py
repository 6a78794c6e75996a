"""A folder of one's own through the programs: odd pictures, lists of training images, and what is refused."""

import json
import re
import shutil

import pytest
from conftest import reset_accelerator
from PIL import Image
from vision_cases import write_parquet

from vision.evaluate import main as evaluate
from vision.train import main as train

FLAGS = ["--architecture=resnet10_narrow", "--stem=imagenet", "--image_size=48", "--train_batch_size=2",
         "--max_steps=2", "--mixed_precision=no", "--knn_k=2"]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Photos of 120 x 100 in gray, CMYK, a palette and 16 bits among those of colours, of two classes."""
    for split in ("train", "test"):
        for name, modes in (("cat", ("L", "CMYK", "RGB")), ("dog", ("RGB", "RGB", "P"))):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for number, mode in enumerate(modes):
                photo = Image.effect_noise((120, 100), 60).convert("RGB").convert(mode)
                photo.save(tmp_path / "photos" / split / name / f"{number}.{'png' if mode == 'P' else 'jpg'}")
    return tmp_path / "photos"


def run(capsys, folder, *flags, program=train):
    code = program([f"--dataset={folder}", *flags] if folder else [*flags])
    reset_accelerator()
    said = capsys.readouterr()
    return code, said.out, said.err.strip().splitlines()[-1:]


def trained(capsys, folder, *flags):
    return run(capsys, folder, *FLAGS, f"--output_dir={folder.parent / 'out'}", *flags)


def refused(found, message):
    code, _, (line,) = found
    assert code == 2
    assert re.search(r"^(train|evaluate)\.py: error: .*" + message, line)


def test_a_listed_choice_is_on_record_and_evaluated(folder, capsys):
    listed = folder.parent / "tail.txt"
    listed.write_text("train/cat/0.jpg 7\ntrain/cat/1.jpg 7\ntrain/dog/2.png 3\n")
    code, said, _ = trained(capsys, folder, f"--train_list={listed}")
    assert code == 0
    assert "3 images of photos (listed in tail.txt, 3 images), 2 classes" in said
    out = folder.parent / "out"
    assert json.loads((out / "run.json").read_text())["data"]["variant"] == "listed in tail.txt, 3 images"
    assert "listed in tail.txt, 3 images" in (out / "report.html").read_text()
    for flags, images in (([], 3), ([f"--dataset={folder}"], 6)):
        code, said, _ = run(capsys, "", f"--model={out}", "--tasks=knn", "--k=2", *flags, program=evaluate)
        (result,) = [json.loads(file.read_text()) for file in out.glob("vision-*.json")]
        assert (code, result["data"]["train_images"]) == (0, images)


@pytest.mark.parametrize(
    ("lines", "message"),
    [("train/cat/0.jpg\ntrain/cow/1.jpg 3\ncat/9.jpg", "2 files that .*train does not have.* train/cow/1.jpg"),
     ("\n \n", "names: none"), ("\udcff", "cannot be read"), (None, "cannot be read: .*No such file"),
     ("dog/0.jpg", "one image only")],
)  # fmt: skip
def test_lists_that_cannot_be_used_are_one_line(lines, message, folder, capsys):
    listed = folder.parent / "list.txt"
    if lines is not None:
        listed.write_text(lines, errors="surrogateescape")
    refused(trained(capsys, folder, f"--train_list={listed}"), message)


def test_data_without_files_of_images_take_no_list(folder, capsys):
    write_parquet(folder.parent / "shards" / "train-0.parquet", [1, 2], [0, 1])
    for data in ("shapes", folder.parent / "shards"):
        refused(run(capsys, data, "--train_list=list.txt"), "--train_list: ")


def test_a_truncated_photo_is_one_line(folder, capsys):
    path = folder / "train" / "dog" / "1.jpg"
    path.write_bytes(path.read_bytes()[:900])
    refused(trained(capsys, folder), "1.jpg cannot be decoded: .*truncated.*skip_corrupt")


def test_one_class_trains_and_is_not_evaluated(folder, capsys):
    for split in ("train", "test"):
        shutil.rmtree(folder / split / "cat")
    assert trained(capsys, folder)[0] == 0
    refused(run(capsys, folder, f"--model={folder.parent / 'out'}", program=evaluate), "are of one class")
