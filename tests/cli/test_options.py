"""Options as fields of a dataclass: the interval of each and the option that it needs."""

from dataclasses import dataclass, field

import pytest

from dystress_text.cli.options import SettingsParser, check_names, check_options, option
from dystress_text.errors import UserError


@dataclass(frozen=True)
class Settings:
    rate: float = option(0.5, "a rate", interval="[0, 1)")
    rank: int | None = option(None, "a rank", interval="(0, inf)")
    layers: list[int] = option([1, 2], "layers", needs="rank")
    merge: bool = option(False, "merge", needs="rank")
    limit: int = option(0, "a limit", needs="merge")
    tasks: list[str] = option(["a"], "tasks", choices=["a", "b"])


def test_settings_that_fit_are_taken():
    for given in (
        {},
        {"rate": 0, "tasks": ["a", "b"]},
        {"layers": [1, 2]},
        {"rank": 1, "layers": []},
        {"rank": 1, "merge": True, "limit": 3},
    ):
        check_options(Settings(**given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": 1.0}, r"rate: must lie in \[0, 1\), got 1.0"),
        ({"rate": float("nan")}, "rate: must lie in"),
        ({"rate": []}, "rate: must lie in"),  # argparse of Python 3.11 makes it of --rate=--
        ({"rank": 0}, r"rank: must lie in \(0, inf\), got 0"),
        ({"tasks": ["a", "c"]}, "tasks: must be one of a, b, got 'c'"),
        ({"layers": []}, "layers: has no effect without --rank"),
        ({"rank": 1, "limit": 3}, "limit: has no effect without --merge"),
    ],
)
def test_settings_that_do_not_fit_name_the_option(given, message):
    with pytest.raises(UserError, match=message):
        check_options(Settings(**given))


@dataclass(frozen=True)
class Words:
    """Words."""

    model_name: str = field(metadata={"help": "a name"})
    packing: bool = option(True, "packing")
    quick: bool = option(False, "quick")
    head: bool | None = option(None, "a head")
    rate: float | None = option(None, "a rate")
    sizes: list[int] | None = option(None, "sizes")
    mode: str = option("no", "a mode", nargs="?", const="yes", choices=["yes", "no"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("--no_packing --quick --rate -1e-3", {"packing": False, "quick": True, "rate": -1e-3}),
        ("--no-packing --quick no --head=Y", {"packing": False, "head": True}),
        (
            "--packing 0 --quick=TRUE --sizes 1 -2",
            {"packing": False, "quick": True, "sizes": [1, -2]},
        ),
        (
            "--rate .5 --mode --model-name=a-b --rate 1",
            {"rate": 1.0, "mode": "yes", "model_name": "a-b"},
        ),
    ],
)
def test_words_become_fields(line, expected):
    (words,) = SettingsParser([Words], "p").settings(["--model_name", "m", *line.split()])
    assert vars(words) == {
        "model_name": "m",
        "packing": True,
        "quick": False,
        "head": None,
        "rate": None,
        "sizes": None,
        "mode": "no",
        **expected,
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "the following arguments are required: --model_name"),
        ("--modle_name x", "unknown option --modle_name (did you mean --model_name?)"),
        ("--model-nam=hf_x", "unknown option --model-nam (did you mean --model_name?)"),
        ("--model_name m --packin", "unknown option --packin (did you mean --packing?)"),
        ("--model_name m --quick maybe", "argument --quick: yes or no is needed, got 'maybe'"),
        ("--model_name m --head", "argument --head: expected one argument"),
        ("--model_name m x", "unrecognized arguments: x"),
    ],
)
def test_words_that_do_not_fit_are_one_line(line, message):
    with pytest.raises(UserError) as caught:
        SettingsParser([Words], "p").settings(line.split())
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("name", "near"), [("stsb", r" \(did you mean STS-B\?\)"), ("xyz", "")])
def test_an_unknown_name_is_refused_with_the_nearest(name, near):
    with pytest.raises(UserError, match=f"^tasks: no '{name}'{near}; known are STS-B, MR$"):
        check_names("tasks", ["STS-B", name], ["STS-B", "MR"])
