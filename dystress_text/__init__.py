"""Sentence embeddings with a temperature that depends on the cosine similarity of each pair (DySTreSS)."""

from dystress_text.core import *  # noqa: F403
from dystress_text.core import __all__ as _core

__version__ = "0.1.0"
__all__ = list(_core)
