"""The console command: its guide, its commands and what is none of them."""

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
    assert error.startswith("dystress: error: unknown command 'swep'; commands are train, ")
