"""Preparing image sets from local copies: what is checked, and what stays where the user has it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vision_cases import prepare, write_folder

from dystress_text.errors import DataError
from dystress_text.preparation.data_sets import Request
from vision.data.catalogue import CATALOG
from vision.prepare import main

PNG = b"\x89PNG rest"


@pytest.fixture(autouse=True)
def small_cifar10(monkeypatch):
    """CIFAR-10 with 60 images."""
    small = replace(CATALOG["cifar10"], counts={"train": 50, "test": 10})
    monkeypatch.setitem(CATALOG, "cifar10", small)


def write_cifar10(root, magic=PNG, train=50, label="label", classes=10, first=0):
    folder = root / "cifar10" / "plain_text"
    folder.mkdir(parents=True)
    for split, count in (("train", train), ("test", 10)):
        images = pa.array([{"bytes": magic, "path": None}] * count)
        labels = np.arange(count) % classes
        labels[0] = first
        table = pa.table({"img": images, label: labels})
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")


def write_imagenet(folder, images):
    """Three classes, with so many empty files each."""
    for split in ("train", "val"):
        for name in ("n1", "n2", "n3"):
            write_folder(folder, {f"{split}/{name}": []})
            for number in range(images):
                (folder / split / name / f"{number}.JPEG").touch()


@pytest.mark.parametrize(("magic", "variant"), [(PNG, None), (b"\xff\xd8\xff\xe0", "JPEG copy")])
def test_other_encodings_are_a_variant(magic, variant, tmp_path):
    write_cifar10(tmp_path, magic)
    assert prepare("cifar10", Request(tmp_path / "root", tmp_path)).variant == variant


@pytest.mark.parametrize(
    "options",
    [{"train": 40}, {"label": "klass"}, {"classes": 5}, {"magic": b"GIF89a"}, {"first": 1}],
)
def test_other_images_are_refused(options, tmp_path):
    write_cifar10(tmp_path, **options)
    with pytest.raises(DataError, match=r"^cifar10[^\n]*\Z"):
        prepare("cifar10", Request(tmp_path / "root", tmp_path))
    assert not (tmp_path / "root" / "cifar10").exists()


def test_imagenet_stays_where_it_is(tmp_path):
    write_imagenet(tmp_path / "in", 2)
    root = tmp_path / "root"
    with pytest.raises(DataError, match="imagenet1k"):
        prepare("imagenet1k", Request(root, tmp_path / "in"))
    prepare("imagenet1k", Request(root, tmp_path / "in", "toy"))
    classes = tmp_path / "classes.txt"
    for names in ("n1\nn9\n", "n1\nn3\n"):
        classes.write_text(names)
        with pytest.raises(DataError, match="imagenet100"):
            prepare("imagenet100", Request(root, classes=classes))
    chosen = prepare("imagenet100", Request(root, classes=classes, variant="toy"))
    assert chosen.counts == {"train": 4, "val": 4}


def test_a_ready_set_is_refused_for_other_options(tmp_path, monkeypatch, capsys):
    write_imagenet(tmp_path / "in", 1)
    monkeypatch.chdir(tmp_path)
    for file, names in (("old.txt", "n1\nn2\n"), ("same.txt", "n1 n2 n1"), ("new.txt", "n1\nn3\n")):
        (tmp_path / file).write_text(names)
    toy = ["--variant=toy", "--data_dir=root"]
    assert main(["imagenet1k", "--from=in", *toy]) == 0
    assert main(["imagenet100", "--classes=old.txt", *toy]) == 0
    capsys.readouterr()
    for options in (["--classes=same.txt"], toy[:1], []):
        assert main(["imagenet100", *options, "--data_dir=root"]) == 0
        assert f"made from {tmp_path / 'old.txt'}" in capsys.readouterr().out
    for options in (["--classes=new.txt"], ["--variant=other"]):
        assert main(["imagenet100", *options, "--data_dir=root"]) == 1
        assert str(tmp_path / "old.txt") in capsys.readouterr().err
    assert main(["imagenet100", "--classes=new.txt", "--again", *toy]) == 0
    assert (tmp_path / "root" / "imagenet100" / "classes.txt").read_text() == "n1\nn3\n"


@pytest.mark.parametrize("argv", [["cifar10", "--classes=x.txt"], ["imagenet100", "--from=x"]])
def test_options_of_other_sets_are_refused(argv, tmp_path):
    assert main([*argv, f"--data_dir={tmp_path}"]) == 2


def test_the_program_prepares_and_lists_sets(tmp_path, capsys):
    write_cifar10(tmp_path)
    root = f"--data_dir={tmp_path / 'root'}"
    assert main(["cifar10", f"--from={tmp_path}", root]) == 0
    assert "cifar10: ready (train 50, test 10)" in capsys.readouterr().out
    assert main(["list", root]) == 0
    assert capsys.readouterr().out.count("not prepared") == 4
    assert main(["imagenet100", root]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
