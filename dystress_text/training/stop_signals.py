"""Requests to stop a run between two steps: SIGTERM, Ctrl-C and the death of the launcher."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType

import psutil

_ECHO = 1.0  # seconds; launchers pass a Ctrl-C on that the terminal has already sent to this process
_POLL = 1.0  # seconds between checks of the launcher
_LAUNCHERS = ("accelerate", "torchrun", "torch.distributed.run", "torch.distributed.launch")


class StopSignals:
    """A context that records requests to stop. A second Ctrl-C ends the process at once, with exit code 130.

    Signal handlers are set only in the main thread.

    Args:
        show: whether to print a line on standard error after Ctrl-C.

    Attributes:
        requested: the number of the signal, 0 for none. The launcher's death counts as SIGTERM.
    """

    def __init__(self, show: bool = True) -> None:
        self.requested = 0
        self._show = show
        self._since = 0.0
        self._over = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        if _LAUNCHER is not None:
            threading.Thread(target=self._wait_for_end, args=(_LAUNCHER,), daemon=True, name="launcher").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # signal.signal returned it

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.requested:
            self.requested, self._since = number, now
            if self._show and number == signal.SIGINT:
                os.write(2, b"\nsaving a checkpoint; Ctrl-C once more stops at once\n")
        elif number == signal.SIGINT and now - self._since > _ECHO:
            os._exit(128 + number)

    def _wait_for_end(self, launcher: int) -> None:
        while os.getppid() == launcher:
            if self._over.wait(_POLL):
                return
        self.requested = self.requested or signal.SIGTERM


def _launcher() -> int | None:
    """The parent process if it is a launcher, whose death ends this process; the death of a shell does not."""
    parent = os.getppid()
    try:
        command = psutil.Process(parent).cmdline()
    except psutil.Error:
        return None
    launched = any(os.path.basename(word) in _LAUNCHERS or word.startswith("accelerate.") for word in command[:4])
    return parent if launched else None


_LAUNCHER = _launcher()  # at import, because it may die while the data are read
