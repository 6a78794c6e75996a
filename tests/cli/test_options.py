"""Options as fields of a dataclass."""

from dataclasses import dataclass, field

import pytest

from dystress_text.cli.options import SettingsParser, check_names, check_options, option
from dystress_text.errors import UserError


@dataclass(frozen=True)
class Settings:
    rate: float = option(0.5, "a rate", interval="[0, 1)")
    rank: int | None = option(None, "a rank", interval="(0, inf)")
    layers: list[int] = option([1, 2], "layers", needs="rank")
    tasks: list[str] = option(["a"], "tasks", choices=["a", "b"])


def test_valid_settings():
    check_options(Settings(rate=0, layers=[1, 2], tasks=["a", "b"]))
    check_options(Settings(rank=1, layers=[]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate", 1.0),
        ("rate", float("nan")),
        ("rate", []),  # what argparse of Python 3.11 makes of --rate=--
        ("tasks", ["a", "c"]),
        ("layers", []),
    ],
)
def test_invalid_settings_name_the_option(name, value):
    with pytest.raises(UserError, match=f"^{name}: "):
        check_options(Settings(**{name: value}))


@dataclass(frozen=True)
class Options:
    model_name: str = field(metadata={"help": "a name"})
    packing: bool = option(True, "packing")
    quick: bool = option(False, "quick")
    rate: float | None = option(None, "a rate")
    sizes: list[int] | None = option(None, "sizes")
    mode: str = option("no", "a mode", nargs="?", const="yes", choices=["yes", "no"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--no_packing --quick --rate -1e-3", {"packing": False, "quick": True, "rate": -1e-3}),
        ("--no-packing --quick no", {"packing": False}),
        ("--quick=TRUE --sizes 1 -2", {"quick": True, "sizes": [1, -2]}),
        ("--rate .5 --mode --rate 1", {"rate": 1.0, "mode": "yes"}),
    ],
)
def test_arguments_become_fields(line, expected):
    (options,) = SettingsParser([Options], "p").settings(["--model-name", "m", *line.split()])
    assert options == Options("m", **expected)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("", "--model_name"),
        ("--modle_name x", "--model_name"),
        ("--model_name m --packin", "--packing"),
        ("--model_name m --quick maybe", "maybe"),
        ("--model_name m x", "x"),
    ],
)
def test_invalid_arguments_are_one_line(line, named):
    with pytest.raises(UserError, match=named):
        SettingsParser([Options], "p").settings(line.split())


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match=r"^tasks: .*mean STS-B"):
        check_names("tasks", ["stsb"], ["STS-B", "MR"])
