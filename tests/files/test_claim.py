"""One process alone writes a place: on one machine, in containers, and on a disk that several
machines share.
"""

import errno
import fcntl
import os
import signal
import time

import pytest
from processes import forkserver

from dystress_text.errors import UserError
from dystress_text.files import claim
from dystress_text.files.claim import GONE, LOCK, claimed


def hold(file, ready):
    """In a new process, until it is killed."""
    with claimed(file):
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
    told = rf"^{str(file.parent)!r} is in use by .* process {holder.pid}; nothing was changed$"
    with pytest.raises(UserError, match=told), claimed(file):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert sorted(tmp_path.rglob("*")) == before
    with claimed(file):
        assert file.read_text().endswith(f" process {os.getpid()}")
    assert list(tmp_path.rglob("*")) == [file.parent]  # which was not made by this one


def test_folders_that_were_made_for_it_go_while_they_are_empty(tmp_path):
    with claimed(tmp_path / "a" / "b" / LOCK):
        pass
    assert list(tmp_path.iterdir()) == []
    with claimed(tmp_path / "a" / "b" / LOCK):
        (tmp_path / "a" / "mine").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine"]


@pytest.mark.parametrize("flock", [True, False], ids=["locks of one machine", "no locks"])
def test_on_a_shared_disk_the_signs_of_life_of_another_host_count(flock, tmp_path, monkeypatch):
    """The same process id on another host, also where its clock is far off: times are those of the
    disk.
    """
    if not flock:

        def refused(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refused)
    file = tmp_path / LOCK
    file.write_text(f"elsewhere (another boot) process {os.getpid()}")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with pytest.raises(
        UserError, match=r"in use by elsewhere .*, which lived 0 s ago; if it is gone, try again in"
    ):
        claimed(file).__enter__()
    assert file.read_text().startswith("elsewhere")
    os.utime(file, (0, file.stat().st_mtime - GONE - 1))
    with claimed(file):
        assert not file.read_text().startswith("elsewhere")
        with pytest.raises(UserError, match="in use by"):
            claimed(file).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_holder_gives_signs_of_life_and_ends_when_its_place_was_taken_over(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(claim, "BEAT", 0.01)
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    file = tmp_path / LOCK
    with claimed(file):
        os.utime(file, (0, 0))
        deadline = time.monotonic() + 60
        while file.stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert ended == []
        file.write_text("elsewhere process 1")
        while not ended:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert set(ended) == {2}
    assert "was taken over by elsewhere process 1; this process ends" in capsys.readouterr().err
    assert file.read_text() == "elsewhere process 1"  # and stays that one's
