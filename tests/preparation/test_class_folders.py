"""Sets for fine-tuning, from small copies of their layouts to class folders; and the recipe for ImageNet's archives."""

import csv
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from dystress_text.errors import DataError
from dystress_text.files.prepared_data import variant_of
from dystress_text.preparation.__main__ import main
from dystress_text.preparation.class_folders import LABELLED_SETS
from dystress_text.preparation.data_sets import Request
from dystress_text.preparation.prepare import prepare, verify
from vision.data.sources import find_images
from vision.evaluation.fine_tuning import NAMED_WEIGHTS, weights_of

ROOT = Path(__file__).resolve().parents[2]


def image(path, split, class_name):
    """A file whose content is where it belongs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{split}/{class_name}")


def table(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def mura(folder):
    for split, folder_name in (("train", "train"), ("test", "valid")):
        for part, patient, label in (("WRIST", 6, "positive"), ("WRIST", 7, "negative"), ("HAND", 6, "negative")):
            study = folder / folder_name / f"XR_{part}" / f"patient0000{patient}" / f"study1_{label}"
            image(study / "image1.png", split, label)
            image(study / "image2.png", split, label)
            image(study / "._image1.png", "no", "image")  # as macOS leaves them
    table(folder / "train_labeled_studies.csv", [["not read", 1]])
    return {"train": {"negative": 4, "positive": 2}, "test": {"negative": 4, "positive": 2}}


def chaoyang(folder):
    names = ["normal", "serrated", "adenocarcinoma", "adenoma"]
    for split, labels in (("train", [0, 1, 2, 2, 3]), ("test", [3, 0, 1, 2])):
        rows = [{"name": f"{split}/54{i}-IMG018x011-{i}.JPG", "label": label} for i, label in enumerate(labels)]
        for row in rows:
            image(folder / row["name"], split, names[row["label"]])
        (folder / f"{split}.json").write_text(json.dumps(rows))
    one = dict.fromkeys(names, 1)
    return {"train": {**one, "adenocarcinoma": 2}, "test": one}


def isic2016(folder):
    for part, words in (("Training", ("benign", "malignant")), ("Test", ("0.0", "1.0"))):
        rows = [(f"ISIC_000000{i}", words[i == 2]) for i in range(4)]
        for i, (name, _) in enumerate(rows):
            file = folder / f"ISBI2016_ISIC_Part3_{part}_Data" / f"{name}.jpg"
            image(file, {"Training": "train"}.get(part, "test"), ("benign", "malignant")[i == 2])
        table(folder / f"ISBI2016_ISIC_Part3_{part}_GroundTruth.csv", rows)
    return {split: {"benign": 3, "malignant": 1} for split in ("train", "test")}


def mhist(folder):
    head = ("Image Name", "Majority Vote Label", "Number of Annotators who Selected SSA (Out of 7)", "Partition")
    rows = [("MHIST_aaa.png", "SSA", 6, "train"), ("MHIST_aab.png", "HP", 0, "train"),
            ("MHIST_aac.png", "HP", 3, "test"), ("MHIST_aad.png", "SSA", 4, "test")]  # fmt: skip
    for name, label, _, split in rows:
        image(folder / "images" / name, split, label)
    table(folder / "annotations.csv", [head, *rows])
    return {split: {"HP": 1, "SSA": 1} for split in ("train", "test")}


def flowers102(folder):
    labels = np.tile(np.arange(1, 103, dtype=np.uint8), 3)  # images 1 to 306
    for number, label in enumerate(labels, 1):
        image(folder / "jpg" / f"image_{number:05}.jpg", ("test", "val", "train")[(number - 1) // 102], f"{label:03}")
    savemat(folder / "imagelabels.mat", {"labels": labels[None]})
    numbers = np.arange(1, 307, dtype=np.uint16).reshape(3, 1, 102)
    savemat(folder / "setid.mat", {"tstid": numbers[0], "valid": numbers[1], "trnid": numbers[2]})
    one = {f"{number:03}": 1 for number in range(1, 103)}
    return {"train": one, "val": one, "test": one}


LAYOUTS = {"mura": mura, "chaoyang": chaoyang, "isic2016": isic2016, "mhist": mhist, "flowers102": flowers102}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "prepared"


@pytest.mark.parametrize("name", LABELLED_SETS)
def test_each_image_lies_in_its_class(tmp_path, root, name):
    (tmp_path / "in").mkdir()
    expected = LAYOUTS[name](tmp_path / "in")
    manifest = prepare(name, Request(root, tmp_path / "in", "toy"))
    assert manifest.counts == {split: sum(classes.values()) for split, classes in expected.items()}
    found = {
        split.name: {place.name: len(list(place.iterdir())) for place in split.iterdir()}
        for split in (root / name).iterdir()
        if split.is_dir()
    }
    assert found == expected
    assert all((root / name / file.read_text()) == file.parent for file in (root / name).glob("*/*/*"))
    assert verify(name, root) == []
    assert variant_of(root / name) == "toy"
    for split in ("train", "test"):  # and this is what the programs read
        images = find_images(name, split, str(root))
        assert images.classes == tuple(sorted(LABELLED_SETS[name].classes))
        named = [f"{split}/{images.classes[label]}" for label in images.labels]
        assert named == [file.read_text() for file in images.pictures.paths]
    if name in NAMED_WEIGHTS:
        weights = dict(zip(images.classes, weights_of(NAMED_WEIGHTS[name], images.classes).tolist(), strict=True))
        assert {known: pytest.approx(weights[known]) for known in NAMED_WEIGHTS[name]} == NAMED_WEIGHTS[name]


def without(folder, name):
    (folder / name).unlink()


def changed(folder, name, old, new):
    (folder / name).write_text((folder / name).read_text().replace(old, new))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: without(folder, "annotations.csv"), "mhist: .* is of another layout: .*annotations.csv"),
        (lambda folder: changed(folder, "annotations.csv", "SSA", "../../SSA"), "is of train/../../SSA, which the set"),
        (lambda folder: without(folder, "images/MHIST_aab.png"), "mhist: No such file or directory .*_aab.png"),
    ],
)  # fmt: skip
def test_other_layouts_are_one_line(tmp_path, root, capsys, damage, message):
    mhist(tmp_path / "in")
    damage(tmp_path / "in")
    arguments = ["mhist", f"--from={tmp_path / 'in'}", "--variant=toy", f"--data_dir={root}"]
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


# ---- ImageNet's archives --------------------------------------------------------------------------------------------


def archive(file, members):
    with tarfile.open(file, "w:gz" if file.suffix == ".gz" else "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_the_recipe_for_imagenets_archives_runs_as_printed(tmp_path, root):
    section = (ROOT / "data" / "README.md").read_text().split("## ImageNet", 1)[1].split("\n## ")[0]
    (shell,), (python,) = (re.findall(rf"```{kind}\n(.*?)```", section, re.S) for kind in ("bash unpack", "python"))
    wnids = ["n01440764", "n01443537", "n15075141"]
    inner = io.BytesIO()
    for wnid in wnids:
        archive(tmp_path / f"{wnid}.tar", {f"{wnid}_{i}.JPEG": wnid.encode() for i in range(2)})
    archive(tmp_path / "ILSVRC2012_img_train.tar", {f"{w}.tar": (tmp_path / f"{w}.tar").read_bytes() for w in wnids})
    truth = [3, 1, 2, 1]  # numbers of synsets, in the order of the images
    numbered = ["n01443537", "n15075141", "n01440764"]  # not in the order of their names
    images = {f"ILSVRC2012_val_{i:08}.JPEG": numbered[n - 1].encode() for i, n in enumerate(truth, 1)}
    archive(tmp_path / "ILSVRC2012_img_val.tar", images)
    synsets = np.zeros(4, dtype=[("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object)])
    synsets[:] = [(i + 1, wnid, 0) for i, wnid in enumerate(numbered)] + [(4, "n00001740", 3)]
    savemat(inner, {"synsets": synsets})
    archive(tmp_path / "ILSVRC2012_devkit_t12.tar.gz", {
        "ILSVRC2012_devkit_t12/data/meta.mat": inner.getvalue(),
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": "".join(f"{n}\n" for n in truth).encode(),
    })  # fmt: skip
    subprocess.run(["bash", "-euo", "pipefail", "-c", shell], cwd=tmp_path, check=True)
    with pytest.raises(DataError, match=r"imagenet1k: train/ and val/ .* data/README.md says"):
        prepare("imagenet1k", Request(root, tmp_path, "toy"))
    subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True)
    for split, count in (("train", 6), ("val", 4)):
        files = list((tmp_path / split).glob("*/*.JPEG"))
        assert len(files) == count
        assert all(file.read_text() == file.parent.name for file in files)
    assert prepare("imagenet1k", Request(root, tmp_path, "toy")).counts == {"train": 6, "val": 4}
