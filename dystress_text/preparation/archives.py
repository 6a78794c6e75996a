"""Members of a tar or zip archive as streams, read strictly and in bounded memory.

``tarfile`` takes a damaged header for the end of the archive, reads a header's extensions into memory whatever their
size, and does not check the end of the archive. :class:`_Header`, :class:`_MeteredStream` and :func:`_tar_members` do.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Self, cast

from dystress_text.preparation.corpus_reader import unpacked

PIECE = 1 << 16  # bytes read at a time
HEADER_BYTES = 1 << 16  # of one member's headers in a tar archive, long names and pax records with them
NEITHER = "it is neither a tar nor a zip archive"


class ArchiveError(Exception):
    """Why an archive is refused, in words that follow its name and a colon."""


class _BadHeaderError(ArchiveError):
    """A tar header is damaged; if it is the first one, the file is not a tar archive."""


@dataclass(frozen=True)
class Member:
    """A file or folder of an archive.

    Attributes:
        name: as the archive has it, unchecked.
        folder: whether it is a folder; it is a file otherwise.
        content: the bytes in pieces, to be read before the next member is asked for.
    """

    name: str
    folder: bool
    content: Iterator[bytes]


def members(archive: Path, most_bytes: int, most_directory: int) -> Generator[Member, None, None]:
    """The members of a tar (plain, gz, bz2, xz) or zip archive, told apart by content.

    Args:
        archive: the file.
        most_bytes: that the archive may hold when unpacked, counted as they are read, a tar's headers with them.
        most_directory: bytes of a zip's directory of members, which is read at once.

    Raises:
        ArchiveError: neither tar nor zip, damaged, cut short, too large, or a member is neither file nor folder.
        OSError: the file cannot be read.
    """
    meter = _Meter(most_bytes, "it unpacks to more than the allowed multiple of its own size")
    with archive.open("rb") as file:
        if file.peek(4).startswith((b"PK\3\4", b"PK\5\6")):
            with _BoundedFile(archive, most_directory) as bounded:
                yield from _zip_members(bounded, meter)
        else:
            with unpacked(file) as stream:
                yield from _tar_members(_MeteredStream(stream, meter))


class _Meter:
    """Counts bytes.

    Args:
        most: that are allowed.
        refusal: what to raise when more come.
    """

    def __init__(self, most: int, refusal: str) -> None:
        self._left, self._refusal = most, refusal

    def count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ArchiveError(self._refusal)


class _MeteredStream:
    """A stream whose every byte is counted, and the bytes of one member's headers once more."""

    def __init__(self, stream: BinaryIO, meter: _Meter) -> None:
        self._stream, self._meters = stream, [meter]

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        for meter in self._meters:
            meter.count(len(data))
        return data

    @contextmanager
    def headers(self) -> Iterator[None]:
        """What is read inside is one member's headers."""
        self._meters.append(_Meter(HEADER_BYTES, "a member has headers without bound"))
        try:
            with _damage():
                yield
        finally:
            self._meters.pop()


class _BoundedFile(io.FileIO):
    """A file that refuses to be read in too large a piece, which is how zipfile reads the directory of members."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(path)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > max(self._most, PIECE):
            raise ArchiveError("its directory of members is larger than the allowed number of members needs")
        return super().read(-1 if size is None else size) or b""


@contextmanager
def _damage() -> Iterator[None]:
    """Turn what tarfile, zipfile and the decoders raise on damaged data into an ArchiveError; other errors pass."""
    try:
        yield
    except (ArchiveError, MemoryError):
        raise
    except Exception as error:  # of many kinds; nothing of ours runs inside but the reading
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # of the machine: decoders give no number, and zipfile seeks before the beginning
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ArchiveError(f"it is damaged or cut short ({reason})") from error


class _Header(tarfile.TarInfo):
    """A tar header that raises where tarfile would end the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # zeros, which do end it
            raise
        except tarfile.HeaderError as error:
            raise _BadHeaderError(f"a member's header is damaged or cut short ({error})") from error


