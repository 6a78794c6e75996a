"""One live process at a time holds a lock."""

import errno
import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import forkserver

from dystress_text.errors import UserError
from dystress_text.io.lock import LOCK, locked


def hold(file, ready):
    with locked(file):
        ready.set()
        time.sleep(600)


def test_lock_ends_with_its_process(tmp_path):
    file = tmp_path / "out" / LOCK
    ready = forkserver().Event()
    holder = forkserver().Process(target=hold, args=(file, ready))
    holder.start()
    assert ready.wait(60)
    try:
        with pytest.raises(UserError, match="in use by another process"), locked(file):
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
    with locked(tmp_path / "a" / "b" / LOCK):
        (tmp_path / "a" / "mine").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine"]


def test_disk_without_locks_warns(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.warns(UserWarning, match="no file locks"), locked(tmp_path / "out" / LOCK):
        pass
    assert list(tmp_path.iterdir()) == []


def test_waiting_threads_take_turns(tmp_path):
    """Each holder removes the file that the others have open."""
    inside, seen = [], []

    def work(number):
        for _ in range(5):
            with locked(tmp_path / LOCK, wait=True):
                inside.append(number)
                time.sleep(0.002)
                seen.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert seen == [1] * 30
