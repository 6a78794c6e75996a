"""A claim on a place that one process alone may write: a lock that names the host and the process
which has it.

On one machine, containers included, the kernel's own lock on the file (flock) decides, and ends
with its process however that ends: process ids come again, and two containers have the same ones. A
disk that several machines share may not pass such locks on. There the holder's signs of life
decide, which are times of change on the disk's own clock.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dystress_text.errors import UserError

LOCK = ".lock"  # its name inside a folder
BEAT, GONE = (
    5.0,
    60.0,
)  # seconds between two signs of life; without one for so long, a holder elsewhere is gone
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def claimed(file: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock ``file``, whose folder is made. At the end it goes, with the folders made that
    are still empty.

    Where another process has the lock, wait for it, or raise a UserError that says so, and touch
    nothing.
    """
    made = [folder for folder in file.parents if not folder.exists()]
    file.parent.mkdir(parents=True, exist_ok=True)
    here = f"{socket.gethostname()}{f' ({_BOOT.read_text().strip()})' if _BOOT.is_file() else ''} process "
    ours, released = f"{here}{os.getpid()}", threading.Event()
    while True:
        try:
            descriptor = _take(file, here)
            break
        except UserError:
            if not wait:
                raise
            time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, ours.encode(), 0)
    beat = threading.Thread(target=_live, args=(file, ours, released), daemon=True)
    beat.start()
    try:
        yield
    finally:
        released.set()
        beat.join()
        if _holder(file) == ours:
            file.unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):
            for folder in made:
                folder.rmdir()


def _take(file: Path, here: str) -> int:
    """The lock, open; one of a process on this host, ``here``, that is gone is taken over."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            kernel = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _in_use(file) from error
            except OSError:  # this file system has no such locks
                kernel = False
            holder = _holder(file)
            if holder and not (kernel and holder.startswith(here)):
                with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f"{file.name}.") as now:
                    silent = os.fstat(now.fileno()).st_mtime - file.stat().st_mtime
                if silent < GONE:
                    raise _in_use(
                        file,
                        f", which lived {silent:.0f} s ago; if it is gone, try again in {GONE:.0f} s",
                    )
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                return descriptor
        except FileNotFoundError:  # its last holder has just removed it
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _in_use(file: Path, more: str = "") -> UserError:
    place = (
        file.parent
        if file.name == LOCK
        else file.with_name(file.name.removeprefix(".").removesuffix(LOCK))
    )
    holder = (
        name
        if (name := _holder(file)) and len(name) < 200 and name.isprintable()
        else "another process"
    )
    return UserError(f"{str(place)!r} is in use by {holder}{more}; nothing was changed")


def _holder(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _live(file: Path, ours: str, released: threading.Event) -> None:
    """Give signs of life until the lock is released; end this process where another one has taken
    it over.

    That can only be one on another machine, after this process was stopped for a minute, and the
    place is now its own.
    """
    while not released.wait(BEAT):
        with suppress(OSError):
            if (holder := _holder(file)) not in ("", ours):
                print(
                    f"error: {str(file.parent)!r} was taken over by {holder}; this process ends",
                    file=sys.stderr,
                )
                os._exit(2)
            os.utime(file)
