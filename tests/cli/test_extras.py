"""Programs without the packages of the extras."""

import importlib.util

import pytest

from dystress_text.cli import extras
from dystress_text.programs import export
from vision import train


@pytest.mark.parametrize(
    ("main", "argv", "extra"),
    [
        (train.main, ["--preset=quickstart"], "vision"),
        (export.main, ["x", "--to=onnx"], "onnx"),
    ],
)
def test_missing_extra_is_one_line(main, argv, extra, monkeypatch, capsys):
    hidden = {name for names in extras.EXTRAS.values() for name in names}
    real = importlib.util.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in hidden else real(name))
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert f"[{extra}]" in printed
