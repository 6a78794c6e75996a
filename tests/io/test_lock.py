"""One process at a time holds a lock, and none that is gone."""

import errno
import fcntl
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import forkserver

from dystress_text.errors import UserError
from dystress_text.io.lock import LOCK, locked


def hold(file, ready):
    """In a new process, until it is killed."""
    with locked(file):
        ready.set()
        time.sleep(600)


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock of ``tmp_path / out``."""
    ready = forkserver().Event()
    process = forkserver().Process(target=hold, args=(tmp_path / "out" / LOCK, ready))
    process.start()
    assert ready.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_second_process_is_refused_until_the_first_is_gone_however_it_ends(holder, tmp_path):
    file = tmp_path / "out" / LOCK
    before = sorted(tmp_path.rglob("*"))
    told = rf"^{str(file.parent)!r} is in use by another process; nothing was changed$"
    with pytest.raises(UserError, match=told), locked(file):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert sorted(tmp_path.rglob("*")) == before
    with locked(file):
        assert file.exists()
    assert list(tmp_path.rglob("*")) == [file.parent]  # which was not made by this one


def test_folders_that_were_made_for_it_go_while_they_are_empty(tmp_path):
    with locked(tmp_path / "a" / "b" / LOCK):
        pass
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "a" / "b" / LOCK):
        (tmp_path / "a" / "mine").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_warned_about_and_nothing_is_left(number, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    warned = pytest.warns(UserWarning, match="has no file locks: see to it that one process")
    with warned, locked(tmp_path / "out" / LOCK):
        (tmp_path / "out" / "mine").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine"]


def test_who_waits_gets_the_lock_that_its_holder_removes(tmp_path):
    """One thread at a time is inside, though each removes the file that the others open."""
    inside, seen = [], []

    def work(number):
        for _ in range(5):
            with locked(tmp_path / LOCK, wait=True):
                inside.append(number)
                time.sleep(0.002)
                seen.append([*inside])
                inside.remove(number)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert len(seen) == 30
    assert all(len(each) == 1 for each in seen)
    assert list(tmp_path.iterdir()) == []
