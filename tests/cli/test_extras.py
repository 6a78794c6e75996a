"""Programs without the packages of the extras: help and lists as ever, and one line where a package
is needed.
"""

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from dystress_text.cli import extras

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = sorted(
    {name for names in extras.EXTRAS.values() for name in names} - {"jinja2"}
)  # which torch requires
PROGRAM = f"""
import contextlib, importlib, io, sys
sys.modules |= dict.fromkeys({HIDDEN})
for line in sys.stdin.read().splitlines():
    program, *words = line.split()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module(program).main(words)
"""
QUIET = [
    "vision.train --help",
    "vision.train --list_presets",
    "vision.evaluate --help",
    "vision.export --help",
    "dystress_text.programs.train --help all",
    "dystress_text.programs.train --list_presets",
    "dystress_text.programs.export --help",
    "dystress_text.programs.report --help",
]
NEEDY = {
    "vision.train --preset quickstart": (
        "vision",
        "train.py: error: this program needs kornia and PIL and ",
    ),
    "vision.evaluate --model x": (
        "vision",
        "evaluate.py: error: this program needs kornia and PIL and ",
    ),
    "dystress_text.programs.export x --to onnx": (
        "onnx",
        "dystress export: error: --to onnx needs onnx and onnxscr",
    ),
}


def test_programs_without_extras(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join([*QUIET, *NEEDY]),
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stderr.splitlines()
    assert len(said) == len(NEEDY), done.stderr
    for line, (extra, start) in zip(said, NEEDY.values(), strict=True):
        assert line.startswith(start)
        command = shlex.split(line.partition(": pip install ")[2])
        assert command[::2] == ["-c", "-e"]
        assert command[3].endswith(f"[{extra}]")


def test_extras_are_those_of_the_project():
    names = {"PIL": "pillow"}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, packages in extras.EXTRAS.items():
        assert {names.get(name, name) for name in packages} == {
            Requirement(line).name for line in declared[extra]
        }
