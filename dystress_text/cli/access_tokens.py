"""Access tokens of the hub, known when seen, so that none is shown or recorded."""

from __future__ import annotations

import os
import re

_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")
_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_SHORTEST = 8  # what is shorter is no token, and would hide words that only look like it


def without_tokens(text: str) -> str:
    """The text with each token, of this environment or by its look, replaced by stars."""
    for variable in _VARIABLES:
        token = os.environ.get(variable, "").strip()
        if len(token) >= _SHORTEST:
            text = text.replace(token, "***")
    return _TOKEN.sub("***", text)


def holds_token(text: str) -> bool:
    """Whether a token stands in the text."""
    return without_tokens(text) != text
