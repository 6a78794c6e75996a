"""Preparing image sets from local copies: what is checked, and what stays where the user has it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vision_cases import prepare

from dystress_text.errors import DataError
from dystress_text.preparation.data_sets import Request
from vision.data.image_sets import CATALOG
from vision.prepare import main

PNG = b"\x89PNG rest"


@pytest.fixture(autouse=True)
def small_cifar10(monkeypatch):
    """CIFAR-10 with 60 images."""
    small = replace(CATALOG["cifar10"], counts={"train": 50, "test": 10})
    monkeypatch.setitem(CATALOG, "cifar10", small)


def write_cifar10(root, magic=PNG, train=50, label="label", classes=10):
    folder = root / "cifar10" / "plain_text"
    folder.mkdir(parents=True)
    for split, count in (("train", train), ("test", 10)):
        images = pa.array([{"bytes": magic, "path": None}] * count)
        table = pa.table({"img": images, label: np.arange(count) % classes})
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")


@pytest.mark.parametrize(("magic", "variant"), [(PNG, None), (b"\xff\xd8\xff\xe0", "JPEG copy")])
def test_other_encodings_are_a_variant(magic, variant, tmp_path):
    write_cifar10(tmp_path, magic)
    assert prepare("cifar10", Request(tmp_path / "root", tmp_path)).variant == variant


def test_a_copy_with_classes_of_other_sizes_is_refused(tmp_path):
    write_cifar10(tmp_path)
    file = tmp_path / "cifar10" / "plain_text" / "train-00000-of-00001.parquet"
    table = pq.read_table(file)
    labels = pa.array([0, 1, *np.arange(48) % 8 + 2])
    pq.write_table(table.set_column(1, "label", labels), file)
    with pytest.raises(DataError, match=r"^cifar10[^\n]*\Z"):
        prepare("cifar10", Request(tmp_path / "root", tmp_path))


@pytest.mark.parametrize(
    "options", [{"train": 40}, {"label": "klass"}, {"classes": 5}, {"magic": b"GIF89a"}]
)
def test_other_images_are_refused(options, tmp_path):
    write_cifar10(tmp_path, **options)
    with pytest.raises(DataError, match=r"^cifar10[^\n]*\Z"):
        prepare("cifar10", Request(tmp_path / "root", tmp_path))
    assert not (tmp_path / "root" / "cifar10").exists()


def test_imagenet_stays_where_it_is(tmp_path):
    for split in ("train", "val"):
        for name in ("n1", "n2", "n3"):
            folder = tmp_path / "in" / split / name
            folder.mkdir(parents=True)
            (folder / "0.JPEG").touch()
            (folder / "1.JPEG").touch()
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
    for split in ("train", "val"):
        for name in ("n1", "n2", "n3"):
            folder = tmp_path / "in" / split / name
            folder.mkdir(parents=True)
            (folder / "0.JPEG").touch()
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
