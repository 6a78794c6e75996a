"""Requests to stop a run between two steps: SIGTERM and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ECHO = 1.0  # seconds; launchers pass a Ctrl-C on that the terminal has already sent to this process


class StopRequest:
    """What :func:`stop_signals` gives: ``number`` of the signal that asks to stop, 0 while none does."""

    def __init__(self, show: bool) -> None:
        self.number = 0
        self._show = show
        self._since = 0.0

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler. A second Ctrl-C ends the process at once, with exit code 130."""
        now = time.monotonic()
        if not self.number:
            self.number, self._since = number, now
            if self._show and number == signal.SIGINT:
                os.write(2, b"\nsaving a checkpoint; Ctrl-C once more stops at once\n")
        elif number == signal.SIGINT and now - self._since > _ECHO:
            os._exit(128 + number)


@contextmanager
def stop_signals(show: bool = True) -> Iterator[StopRequest]:
    """Record SIGTERM and Ctrl-C instead of ending; without effect outside the main thread.

    Args:
        show: print a line on standard error after Ctrl-C.
    """
    request = StopRequest(show)
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, request.note) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
