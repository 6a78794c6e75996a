"""Options as fields of a dataclass: the interval of each and the option that it needs."""

from dataclasses import dataclass

import pytest

from dystress_text.cli.options import check_options, lies_in, option
from dystress_text.errors import UserError


@dataclass(frozen=True)
class Settings:
    rate: float = option(0.5, "a rate", interval="[0, 1)")
    rank: int | None = option(None, "a rank", interval="(0, inf)")
    layers: list[int] = option([1, 2], "layers", needs="rank")
    merge: bool = option(False, "merge", needs="rank")
    limit: int = option(0, "a limit", needs="merge")


@pytest.mark.parametrize(
    "given",
    [{}, {"rate": 0}, {"layers": [1, 2]}, {"rank": 1, "layers": []}, {"rank": 1, "merge": True, "limit": 3}],
)
def test_settings_that_fit_are_taken(given):
    check_options(Settings(**given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": 1.0}, r"rate: must lie in \[0, 1\), got 1.0"),
        ({"rate": float("nan")}, "rate: must lie in"),
        ({"rank": 0}, r"rank: must lie in \(0, inf\), got 0"),
        ({"layers": []}, "layers: has no effect without rank"),
        ({"rank": 1, "limit": 3}, "limit: has no effect without merge"),
    ],
)
def test_settings_that_do_not_fit_name_the_option(given, message):
    with pytest.raises(UserError, match=message):
        check_options(Settings(**given))


@pytest.mark.parametrize("value", [[], "0.5", None])
def test_what_is_not_a_number_lies_in_no_interval(value):
    """argparse of Python 3.11 makes an empty list of ``--dropout=--``."""
    assert not lies_in(value, "[0, 2]")
