"""How a program ends: errors as one line with the option's dashes, signals, and tokens that are
never shown.
"""

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import Interrupted, ParameterError, UserError

TOKEN = "hf_" + "aB3dE5" * 6


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            ParameterError("tau_min", "must be positive, got 0"),
            2,
            "p: error: --tau_min: must be positive, got 0",
        ),
        (UserError("no data\nset \x1b[2J"), 2, r"p: error: no data\nset \x1b[2J"),
        (UserError(f"no access with {TOKEN}"), 2, "p: error: no access with ***"),
        (Interrupted(15, "stopped in good order"), 143, "p: stopped in good order"),
        (KeyboardInterrupt(), 130, "p: interrupted"),
    ],
    ids=["parameter", "control characters", "token", "signal", "Ctrl-C"],
)
def test_an_error_is_one_line(error, code, line, capsys):
    def fail():
        raise error

    assert exit_code("p", fail) == code
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize("options", [["--local-rank=1"], ["--local_rank", "1"]])
def test_every_program_takes_the_rank_of_torchs_launcher_if_it_is_that_of_the_environment(
    options, monkeypatch
):
    parser = OneLineParser("p")
    parser.add_argument("--seed")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert vars(parser.parse_args([*options, "--seed=3"])) == {"seed": "3"}
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UserError, match=r"^local_rank: 1, but LOCAL_RANK is not; start with"):
        parser.parse_args(options)


def test_the_code_says_whether_all_was_done():
    assert [exit_code("p", lambda done=done: done) for done in (True, False)] == [0, 1]


def refuse():
    raise UserError("no data")


def test_torchruns_last_words_are_the_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert exit_code("p", refuse) == 2
    of_torch = ProcessFailure(0, 1, 2, str(tmp_path / "error.json"))
    assert (
        str(ChildFailedError("train.py", {0: of_torch})).splitlines()[-2]
        == "  traceback : p: error: no data"
    )


def test_what_accelerates_launcher_adds_is_announced(monkeypatch, capsys):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "NO")
    assert exit_code("p", refuse) == 2
    error, more = capsys.readouterr().err.splitlines()
    assert error == "p: error: no data"
    assert "--quiet" in more
