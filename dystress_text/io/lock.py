"""A file lock (flock) that one process holds at a time, on all hosts that share the disk.

The kernel releases it when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dystress_text.errors import UserError

LOCK = ".lock"  # its name inside a folder
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # such as Lustre mounted without flock


@contextmanager
def locked(file: Path, wait: bool = False) -> Iterator[None]:
    """Hold a lock on ``file``. Its folder is created, and removed at the end if it is empty.

    If the file system does not support locks, a warning says so.

    Args:
        file: the lock file.
        wait: whether to wait until another process releases the lock.

    Raises:
        UserError: another process holds the lock, and ``wait`` is False.
    """
    created = [folder for folder in file.parents if not folder.exists()]
    file.parent.mkdir(parents=True, exist_ok=True)
    # filelock's soft lock would outlive a process that is killed
    lock = FileLock(file, timeout=-1 if wait else 0, fallback_to_soft=False)
    _acquire(lock, file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # before the release: a waiting process then retries
        lock.release()
        with suppress(OSError):
            for folder in created:
                folder.rmdir()


def _acquire(lock: FileLock, file: Path) -> None:
    try:
        lock.acquire()
    except Timeout as error:
        raise UserError(
            f"{str(file)!r} is in use by another process; wait until it ends"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(f"{error}: run one process at a time there", stacklevel=4)
