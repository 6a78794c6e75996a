"""The recipes of data/README.md for ImageNet's archives and for a set to fine-tune on."""

import csv
import gzip
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hub_server import tar_of
from scipy.io import savemat
from vision_cases import prepare

from dystress_text.errors import DataError
from dystress_text.preparation.data_sets import Request
from vision.data.loading import find_images

README = (Path(__file__).resolve().parents[3] / "data" / "README.md").read_text()
WNIDS = ("n01440764", "n01443537", "n15075141")
NUMBERED = ("n01443537", "n15075141", "n01440764")  # not in the order of their names
TRUTH = (3, 1, 2, 1)  # numbers of synsets, in the order of the images


def snippet(heading, kind):
    section = README.split(f"## {heading}\n", 1)[1].split("\n## ")[0]
    (text,) = re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)
    return text


def write_archives(folder):
    """ImageNet's three, with two training images a class; a file contains its class."""
    classes = {}
    for wnid in WNIDS:
        classes[f"{wnid}.tar"] = tar_of({f"{wnid}_{i}.JPEG": wnid.encode() for i in range(2)})
    (folder / "ILSVRC2012_img_train.tar").write_bytes(tar_of(classes))
    images = {}
    for i, number in enumerate(TRUTH, 1):
        images[f"ILSVRC2012_val_{i:08}.JPEG"] = NUMBERED[number - 1].encode()
    (folder / "ILSVRC2012_img_val.tar").write_bytes(tar_of(images))
    rows = [(i, wnid, 0) for i, wnid in enumerate(NUMBERED, 1)]
    rows.append((4, "n00001740", 3))  # a synset above them
    names = ("ILSVRC2012_ID", "WNID", "num_children")
    synsets = np.array(rows, dtype=[(name, object) for name in names])
    table = io.BytesIO()
    savemat(table, {"synsets": synsets})
    truth = "".join(f"{number}\n" for number in TRUTH)
    kit = {"meta.mat": table.getvalue(), "ILSVRC2012_validation_ground_truth.txt": truth.encode()}
    tar = tar_of({f"ILSVRC2012_devkit_t12/data/{name}": kit[name] for name in kit})
    (folder / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(gzip.compress(tar))


def test_imagenets_archives(tmp_path):
    write_archives(tmp_path)
    shell = snippet("ImageNet", "bash unpack")
    subprocess.run(["bash", "-euo", "pipefail", "-c", shell], cwd=tmp_path, check=True)
    request = Request(tmp_path / "prepared", tmp_path, "toy")
    with pytest.raises(DataError, match=r"data/README\.md"):
        prepare("imagenet1k", request)
    python = snippet("ImageNet", "python")
    subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True)
    for file in (*tmp_path.glob("train/*/*"), *tmp_path.glob("val/*/*")):
        assert file.read_text() == file.parent.name
    assert prepare("imagenet1k", request).counts == {"train": 6, "val": 4}


def test_a_set_for_fine_tuning(tmp_path, monkeypatch):
    rows = [("a.png", "SSA", "train"), ("b.png", "HP", "train"), ("c.png", "HP", "test")]
    (tmp_path / "images").mkdir()
    for name, *_ in rows:
        (tmp_path / "images" / name).touch()
    with (tmp_path / "annotations.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("Image Name", "Majority Vote Label", "Partition"), *rows])
    monkeypatch.chdir(tmp_path)
    exec(snippet("Sets for fine-tuning", "python"), {})
    images = find_images("sorted", "train")
    assert [images.classes[label] for label in images.labels] == ["HP", "SSA"]
    assert [images.files[row][0].name for row in range(len(images))] == ["b.png", "a.png"]
