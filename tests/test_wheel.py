"""The wheel and the source archive: what is in them, and a user's first commands where the wheel
alone is installed.
"""

import ast
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dystress_text.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dystress_text"
LARGEST = 15_000_000  # bytes of the wheel
SEARCH = """
import dystress_text
from sentence_transformers import SentenceTransformer, util

print(dystress_text.__file__)
model = SentenceTransformer("out")
texts = open("sentences.txt").readlines()
query = model.encode(["Someone plays the guitar."])
print(util.semantic_search(query, model.encode(texts)))
"""


def imported_packages():
    """Yield every package that a module of ours imports."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield str(node.module).partition(".")[0]


def test_imported_packages_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    distributions = packages_distributions()
    for name in set(imported_packages()) - sys.stdlib_module_names - {"dystress_text"}:
        found = {canonicalize_name(each) for each in distributions.get(name, [name])}
        assert declared & found, name


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the source archive and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@pytest.mark.slow(60)
def test_the_wheel_holds_the_package_alone(built):
    archive, wheel = built
    assert wheel.stat().st_size < LARGEST
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"README.md", "vision/train.py", "tests/test_wheel.py", "constraints.txt"} <= names
    with zipfile.ZipFile(wheel) as files:
        found = {name: files.read(name) for name in files.namelist() if ".dist-info/" not in name}
    tree = (
        file for file in PACKAGE.rglob("*") if file.is_file() and file.parent.name != "__pycache__"
    )
    assert found == {str(file.relative_to(ROOT)): file.read_bytes() for file in tree}


@pytest.fixture
def user(built, tmp_path):
    """Install the wheel in a new environment; return an empty folder and functions that run
    ``dystress`` and Python there.
    """
    home = tmp_path / "home"
    place = tmp_path / "environment"
    home.mkdir()
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=120
    )
    paths = {
        name: sysconfig.get_path(name, "venv", {"base": str(place)})
        for name in ("purelib", "scripts")
    }
    # this environment's packages behind the new one's; what is installed editable here is not found
    # by a plain path
    (Path(paths["purelib"]) / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    ours = (
        "PYTHONPATH",
        "VIRTUAL_ENV",
        "DYSTRESS_DATA",
        "DYSTRESS_CACHE",
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
    )
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}

    def run(*words):
        command = [f"{paths['scripts']}/python", *words]
        done = subprocess.run(
            command, cwd=home, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    _, wheel = built
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed", "--no-index"]
    run(*install, str(wheel))
    return home, lambda *words: run(f"{paths['scripts']}/dystress", *words), run


@pytest.mark.slow(60)
def test_a_users_first_commands(user):
    """A trained model that searches, its evaluation, a launched run, and commands that need no
    model.
    """
    home, dystress, python = user
    (home / "sentences.txt").write_text(
        "It is raining.\nThe shop is closed.\nA man plays the guitar on stage.\n"
    )
    dystress("train", "--preset=quickstart", "--max_steps=40", "--eval_steps=0")
    record = json.loads((home / "out" / "run.json").read_text())
    before = max(pooler["mini_sts_spearman"] for pooler in record["untrained"].values())
    assert record["trained"]["mini_sts_spearman"] > before
    found = python("-c", SEARCH)
    assert str(home.parent / "environment") in found
    assert "[[{'corpus_id': 2," in found
    assert "MiniParaphrase" in dystress("evaluate", "--model=out", "--suite=mini", "--mode=fast")
    assert all(name in dystress() for name in COMMANDS)
    assert "not prepared" in dystress("prepare", "list")
    flags = ["--preset=quickstart", "--max_steps=1", "--max_train_samples=200", "--eval_set=none"]
    launch = ["-m", "accelerate.commands.launch", "-m", "dystress_text.train"]
    python(*launch, *flags, "--output_dir=launched")
    assert (home / "launched" / "model.safetensors").is_file()
