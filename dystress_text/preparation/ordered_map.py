"""A function applied in several processes, with results in order and few items under way.

Worker processes import this module and the function's; this one needs the standard library alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from typing import TypeVar

Item = TypeVar("Item")
Argument = TypeVar("Argument")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Argument], Result], items: Iterable[tuple[Item, Argument]], workers: int
) -> Generator[tuple[Item, Result], None, None]:
    """Each item, which stays in this process, with the function's result for its argument, in order.

    Two arguments a worker, and one more, are under way at a time. With one worker, this process does the work. Close
    the generator to end the workers.

    Raises:
        BrokenProcessPool: a worker was ended from outside.
    """
    if workers == 1:
        for item, argument in items:
            yield item, function(argument)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker)
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item, argument in items:
            waiting.append((item, pool.submit(function, argument)))
            if len(waiting) > 2 * workers:
                earliest, future = waiting.popleft()
                yield earliest, future.result()
        while waiting:
            earliest, future = waiting.popleft()
            yield earliest, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leave interruptions to the parent process, and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
