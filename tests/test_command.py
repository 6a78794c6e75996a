"""The console command: its guide, its commands and unknown ones."""

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from dystress_text import __main__ as dystress
from dystress_text import __version__


def test_guide_and_version(capsys):
    assert dystress.main([]) == 0
    guide = capsys.readouterr().out
    assert all(f"\n  {name} " in guide for name in dystress.COMMANDS)
    assert dystress.main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("command", dystress.COMMANDS)
def test_help_and_unknown_option(command, capsys):
    with pytest.raises(SystemExit) as ended:
        dystress.main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: dystress {command} ")
    assert dystress.main([command, "--no_such_option"]) == 2
    assert "--no_such_option" in capsys.readouterr().err


def test_unknown_command_is_one_line(capsys):
    assert dystress.main(["swep"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "sweep" in error


def test_help_and_wrong_options_do_not_load_torch():
    lines = [
        [],
        ["train", "--help"],
        ["train", "--list_presets"],
        ["train", "--presett", "x"],
        ["train", "--eval_set", "stsb"],
        ["senteval", "--help"],
        ["senteval", "--model", "x", "--tasks", "sts-b"],
        ["prepare", "--help"],
        ["sweep", "--help"],
        ["export", "--help"],
        ["report", "--help"],
    ]
    program = f"""
import contextlib, sys
from dystress_text.__main__ import main
for line in {lines}:
    with contextlib.suppress(SystemExit):
        main(line)
heavy = {{"torch", "transformers", "accelerate", "datasets", "scipy", "sklearn", "pyarrow"}}
print(sorted(heavy & sys.modules.keys()))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert len(done.stderr.splitlines()) == 3


@pytest.mark.parametrize("folder", ["dystress_text", "vision", "eval", "data"])
def test_no_module_next_to_a_program_hides_a_package(folder):
    """``python dystress_text/train.py`` looks for packages in its own folder first."""
    files = (Path(dystress.__file__).parents[1] / folder).iterdir()
    names = {path.stem for path in files if path.is_dir() or path.suffix == ".py"}
    assert names & packages_distributions().keys() == set()
