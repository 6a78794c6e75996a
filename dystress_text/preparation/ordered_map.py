"""A function applied in several processes, with results in order and few items under way.

Worker processes import this module and the function's; this one needs only the standard library.
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
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Generator[tuple[Item, Result], None, None]:
    """Each item with the function's result for it, in order.

    Two items a worker, and one more, are under way at a time: ``Executor.map`` would take in all of them at once. With
    one worker, this process does the work. Close the generator to end the workers.

    Raises:
        BrokenProcessPool: a worker was ended from outside.
    """
    if workers == 1:
        for item in items:
            yield item, function(item)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker)
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(function, item)))
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
