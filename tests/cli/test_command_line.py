"""How a program ends: errors as one line with the option's dashes, signals, and tokens that are never shown."""

import pytest

from dystress_text.cli.command_line import exit_code
from dystress_text.errors import Interrupted, ParameterError, UserError

TOKEN = "hf_" + "aB3dE5" * 6


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [(ParameterError("tau_min", "must be positive, got 0"), 2, "p: error: --tau_min: must be positive, got 0"),
     (UserError("no data\nset \x1b[2J"), 2, r"p: error: no data\nset \x1b[2J"),
     (UserError(f"no access with {TOKEN}"), 2, "p: error: no access with ***"),
     (Interrupted(15, "stopped in good order"), 143, "p: stopped in good order"),
     (KeyboardInterrupt(), 130, "p: interrupted")],
    ids=["parameter", "control characters", "token", "signal", "Ctrl-C"],
)  # fmt: skip
def test_an_error_is_one_line(error, code, line, capsys):
    def fail():
        raise error

    assert exit_code("p", fail) == code
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize(("done", "code"), [(True, 0), (False, 1)])
def test_the_code_says_whether_all_was_done(done, code):
    assert exit_code("p", lambda: done) == code
