"""The console command: its guide, its commands, and completion as a real shell does it."""

import subprocess

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
    assert all(f"\n  {name} " in guide for name in (*dystress.COMMANDS, "completion"))
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
    assert run(["swep"], capsys) == (2, "", "dystress: error: unknown command 'swep'; did you mean sweep?\n")
    code, _, error = run(["completion", "csh"], capsys)
    assert code == 2
    assert error.startswith("dystress completion: error: argument shell: invalid choice: 'csh'")


def test_bash_completes_commands_options_and_values(capsys, tmp_path):
    """``_complete_words`` is what bash calls: it fills COMPREPLY for the words before the cursor."""
    script = tmp_path / "dystress.bash"
    script.write_text(run(["completion", "bash"], capsys)[1])

    def completed(*words):
        line = " ".join(f"'{word}'" for word in words)
        code = (
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
            "$(complete -p dystress | sed 's/.*-F \\([^ ]*\\).*/\\1/'); printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    assert completed("dystress", "se") == {"senteval"}
    assert completed("dystress", "train", "--tau_") == {"--tau_min", "--tau_max", "--tau_0", "--tau_plus"}
    assert completed("dystress", "senteval", "--suite", "m") == {"mini"}
