"""Preparing image sets from local copies: what is checked, and what stays where the user has it."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vision_cases import prepare

from dystress_text.errors import DataError
from dystress_text.preparation.data_sets import Request
from vision.prepare import main


def write_files(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "prepared"


def images_of(count, classes, label="label", magic=b"\x89PNG rest"):
    """A parquet file of the hub's layout."""
    images = pa.array([{"bytes": magic, "path": None}] * count)
    stream = io.BytesIO()
    pq.write_table(pa.table({"img": images, label: np.arange(count) % classes}), stream)
    return stream.getvalue()


def cifar(folder, magic=b"\x89PNG rest", train=50_000, label="label", classes=10):
    for split, count in (("train", train), ("test", 10_000)):
        write_files(
            folder, {f"{split}-00000-of-00001.parquet": images_of(count, classes, label, magic)}
        )


def test_images_and_their_variant(tmp_path, root):
    cifar(tmp_path / "cifar10" / "plain_text")
    assert prepare("cifar10", Request(root, tmp_path)).variant is None
    cifar(tmp_path / "cifar100" / "cifar100", b"\xff\xd8\xff\xe0", label="fine_label", classes=100)
    assert prepare("cifar100", Request(root, tmp_path)).variant == "JPEG copy"
    for options in ({"train": 40_000}, {"label": "klass"}, {"classes": 12}, {"magic": b"GIF89a"}):
        cifar(tmp_path / "other" / "cifar10" / "plain_text", **options)
        with pytest.raises(DataError, match=r"^cifar10[^\n]*\Z"):
            prepare("cifar10", Request(tmp_path / "new", tmp_path / "other"))
        assert not (tmp_path / "new" / "cifar10").exists()


def test_imagenet_stays_where_it_is(tmp_path, root):
    for split in ("train", "val"):
        for name in ("n1", "n2", "n3"):
            write_files(tmp_path / "in" / split / name, {f"{i}.JPEG": b"" for i in range(200)})
    with pytest.raises(DataError, match="600"):
        prepare("imagenet1k", Request(root, tmp_path / "in"))
    classes = tmp_path / "classes.txt"
    prepare("imagenet1k", Request(root, tmp_path / "in", "toy"))
    for names in ("n1\nn9\n", "n1\nn3\n"):
        classes.write_text(names)
        with pytest.raises(DataError, match="imagenet100"):
            prepare("imagenet100", Request(root, classes=classes))
    chosen = prepare("imagenet100", Request(root, classes=classes, variant="toy"))
    assert chosen.counts == {"train": 400, "val": 400}


def test_the_program_prepares_and_lists_image_sets(tmp_path, root, capsys):
    cifar(tmp_path / "cifar10" / "plain_text")
    assert main(["cifar10", f"--from={tmp_path}", f"--data_dir={root}"]) == 0
    assert "cifar10: ready (train 50,000, test 10,000)" in capsys.readouterr().out
    assert main(["list", f"--data_dir={root}"]) == 0
    assert capsys.readouterr().out.count("not prepared") == 4
    assert main(["imagenet100", f"--data_dir={root}"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
