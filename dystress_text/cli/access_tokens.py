"""Recognises access tokens of the hub, so that none is shown or recorded."""

from __future__ import annotations

import os
import re

_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")
_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_SHORTEST = 8  # a shorter value is not a token, and replacing it would hide ordinary words


def without_tokens(text: str) -> str:
    """The text with stars in place of each token: those of the environment, and whatever has the form of one."""
    for variable in _VARIABLES:
        token = os.environ.get(variable, "").strip()
        if len(token) >= _SHORTEST:
            text = text.replace(token, "***")
    return _TOKEN.sub("***", text)


def holds_token(text: str) -> bool:
    """Whether the text contains a token."""
    return without_tokens(text) != text
