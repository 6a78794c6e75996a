"""A bound on the kernels that a CPU keeps for shapes that come once."""

from __future__ import annotations

import os

CAPACITY = 32  # above the number of different products in a step of an encoder


def keep_few_kernels() -> None:
    """Bound oneDNN's caches of kernels, for this process; call it before anything is computed.

    Each batch without padding has a number of tokens of its own. So oneDNN builds new bf16 kernels in each step, which
    do not come back. By default it keeps 1,024 of them, and as many descriptions: with MiniLM a process grows by 20 MB
    a step. The environment variables are read once, when oneDNN starts. What the user has set stays.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # of oneDNN, and of torch's layer above it
        os.environ.setdefault(name, str(CAPACITY))
