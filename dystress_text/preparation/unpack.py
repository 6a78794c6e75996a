"""Unpacking a tar archive that is not trusted."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

from dystress_text.errors import DataError, reason_of

MOST_MEMBERS = 500_000
MOST_BYTES = 32 << 30
MOST_RATIO = 100  # bytes unpacked by bytes of the archive; a small archive may always unpack to a megabyte


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive, plain or compressed, into a folder, which an error leaves half-full.

    Raises:
        DataError: damaged, too large, or hostile: a name that leads out of the folder, a link, a device.
    """
    try:
        most = min(MOST_BYTES, max(1 << 20, MOST_RATIO * archive.stat().st_size))
        with tarfile.open(archive) as tar:
            tar.extractall(folder, _bounded(tar, most), filter="data")
            while tar.fileobj is not None and tar.fileobj.read(1 << 20):  # to the checksum of compressed data
                pass
    except Exception as error:  # tarfile and the decoders raise many kinds
        if isinstance(error, OSError) and error.errno is not None:  # of this machine, such as a full disk
            raise
        raise DataError(f"{archive} is no archive, is damaged, or is not safe to unpack: {reason_of(error)}") from error


def _bounded(tar: tarfile.TarFile, most: int) -> Iterator[tarfile.TarInfo]:
    """The files and folders of an archive, as long as they are few and small enough."""
    total = 0
    for number, member in enumerate(tar, 1):
        total += member.size
        if number > MOST_MEMBERS or total > most:
            raise ValueError(f"more than {MOST_MEMBERS:,} members, or {most:,} bytes")
        if not (member.isreg() or member.isdir()):  # links are how the filter of older Pythons is led astray
            raise ValueError(f"{member.name!r} is neither a file nor a folder")
        yield member
