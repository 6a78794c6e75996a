"""Preparing data sets from a hub on loopback and from local copies."""

import gzip
import tarfile

import pytest
from fuzz_cases import accepted, inputs, spoiled
from hub_server import hub_server, tar_of, with_hub
from hypothesis import given

from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.finetuning.texts import wiki1m
from dystress_text.io.hub import HUB_REPOSITORY
from dystress_text.io.prepared_data import MANIFEST, read_manifest, variant_of
from dystress_text.preparation.texts import unpack
from dystress_text.programs.prepare import main

INSIDE = "SentEval/data/downstream/"
TEXT = b"YMCA in South Australia\none line\nanother line\n"


def stsb_files(prefix=""):
    """STS-B's three files at their real sizes."""
    files = {}
    for split, size in {"train": 20, "dev": 1500, "test": 1379}.items():
        lines = [f"m\tf\t1\t{i}\t{i % 6}\tsentence {i}\tother {i}\n" for i in range(size)]
        files[f"{prefix}STS/STSBenchmark/sts-{split}.csv"] = "".join(lines).encode()
    return files


def write_files(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def state_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "prepared"


def left_behind(root):
    """What lies in the root other than sets and locks."""
    hidden = [path.name for path in root.glob(".*")]
    return [name for name in hidden if not name.endswith(".lock")]


def test_a_variant_must_be_named_and_is_recorded(tmp_path, root, capsys):
    file = tmp_path / "mine.txt"
    file.write_bytes(b"my line\n" * 5)
    arguments = ["wiki1m", f"--from={file}", f"--data_dir={root}"]
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "--variant" in line
    assert not (root / "wiki1m").exists()
    assert main([*arguments, "--variant=my own sample"]) == 0
    assert wiki1m(root).read_bytes() == b"my line\n" * 5
    assert variant_of(wiki1m(root)) == "my own sample"
    assert left_behind(root) == []
    (root / "wiki1m" / MANIFEST).write_text("{")
    assert main(["list", f"--data_dir={root}"]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_incomplete_tasks(tmp_path, root, capsys):
    write_files(tmp_path / "one", stsb_files())
    for argv in (["senteval", f"--from={tmp_path / 'one'}"], ["list"]):
        assert main([*argv, f"--data_dir={root}"]) == 0
        assert "ready but for STS12 (" in capsys.readouterr().out
    manifest = read_manifest(root / "senteval")
    assert "STS-B" not in manifest.not_ready
    assert "STS13-en-test" in manifest.not_ready["STS13"]
    assert len(eval_pairs("stsb_dev", root)) == 1500


UNSAFE = {
    "truncated": tar_of(stsb_files(INSIDE))[:30_000],
    "no archive": b"no archive at all",
    "dots": tar_of({"../../x": b"y"}),
    "absolute": tar_of({"/tmp/a": b""}),
    "link": tar_of({"STS": b""}, kind=tarfile.SYMTYPE),
    "device": tar_of({"STS": b""}, kind=tarfile.CHRTYPE),
    "no STS": gzip.compress(tar_of({"other": bytes(500 << 10)})),  # small enough
    "bomb": gzip.compress(tar_of({"zeros": bytes(30 << 20)})),
    # two empty files more than a megabyte has room for
    "many": gzip.compress(tar_of({"zeros": bytes(1020 << 10), **dict.fromkeys("abcdefgh", b"")})),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_archives_change_nothing(tmp_path, root, name, capsys):
    write_files(root / "senteval", {"old": b"old"})
    archive = tmp_path / "senteval.tar"
    archive.write_bytes(UNSAFE[name])
    before = state_of(tmp_path)
    assert main(["senteval", f"--from={archive}", f"--data_dir={root}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    is_unpacked = name in ("no STS", "absolute")  # its path is taken as relative
    assert ("no folder STS" in line) == is_unpacked
    assert state_of(tmp_path) == before


@inputs(60)
@given(spoiled(gzip.compress(tar_of({"set/a": b"a" * 700, "set/b": b"b"}), mtime=0)))
def test_mutated_archives(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("archive")
    archive = folder / "a.tar"
    archive.write_bytes(content)
    accepted(unpack, archive, folder / "out")
    inside = (folder / "out").resolve()
    written = [path for path in folder.rglob("*") if path != archive]
    assert all(path.resolve().is_relative_to(inside) for path in written)


def test_interruption(tmp_path, root, monkeypatch):
    (tmp_path / "wiki1m.txt").write_bytes(TEXT)
    arguments = ["wiki1m", f"--from={tmp_path / 'wiki1m.txt'}", "--variant=x", f"--data_dir={root}"]

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dystress_text.preparation.prepare.write_manifest", interrupted)
        assert main(arguments) == 130
    assert left_behind(root) == []
    assert not (root / "wiki1m").exists()
    (root / ".wiki1m.1.writing").mkdir()  # what a SIGKILL leaves
    write_files(root / ".wiki1m.replaced", {"old": b"old"})
    assert main(arguments) == 0
    assert {path.name for path in (root / "wiki1m").iterdir()} == {MANIFEST, wiki1m(root).name}
    assert left_behind(root) == []


@pytest.fixture
def hub(tmp_path):
    with hub_server() as server, with_hub(server[0], tmp_path / "hf"):
        yield server


def test_download_once(hub, root, capsys):
    files = {"senteval.tar": tar_of(stsb_files("./")), "wiki1m_for_simcse.txt": TEXT}
    hub[1][HUB_REPOSITORY] = files
    arguments = ["senteval", "wiki1m", "--variant=short", f"--data_dir={root}"]
    assert main(arguments) == 0
    assert "terms: " in capsys.readouterr().out
    assert len(eval_pairs("stsb_dev", root)) == 1500
    downloads = len(hub[2]["starts"])
    assert main(arguments) == 0
    assert len(hub[2]["starts"]) == downloads


def test_a_broken_download_continues(hub, root):
    hub[1][HUB_REPOSITORY] = {"wiki1m_for_simcse.txt": TEXT * 500_000}
    hub[2]["cut"] = True
    arguments = ["wiki1m", "--variant=long", f"--data_dir={root}"]
    if main(arguments):  # where the library does not try again itself
        assert main(arguments) == 0
    assert wiki1m(root).read_bytes() == TEXT * 500_000
    assert hub[2]["starts"][-1] > 0
