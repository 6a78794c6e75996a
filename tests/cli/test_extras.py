"""Programs without the packages of the extras."""

import subprocess
import sys

import pytest

from dystress_text.cli import extras

# torch requires jinja2
HIDDEN = sorted({name for names in extras.EXTRAS.values() for name in names} - {"jinja2"})
PROGRAM = f"""
import contextlib, importlib, sys
sys.modules |= dict.fromkeys({HIDDEN})
program, *argv = sys.argv[1:]
with contextlib.suppress(SystemExit):
    importlib.import_module(program).main(argv)
"""


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("vision.train --help", None),
        ("dystress_text.programs.train --help all", None),
        ("vision.train --preset quickstart", "vision"),
        ("dystress_text.programs.export x --to onnx", "onnx"),
    ],
)
def test_missing_extra_is_one_line(line, extra, tmp_path):
    command = [sys.executable, "-c", PROGRAM, *line.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.count("\n") == (extra is not None)
    assert extra is None or f"[{extra}]" in done.stderr
