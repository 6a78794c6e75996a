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


@pytest.mark.parametrize("command", ["evaluate", "senteval"])
def test_evaluate_and_its_other_name(command, capsys):
    assert dystress.main([command, "--model", "x", "--tasks", "sts-b"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dystress evaluate: error: --tasks: ")


def test_unknown_command_is_one_line(capsys):
    assert dystress.main(["swep"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "sweep" in error


HELP = {
    "dystress_text.__main__": [
        "",
        "train --help",
        "train --list_presets",
        "evaluate --help",
        "prepare --help",
        "sweep --help",
        "export --help",
        "report --help",
    ],
    "vision.train": ["--help", "--preset imagenet100 --help", "--list_presets"],
    "vision.evaluate": ["--help"],
    "vision.export": ["--help"],
    "vision.prepare": ["--help", "list"],
}
WRONG = {
    "dystress_text.__main__": [
        "train --presett x",
        "train --eval_set stsb",
        "evaluate --model x --tasks sts-b",
    ],
    "vision.train": [
        "--presett x",
        "--preset cifar",
        "--jitter 9",
        "--architecture resnet19",
        "--out_dim 0",
        "--min_scale 0.05 --small_crops 2",
    ],
    "vision.evaluate": ["--modell x", "--model x --tasks svn", "--k 1"],
    "vision.export": ["--modell x", "--model x --output x.pth"],
    "vision.prepare": ["cifar", "cifar10 --form x"],
}


@pytest.mark.parametrize("module", HELP)
def test_help_and_wrong_options_do_not_load_torch(module):
    program = f"""
import contextlib, importlib, sys
main = importlib.import_module({module!r}).main
for line in {HELP[module]}:
    with contextlib.suppress(SystemExit):
        main(line.split())
print([main(line.split()) for line in {WRONG[module]}])
heavy = {{"torch", "transformers", "accelerate", "datasets", "scipy", "sklearn", "pyarrow"}}
heavy |= {{"safetensors", "kornia", "PIL"}}
print(sorted(heavy & sys.modules.keys()))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == [str([2] * len(WRONG[module])), "[]"]
    assert len(done.stderr.splitlines()) == len(WRONG[module])


@pytest.mark.parametrize("folder", ["dystress_text", "vision", "eval", "data"])
def test_no_module_next_to_a_program_hides_a_package(folder):
    """``python dystress_text/train.py`` looks for packages in its own folder first."""
    files = (Path(dystress.__file__).parents[1] / folder).iterdir()
    names = {path.stem for path in files if path.is_dir() or path.suffix == ".py"}
    assert names & packages_distributions().keys() == set()
