"""The common style of all figures. Needs the ``plots`` extra."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib.style

# a colour-blind-safe palette, and line styles so that print in grey still tells the curves apart
STYLES = [
    ("#0072b2", "-"),
    ("#d55e00", "--"),
    ("#009e73", "-."),
    ("#595959", ":"),
    ("#cc79a7", (0, (6, 1, 1, 1))),
    ("#e69f00", "-"),
    ("#56b4e9", "--"),
]
GREY = "#8c8c8c"


def style() -> AbstractContextManager[None]:
    """Text sizes (from 7 points), grid and layout of all figures, in a context."""
    return matplotlib.style.context(Path(__file__).with_name("figures.mplstyle"))
