"""A folder of one's own through the programs: odd pictures, lists of training images, and what is refused."""

import json
import re
import shutil

import pytest
from conftest import reset_accelerator
from PIL import Image
from vision_cases import write_parquet

from vision import evaluate, train

FLAGS = ["--architecture=resnet10_narrow", "--stem=imagenet", "--image_size=48", "--train_batch_size=2",
         "--max_steps=2", "--mixed_precision=no", "--knn_k=2"]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Photos of 120 x 100, of two classes: in gray, CMYK, colours and with a palette."""
    for split in ("train", "test"):
        for name, modes in (("cat", ("L", "CMYK", "RGB")), ("dog", ("RGB", "RGB", "P"))):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for number, mode in enumerate(modes):
                photo = Image.effect_noise((120, 100), 60).convert("RGB").convert(mode)
                photo.save(tmp_path / "photos" / split / name / f"{number}.{'png' if mode == 'P' else 'jpg'}")
    return tmp_path / "photos"


@pytest.fixture
def run(capsys, folder):
    """What a program says, and its last line of errors, which begins with its name; training writes to out/."""

    def run(*flags, program=train):
        own = [f"--output_dir={folder.parent / 'out'}", *FLAGS] if program is train else []
        code = program.main([f"--dataset={folder}", *own, *flags])
        reset_accelerator()
        said = capsys.readouterr()
        line = said.err.strip().split("\n")[-1]
        assert (code, line.startswith(f"{program.__name__.split('.')[1]}.py: error: ")) in ((0, False), (2, True))
        return line if code else said.out

    return run


def test_a_listed_choice_is_on_record_and_evaluated(folder, run, capsys):
    listed, out = folder.parent / "tail.txt", folder.parent / "out"
    listed.write_text("train/cat/0.jpg 7\ntrain/cat/1.jpg 7\ntrain/dog/2.png 3\n")
    words = "listed in tail.txt, 3 images"
    assert f"3 images of photos ({words}), 2 classes" in run(f"--train_list={listed}")
    assert json.loads((out / "run.json").read_text())["data"]["variant"] == words
    assert words in (out / "report.html").read_text()
    assert evaluate.main([f"--model={out}", "--tasks=knn", "--k=2"]) == 0
    assert f"photos ({words}), 6 test images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "message"),
    [("train/cat/0.jpg\ntrain/cow/1.jpg 3\ncat/9.jpg", "2 files that .*train does not have.* train/cow/1.jpg"),
     ("\n \n", "names: none"), ("\udcff", "cannot be read"), (None, "cannot be read: .*No such file"),
     ("dog/0.jpg", "one image only")],
)  # fmt: skip
def test_lists_that_cannot_be_used_are_one_line(lines, message, folder, run):
    listed = folder.parent / "list.txt"
    if lines is not None:
        listed.write_text(lines, errors="surrogateescape")
    assert re.search(message, run(f"--train_list={listed}"))


def test_data_without_files_of_images_take_no_list(folder, run):
    write_parquet(folder.parent / "shards" / "train-0.parquet", [1, 2], [0, 1])
    for data in ("shapes", folder.parent / "shards"):
        assert "--train_list: " in run(f"--dataset={data}", "--train_list=list.txt")


def test_a_truncated_photo_is_one_line(folder, run):
    path = folder / "train" / "dog" / "1.jpg"
    path.write_bytes(path.read_bytes()[:900])
    assert re.search(r"1\.jpg cannot be decoded: .*truncated.*skip_corrupt", run())


def test_one_class_trains_and_is_not_evaluated(folder, run):
    for split in ("train", "test"):
        shutil.rmtree(folder / split / "cat")
    assert "trained" in run()
    assert "are of one class" in run(f"--model={folder.parent / 'out'}", program=evaluate)
