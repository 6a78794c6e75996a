"""A claim on a place that one process alone may write: a lock that names the host and the process which has it.

On one machine, containers included, the kernel's own lock on the file (flock) decides, and ends with its process
however that ends: process ids come again, and two containers have the same ones. A disk that several machines share may
not pass such locks on. There the holder's signs of life decide, which are times of change on the disk's own clock.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dystress_text.errors import UserError

LOCK = ".lock"  # its name inside a folder
BEAT, GONE = 5.0, 60.0  # seconds between two signs of life, and without one for so long a holder elsewhere is gone


@contextmanager
def claimed(file: Path) -> Iterator[None]:
    """Hold the lock ``file``, whose folder is made; a UserError says who has it.

    At the end the lock goes, with the folders that were made for it and are still empty.

    Raises:
        UserError: another process has the lock. What it holds was not touched.
        OSError: the folder cannot be made or written.
    """
    made = [folder for folder in file.parents if not folder.exists()]
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, ours, released = _open(file), _identity(), threading.Event()
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


def _identity() -> str:
    """This process in words: its host, which a reboot makes another one, and its id."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    started = f" ({boot.read_text().strip()})" if boot.is_file() else ""
    return f"{socket.gethostname()}{started} process {os.getpid()}"


def _open(file: Path) -> int:
    """The lock, open and held."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            shared = _locked(descriptor, file)
            if shared and not _is_still(descriptor, file):  # its last holder has removed it since
                continue
            _check_gone(file, shared)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _identity().encode(), 0)
            kept, descriptor = descriptor, -1
            return kept
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _locked(descriptor: int, file: Path) -> bool:
    """Take the kernel's lock; False where the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _in_use(file) from error
    except OSError:
        return False
    return True


def _is_still(descriptor: int, file: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), file.stat())
    return False


def _check_gone(file: Path, shared: bool) -> None:
    """Refuse a lock whose holder may live on another machine, or where the kernel does not tell."""
    holder, here = _holder(file), _identity().rpartition(" process ")[0]
    if not holder or (shared and holder.startswith(f"{here} process ")):
        return  # nobody's, or that of a process here, which the kernel says is gone
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f"{file.name}.") as now:
        silent = os.fstat(now.fileno()).st_mtime - file.stat().st_mtime
    if silent < GONE:
        raise _in_use(file, f", which lived {max(0, silent):.0f} s ago; if it is gone, try again in {GONE:.0f} s")


def _in_use(file: Path, more: str = "") -> UserError:
    place = file.parent if file.name == LOCK else file.with_name(file.name.removeprefix(".").removesuffix(LOCK))
    return UserError(f"{str(place)!r} is in use by {_holder(file) or 'another process'}{more}; nothing was changed")


def _holder(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def _live(file: Path, ours: str, released: threading.Event) -> None:
    """Give signs of life until the lock is released; end this process where another one has taken it over.

    That can only be one on another machine, after this process was stopped for a minute, and the place is now its own.
    """
    while not released.wait(BEAT):
        if (holder := _holder(file)) not in ("", ours):
            print(f"error: {str(file.parent)!r} was taken over by {holder}; this process ends", file=sys.stderr)
            os._exit(2)
        with suppress(OSError):
            os.utime(file)
