"""The wheel and the source archive: what is in them, and a user's first commands where the wheel alone is installed.

The environment is new, its packages come from the package index, and nothing of the checkout is on its path.
"""

import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from quickstart_run import check_quickstart

from dystress_text.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 15_000_000  # bytes of the wheel
pytestmark = pytest.mark.slow(300)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The archive, and the wheels that are built from the archive and from the tree."""
    folder = tmp_path_factory.mktemp("built")
    for name, *flags in (("from_archive",), ("from_tree", "--wheel")):  # without flags the wheel is the archive's
        command = [sys.executable, "-m", "build", *flags, "--outdir", str(folder / name), str(ROOT)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    (archive,) = (folder / "from_archive").glob("*.tar.gz")
    wheels = [next((folder / name).glob("*.whl")) for name in ("from_archive", "from_tree")]
    return archive, *wheels


def contents(wheel):
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist()}


def test_the_archive_builds_the_wheel_of_the_tree(built):
    archive, from_archive, from_tree = built
    assert contents(from_archive) == contents(from_tree)
    assert from_tree.stat().st_size < LARGEST
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"README.md", "vision/train.py", "tests/test_wheel.py", "constraints.txt"} <= names


def test_the_wheel_holds_the_package_with_its_model_and_sets_and_nothing_else(built):
    names = set(contents(built[2]))
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dystress_text"}
    embedded = {
        str(file.relative_to(ROOT)) for file in (ROOT / "dystress_text" / "embedded").rglob("*") if file.is_file()
    }
    assert len(embedded) > 12
    assert embedded | {"dystress_text/py.typed"} <= names


class Environment:
    """A new virtual environment with a wheel, and a user's empty folder to work in."""

    def __init__(self, folder, wheel):
        self.home, self.programs = folder / "home", folder / "environment" / "bin"
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True, timeout=120)
        install = [
            str(self.programs / "pip"),
            "install",
            "--quiet",
            "--no-compile",
            "-c",
            str(ROOT / "constraints.txt"),
        ]
        subprocess.run([*install, str(wheel)], check=True, timeout=600)

    def run(self, *words, code=0):
        """What a program prints on standard output and error; ``code`` is the exit code that it must have."""
        ours = ("PYTHONPATH", "VIRTUAL_ENV", "DYSTRESS_DATA", "DYSTRESS_CACHE", "XDG_CACHE_HOME", "XDG_DATA_HOME")
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        environment = kept | {"HOME": str(self.home), "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
        command = [str(self.programs / words[0]), *words[1:]]
        done = subprocess.run(command, cwd=self.home, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout, done.stderr


@pytest.fixture(scope="module")
def user(built, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("user"), built[1])


def test_a_users_first_commands(user):
    """A trained model that searches, the other commands on it, and those that need no model."""
    (user.home / "sentences.txt").write_text("It is raining.\nThe shop is closed.\nA man plays the guitar on stage.\n")
    started = time.monotonic()
    user.run("dystress", "train", "--preset", "quickstart")
    trained = time.monotonic() - started
    query = (
        "from sentence_transformers import SentenceTransformer, util; m = SentenceTransformer('out');"
        "texts = open('sentences.txt').readlines();"
        "print(util.semantic_search(m.encode(['Someone plays the guitar.']), m.encode(texts)))"
    )
    assert user.run("python", "-c", query)[0].startswith("[[{'corpus_id': 2,")
    check_quickstart(user.home / "out", trained)
    assert "MiniParaphrase" in user.run("dystress", "senteval", "--model", "out", "--suite", "mini")[0]
    assert "mini" in user.run("dystress", "report", "out")[0]
    user.run("dystress", "export", "out", "--to", "hf")
    assert (user.home / "out-hf" / "model.safetensors").is_file()
    assert all(name in user.run("dystress")[0] for name in COMMANDS)
    assert "not prepared" in user.run("dystress", "prepare", "list")[0]
    assert "quickstart" in user.run("dystress", "presets")[0]
    assert "paper-seed-0" in user.run("dystress", "sweep", "--presets=paper", "--seeds=0", "--dry_run")[0]
    assert "profiles" in user.run("dystress", "figures", "--list")[0]
    missing = user.run("dystress", "figures", "profiles", code=2)[1]
    assert missing.endswith("pip install 'dystress-text[plots]'\n")
    flags = [
        "--preset=quickstart",
        "--max_steps=1",
        "--max_train_samples=200",
        "--eval_set=none",
        "--output_dir=launched",
    ]
    user.run("accelerate", "launch", "-m", "dystress_text.train", *flags)
    assert (user.home / "launched" / "model.safetensors").is_file()
