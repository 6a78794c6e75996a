"""Sentence embeddings by contrastive learning with similarity-dependent temperatures (DySTreSS)."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from dystress_text.analysis.audit import Audit, audit
    from dystress_text.analysis.finished_run import FinishedRun
    from dystress_text.errors import UserError
    from dystress_text.losses import *  # noqa: F403
    from dystress_text.losses import __all__ as _losses
    from dystress_text.programs.evaluate import evaluate
    from dystress_text.programs.train import train
    from dystress_text.sentence_transformers_loss import DySTreSSLoss

    __all__ = [
        *_losses,
        "Audit",
        "DySTreSSLoss",
        "FinishedRun",
        "UserError",
        "audit",
        "evaluate",
        "train",
    ]
else:  # a __getattr__ that type checkers see would accept any name
    _ELSEWHERE = {
        "Audit": "dystress_text.analysis.audit",
        "audit": "dystress_text.analysis.audit",
        "DySTreSSLoss": "dystress_text.sentence_transformers_loss",
        "evaluate": "dystress_text.programs.evaluate",
        "FinishedRun": "dystress_text.analysis.finished_run",
        "train": "dystress_text.programs.train",
        "UserError": "dystress_text.errors",
    }

    def __getattr__(name: str) -> object:
        """Import a public name on first use: workers that clean text need no torch."""
        if name in _ELSEWHERE:
            return getattr(importlib.import_module(_ELSEWHERE[name]), name)
        # of version 0.2; ``from ... import`` would replace the message of an AttributeError
        if name == "loss":
            raise ImportError("loss: now parse_loss")
        if not name.startswith("__") or name == "__all__":
            losses = importlib.import_module("dystress_text.losses")
            if name == "__all__":
                return [*losses.__all__, *_ELSEWHERE]
            if name in losses.__all__:
                return getattr(losses, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
