"""Check that the packages of an extra in ``pyproject.toml`` are installed."""

from __future__ import annotations

from importlib.util import find_spec

from dystress_text.errors import UserError

EXTRAS = {
    "plots": ("matplotlib", "jinja2"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "vision": ("kornia", "PIL", "pytorch_optimizer"),
}


def require(extra: str, what: str) -> None:
    """Raise a UserError if an extra is not installed; ``what`` names the feature."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        packages = " and ".join(missing)
        raise UserError(f"{what} needs {packages}; install dystress-text[{extra}]")
