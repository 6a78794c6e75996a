"""Output of the library: messages, by logging, and progress bars.

``logging.getLogger("dystress_text").setLevel("WARNING")`` silences both. The logger
``dystress_text.progress`` is for the bars and for single results, which go to standard error.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

OUTPUT = logging.getLogger("dystress_text")
PROGRESS = OUTPUT.getChild("progress")


class _Printer(logging.Handler):
    """Print messages to the current ``sys.stdout`` or ``sys.stderr``.

    Notebooks and tests replace these streams.
    """

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr if record.name == PROGRESS.name else sys.stdout
        print(self.format(record), file=stream, flush=True)


OUTPUT.addHandler(_Printer())
OUTPUT.propagate = False  # else a configured root logger repeats all messages
OUTPUT.setLevel(OUTPUT.level or logging.INFO)


def progress_bar(
    iterable: Iterable[Any] | None = None, show: bool = True, **options: Any
) -> tqdm[Any]:
    """Return a tqdm bar that appears after one second.

    Where standard error is no terminal, the bar is printed every ten seconds.
    """
    interval = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(
        iterable,
        disable=not (show and PROGRESS.isEnabledFor(logging.INFO)),
        delay=1,
        mininterval=interval,
        maxinterval=interval,
        dynamic_ncols=True,
        **options,
    )
