"""Options as fields of a dataclass."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from dystress_text.cli.options import SettingsParser, check_names, check_options, option
from dystress_text.errors import UserError


@dataclass(frozen=True)
class Options:
    model_name: str = field(metadata={"help": "a name"})
    packing: bool = option(True, "packing")
    folder: Path | None = option(None, "a folder")
    rate: float = option(0.5, "a rate", interval="[-1, 1)")
    rank: int | None = option(None, "a rank", interval="(0, inf)")
    sizes: list[int] | None = option(None, "sizes", needs="rank")
    mode: str = option("no", "a mode", nargs="?", const="yes", choices=["yes", "no"])

    def __post_init__(self) -> None:
        check_options(self)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--packing no --rate -1e-3", {"packing": False, "rate": -1e-3}),
        ("--packing=TRUE --rank 1 --sizes 1 -2", {"rank": 1, "sizes": [1, -2]}),
        ("--rate .5 --packing --mode --rank 1", {"rank": 1, "mode": "yes"}),
    ],
)
def test_arguments_become_fields(line, expected):
    (options,) = SettingsParser([Options], "p").settings(["--model-name", "m", *line.split()])
    assert options == Options("m", **expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate", 1.0),
        ("rate", float("nan")),
        ("rate", None),
        ("rate", np.float32(1)),
        ("rate", torch.tensor([0.5])),
        ("rank", 0.5),
        ("packing", 1),
        ("mode", "maybe"),
        ("sizes", [1]),
        ("model_name", 3),
    ],
)
def test_invalid_settings_name_the_option(name, value):
    with pytest.raises(UserError, match=f"^{name}: "):
        Options(**{"model_name": "m", name: value})


def test_options_in_python_take_scalars_of_other_libraries_and_paths():
    given = {
        "model_name": Path("m"),
        "packing": np.bool_(False),
        "folder": "f",
        "rate": np.float32(0.25),
        "rank": np.int64(3),
        "sizes": torch.tensor([1, 2]),
    }
    plain = {
        "model_name": "m",
        "packing": False,
        "folder": Path("f"),
        "rate": 0.25,
        "rank": 3,
        "sizes": [1, 2],
    }
    assert repr(Options(**given)) == repr(Options(**plain))
    assert repr(Options("m", rate=torch.tensor(0.25))) == repr(Options("m", rate=0.25))
    assert Options("m", rank=1, sizes=np.int32(2)).sizes == [2]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("", "--model_name"),
        ("--modle_name x", "--model_name"),
        ("--model_name m --packin", "--packing"),
        ("--model_name m --packing maybe", "maybe"),
        ("--model_name m x", "x"),
    ],
)
def test_invalid_arguments_are_one_line(line, named):
    with pytest.raises(UserError, match=named):
        SettingsParser([Options], "p").settings(line.split())


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match=r"^tasks: .*mean STS-B"):
        check_names("tasks", ["stsb"], ["STS-B", "MR"])
