"""How a program ends: one-line errors, signals, and hidden access tokens."""

import io
import sys
import warnings

import numpy as np
import pytest
import torch

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import Interrupted, ParameterError, UserError, reason_of

TOKEN = "hf_" + "aB3dE5" * 6


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ParameterError("tau_min", "got 0"), 2, "p: error: --tau_min: got 0"),
        (UserError("no data\nset \x1b[2J"), 2, r"p: error: no data\nset \x1b[2J"),
        (UserError(f"no access with {TOKEN}"), 2, "p: error: no access with ***"),
        (PermissionError(13, "denied", "out"), 2, "p: error: [Errno 13] denied: 'out'"),
        (Interrupted(15, "stopped; `seed` 1"), 143, "p: stopped; --seed 1"),
        (UserError("SimCSE's `seed` of 'a `seed`'"), 2, "p: error: SimCSE's --seed of 'a `seed`'"),
        (UserError('`to` of "it\'s `to`"'), 2, """p: error: --to of "it's `to`\""""),
        (UserError(reason_of(OSError("set `token`"))), 2, "p: error: set 'token'"),
        (KeyboardInterrupt(), 130, "p: interrupted"),
    ],
)
def test_error_is_one_line(error, code, line, capsys):
    def fail():
        raise error

    assert exit_code("p", fail) == code
    assert capsys.readouterr().err == f"{line}\n"


def test_warning_of_another_library_keeps_its_backticks(capsys):
    def warn():
        print(warnings.formatwarning("`cache` is old", FutureWarning, "file", 1), end="")

    assert exit_code("p", warn) == 0
    assert capsys.readouterr().out == "p: warning: `cache` is old\n"


def test_bug_is_raised():
    def fail():
        raise OSError("of no file")

    with pytest.raises(OSError, match="of no file"):
        exit_code("p", fail)


def test_output_in_ascii_escapes_other_characters(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", newline="\n"))
    assert exit_code("p", lambda: print("a 猫 \ud800")) == 0
    sys.stdout.flush()
    assert written.getvalue() == rb"a \u732b \ud800" + b"\n"
    assert sys.stdout.errors == "strict"


def test_local_rank_of_a_launcher_is_ignored():
    assert vars(OneLineParser("p").parse_args(["--local-rank=1"])) == {}


@pytest.mark.parametrize("module", [torch, np])
def test_too_little_memory_is_one_line(module, capsys):
    assert exit_code("prog", lambda: module.empty(10**15)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "memory" in line


def test_a_bug_is_no_lack_of_memory():
    def work():
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        exit_code("prog", work)
