"""How a program ends: one-line errors, signals, and hidden access tokens."""

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import Interrupted, ParameterError, UserError

TOKEN = "hf_" + "aB3dE5" * 6


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ParameterError("tau_min", "got 0"), 2, "p: error: --tau_min: got 0"),
        (UserError("no data\nset \x1b[2J"), 2, r"p: error: no data\nset \x1b[2J"),
        (UserError(f"no access with {TOKEN}"), 2, "p: error: no access with ***"),
        (Interrupted(15, "stopped"), 143, "p: stopped"),
        (KeyboardInterrupt(), 130, "p: interrupted"),
    ],
    ids=["parameter", "control characters", "token", "signal", "Ctrl-C"],
)
def test_error_is_one_line(error, code, line, capsys):
    def fail():
        raise error

    assert exit_code("p", fail) == code
    assert capsys.readouterr().err == f"{line}\n"


def test_local_rank_must_match_environment(monkeypatch):
    parser = OneLineParser("p")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert vars(parser.parse_args(["--local-rank=1"])) == {}
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UserError, match=r"^local_rank"):
        parser.parse_args(["--local_rank", "1"])


def test_torchrun_quotes_error(tmp_path, monkeypatch):
    def fail():
        raise UserError("no data")

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert exit_code("p", fail) == 2
    failure = ProcessFailure(0, 1, 2, str(tmp_path / "error.json"))
    assert "p: error: no data" in str(ChildFailedError("train.py", {0: failure}))
