"""Progress bars."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress_bar(
    iterable: Iterable[Any] | None = None, show: bool = True, **options: Any
) -> tqdm[Any]:
    """Return a tqdm bar that appears after a second.

    If standard error is not a terminal, it updates every ten seconds.
    """
    interval = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(
        iterable,
        disable=not show,
        delay=1,
        mininterval=interval,
        maxinterval=interval,
        dynamic_ncols=True,
        **options,
    )
