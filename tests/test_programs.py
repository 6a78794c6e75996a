"""Programs of the checkout that start by their path, from another folder."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow  # programs of their own
@pytest.mark.parametrize("script", ["dystress_text/train.py", "vision/train.py"])
def test_a_program_starts_by_its_path(script, tmp_path):
    command = [sys.executable, str(ROOT / script), "--no_such"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "--no_such" in done.stderr
