"""Packages that only some programs need: the extras of ``pyproject.toml``."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

from dystress_text.errors import UserError

EXTRAS = {
    "plots": ("matplotlib", "jinja2"),
    "lora": ("peft",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "vision": ("kornia", "PIL", "pytorch_optimizer"),
}
ROOT = Path(__file__).resolve().parents[2]


def require(extra: str, what: str) -> None:
    """Check that an extra is installed; ``what`` is the feature that needs it."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise UserError(f"{what} needs {' and '.join(missing)}: pip install {_wanted(extra)}")


def _wanted(extra: str) -> str:
    """Return what pip is told; in a checkout its folder, with the versions that were tested."""
    if not (ROOT / "constraints.txt").is_file():
        return f"'dystress-text[{extra}]'"
    place = Path() if Path.cwd() == ROOT else ROOT
    constraints = shlex.quote(str(place / "constraints.txt"))
    package = shlex.quote(f"{place}[{extra}]")
    return f"-c {constraints} -e {package}"
