"""The console command: its guide, its commands and what is none of them."""

import subprocess
import sys

import pytest

from dystress_text import __main__ as dystress
from dystress_text import __version__


def run(words, capsys):
    code = dystress.main(words)
    return code, *capsys.readouterr()


def test_alone_it_prints_a_guide(capsys):
    code, guide, errors = run([], capsys)
    assert (code, errors) == (0, "")
    assert len(guide.splitlines()) < 25
    assert all(f"\n  {name} " in guide for name in dystress.COMMANDS)
    assert run(["--version"], capsys)[:2] == (0, f"dystress-text {__version__}\n")


@pytest.mark.parametrize("command", dystress.COMMANDS)
def test_a_command_is_the_program_of_that_name(command, capsys):
    with pytest.raises(SystemExit) as ended:
        dystress.main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: dystress {command} ")
    assert dystress.main([command, "--no_such_option"]) == 2
    assert capsys.readouterr().err.startswith(f"dystress {command}: error: ")


def test_what_is_no_command_is_one_line(capsys):
    code, _, error = run(["swep"], capsys)
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith(
        "dystress: error: unknown command 'swep' (did you mean sweep?); commands are train, "
    )


def test_what_only_reads_the_command_line_does_not_wait_for_torch():
    """Which takes seconds to load, with all that stands on it."""
    lines = [[], ["train", "--help"], ["train", "--help", "all"], ["train", "--list_presets"],
             ["train", "--presett", "x"], ["train", "--eval_set", "stsb"], ["senteval", "--help"],
             ["senteval", "--model", "x", "--tasks", "sts-b", "MNLI"], ["prepare", "--help"],
             ["sweep", "--help"], ["export", "--help"],
             ["report", "--help"]]  # fmt: skip
    program = f"""
import contextlib, sys
from dystress_text.__main__ import main
for line in {lines}:
    with contextlib.suppress(SystemExit):
        main(line)
heavy = {{"torch", "transformers", "accelerate", "datasets", "scipy", "sklearn", "sentence_transformers", "pyarrow"}}
print(sorted(heavy & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert [line.partition(";")[0] for line in done.stderr.splitlines()] == [
        "dystress train: error: unknown option --presett (did you mean --preset?)",
        "dystress train: error: --eval_set: no 'stsb' (did you mean stsb_dev?)",
        "dystress senteval: error: --tasks: no 'sts-b' (did you mean STS-B?)",
    ]