def _tar_members(stream: _MeteredStream) -> Iterator[Member]:
    """Members of a tar archive; two blocks of zeros must end it."""
    try:
        with stream.headers():
            tar = tarfile.open(  # noqa: SIM115  # the caller closes the file
                fileobj=cast(IO[bytes], stream), mode="r|", tarinfo=_Header, encoding="utf-8"
            )
    except _BadHeaderError as error:
        raise ArchiveError(NEITHER) from error
    while (info := _next_header(tar, stream)) is not None:
        folder = info.isdir() or info.name.endswith("/")  # the oldest archives have no kind of folders
        _check_kind(info.name, info.isfile() or folder, folder, info.size)
        content = iter(()) if folder else _pieces(cast(IO[bytes], tar.extractfile(info)))
        yield Member(info.name, folder, content)
        for _ in content:  # what the caller has left
            pass
    with _damage():
        if cast(IO[bytes], tar.fileobj).read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ArchiveError("its end is damaged or cut short")
        while stream.read(PIECE):  # to the checksum of the compressed data
            pass


def _next_header(tar: tarfile.TarFile, stream: _MeteredStream) -> tarfile.TarInfo | None:
    with stream.headers():
        info = tar.next()
    tar.members.clear()  # type: ignore[attr-defined]  # where tarfile collects them
    if info is None:
        return None
    sparse = info.issparse() or any(key.startswith("GNU.sparse") for key in info.pax_headers)
    if sparse or tar.pax_headers.keys() & {"path", "size"}:
        raise ArchiveError("it has a sparse file or one name for all members")
    if info.size < 0:
        raise ArchiveError(f"{shown(info.name)} has a negative size")
    return info


def _zip_members(file: _BoundedFile, meter: _Meter) -> Iterator[Member]:
    """Members of a zip archive, stored or deflated; zipfile unpacks other methods without bound."""
    with _damage():
        archive = zipfile.ZipFile(file)
        _check_count(file, archive)
    with archive:
        for info in archive.infolist():
            name, kind = info.orig_filename, stat.S_IFMT(info.external_attr >> 16)  # filename ends at a NUL
            folder = name.endswith("/")
            _check_kind(name, kind in (0, stat.S_IFDIR if folder else stat.S_IFREG), folder, info.file_size)
            if info.flag_bits & 1:
                raise ArchiveError(f"{shown(name)} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ArchiveError(f"{shown(name)} is compressed by a method other than deflate")
            yield Member(name, folder, _zip_content(archive, info, meter))


def _check_count(file: _BoundedFile, archive: zipfile.ZipFile) -> None:
    """See that the directory has as many members as the archive's end says; a damaged length can swallow one."""
    file.seek(-len(archive.comment) - 12, os.SEEK_END)  # the end record has 22 bytes, and the comment behind them
    (count,) = struct.unpack("<H", file.read(2))
    if count != min(len(archive.infolist()), 0xFFFF):
        raise ArchiveError(f"its end names {count} members, and its directory has {len(archive.infolist())}")


def _zip_content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, meter: _Meter) -> Iterator[bytes]:
    with _damage():
        stream = archive.open(info)
    size = 0
    with stream:
        for data in _pieces(stream):
            meter.count(len(data))
            size += len(data)
            yield data
    if size != info.file_size:
        raise ArchiveError(f"{shown(info.orig_filename)} has {size} bytes instead of {info.file_size}")


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while True:
        with _damage():
            data = stream.read(PIECE)
        if not data:
            return
        yield data


def _check_kind(name: str, usual: bool, folder: bool, size: int) -> None:
    if not usual:
        raise ArchiveError(f"{shown(name)} is a link, a device or another special file")
    if folder and size:
        raise ArchiveError(f"{shown(name)} is a folder with content")


def shown(name: str) -> str:
    """A member's name as messages have it: quoted, on one line, of bounded length."""
    return repr(name if len(name) <= 120 else f"{name[:100]}...")
