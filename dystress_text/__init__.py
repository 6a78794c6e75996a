"""Sentence embeddings with a temperature that depends on the cosine similarity of each pair (DySTreSS)."""

from typing import TYPE_CHECKING

from dystress_text.core import *  # noqa: F403
from dystress_text.core import __all__ as _core

__version__ = "0.1.0"
__all__ = [*_core, "DySTreSSLoss"]

if TYPE_CHECKING:
    from dystress_text.sentence_transformers_loss import DySTreSSLoss
else:  # the rest of the package needs torch alone; a type checker would take any name for a good one

    def __getattr__(name: str) -> object:
        if name == "DySTreSSLoss":
            from dystress_text.sentence_transformers_loss import DySTreSSLoss

            return DySTreSSLoss
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
