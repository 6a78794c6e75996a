"""Check for the packages of the extras in ``pyproject.toml``."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

from dystress_text.errors import UserError

EXTRAS = {
    "plots": ("matplotlib", "jinja2"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "vision": ("kornia", "PIL", "pytorch_optimizer"),
}
ROOT = Path(__file__).resolve().parents[2]


def require(extra: str, what: str) -> None:
    """Raise a UserError if an extra is not installed; ``what`` names the feature."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise UserError(f"{what} needs {' and '.join(missing)}: pip install {_wanted(extra)}")


def _wanted(extra: str) -> str:
    """Return the arguments of pip; in a checkout its folder, with tested versions."""
    if not (ROOT / "constraints.txt").is_file():
        return f"'dystress-text[{extra}]'"
    path = Path() if Path.cwd() == ROOT else ROOT
    constraints = shlex.quote(str(path / "constraints.txt"))
    package = shlex.quote(f"{path}[{extra}]")
    return f"-c {constraints} -e {package}"
