"""Packages that only some programs need: the extras of ``pyproject.toml``."""

from __future__ import annotations

from importlib.util import find_spec

from dystress_text.errors import UserError

EXTRAS = {"plots": ("matplotlib", "jinja2"), "lora": ("peft",), "onnx": ("onnx", "onnxscript", "onnxruntime")}


def require(extra: str, what: str) -> None:
    """Check that an extra is installed; ``what`` is the feature that needs it, for the message."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise UserError(f"{what} needs {' and '.join(missing)}: pip install 'dystress-text[{extra}]'")
