"""One live process at a time holds a lock."""

import errno
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dystress_text.errors import UserError
from dystress_text.io.lock import LOCK, locked


def hold(file, ready):
    with locked(file):
        ready.set()
        time.sleep(600)


def test_lock_ends_with_its_process(tmp_path):
    file = tmp_path / "out" / LOCK
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    holder = fork.Process(target=hold, args=(file, ready))
    holder.start()
    assert ready.wait(60)
    try:
        with pytest.raises(UserError, match=LOCK), locked(file):
            pass
    finally:
        holder.kill()
        holder.join()
    with locked(file):
        assert file.exists()
    assert list(tmp_path.rglob("*")) == [file.parent]  # another process created it


def test_created_folders_are_removed_if_empty(tmp_path):
    with locked(tmp_path / "a" / "b" / LOCK):
        pass
    assert list(tmp_path.iterdir()) == []


def test_disk_without_locks_warns(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.warns(UserWarning, match="one process at a time"), locked(tmp_path / LOCK):
        pass


def test_waiting_threads_take_turns(tmp_path):
    """Each holder removes the file that the others have open."""
    inside = []
    seen = []

    def work(number):
        for _ in range(4):
            with locked(tmp_path / LOCK, wait=True):
                inside.append(number)
                time.sleep(0.001)
                seen.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(3)))
    assert seen == [1] * 12
