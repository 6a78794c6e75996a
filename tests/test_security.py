"""No call in the sources may run code or load a pickle that a file brings."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "unsafe", ["weights_only=False", "allow_pickle=True", "trust_remote_code=True"]
)
def test_no_code_or_pickle_is_asked_for(unsafe):
    """ruff's rules ban the imports that run what a file holds."""
    files = [file for name in ("dystress_text", "vision") for file in (ROOT / name).rglob("*.py")]
    assert files
    assert [file for file in files if unsafe in file.read_text(encoding="utf-8")] == []
