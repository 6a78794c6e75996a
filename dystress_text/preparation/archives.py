"""Members of a tar or zip archive as streams, read strictly and in bounded memory.

Tar is read here and not by ``tarfile``, which takes a damaged header for the end of the archive, accepts one that was
cut off between two members, and reads a header's extension into memory whatever its size. Zip is read by ``zipfile``.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

BLOCK = 512  # bytes; a tar archive is made of them
PIECE = 1 << 16  # bytes read at a time
EXTENSION_BYTES = 1 << 20  # of one tar header's extension: a long name, or pax records
XZ_MEMORY = 1 << 28  # bytes; xz -9 needs 65 MiB
NEITHER = "it is neither a tar nor a zip archive"

FILES, FOLDERS, EXTENSIONS = (b"0", b"\0", b"7"), (b"5",), (b"x", b"g", b"L", b"K")
KINDS = {
    b"1": "hard link", b"2": "symbolic link", b"3": "device", b"4": "device", b"6": "FIFO", b"S": "sparse file",
    stat.S_IFLNK: "symbolic link", stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
}  # fmt: skip


class ArchiveError(Exception):
    """Why an archive is refused, in words that follow its name and a colon."""


@dataclass(frozen=True)
class Member:
    """A file or folder of an archive.

    Attributes:
        name: as the archive has it, unchecked.
        folder: whether it is a folder; any other kind but files is refused before.
        content: the bytes in pieces, to be read before the next member is asked for.
    """

    name: str
    folder: bool
    content: Iterator[bytes]


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; none at the end."""


class _Decoder(Protocol):
    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether there is nothing left to give out."""

    @property
    def unused_data(self) -> bytes:
        """What followed the stream."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Up to ``max_length`` bytes."""


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
    with archive.open("rb") as file:
        head = file.read(BLOCK)
        file.seek(0)
        if head.startswith((b"PK\3\4", b"PK\5\6")):
            with _BoundedFile(archive, most_directory) as bounded:
                yield from _zip_members(bounded, _Meter(most_bytes))
            return
        stream: _Readable = file
        if head.startswith(b"\x1f\x8b"):
            stream = gzip.GzipFile(fileobj=file)
        elif head.startswith(b"BZh"):
            stream = _Decompressed(file, bz2.BZ2Decompressor)
        elif head.startswith(b"\xfd7zXZ\0"):
            stream = _Decompressed(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY))
        elif len(head) < BLOCK:
            raise ArchiveError(NEITHER)
        yield from _tar_members(_Source(stream, _Meter(most_bytes)))


class _Meter:
    """Counts the bytes that come out of an archive.

    Args:
        most: that are allowed.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    def count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ArchiveError("it unpacks to more than the allowed multiple of its own size")


class _Source:
    """A stream whose every byte is counted, and whose errors are ArchiveErrors."""

    def __init__(self, stream: _Readable, meter: _Meter) -> None:
        self._stream, self._meter = stream, meter

    def read(self, size: int) -> bytes:
        with _damage():
            data = self._stream.read(size)
        self._meter.count(len(data))
        return data

    def pieces(self, size: int) -> Iterator[bytes]:
        """The next ``size`` bytes, in pieces."""
        while size > 0:
            data = self.read(min(size, PIECE))
            if not data:
                raise ArchiveError("it is cut short")
            size -= len(data)
            yield data

    def exactly(self, size: int) -> bytes:
        return b"".join(self.pieces(size))


class _Decompressed:
    """What one or more bz2 or xz streams hold; zeros after a stream are padding."""

    def __init__(self, file: _Readable, start: Callable[[], _Decoder]) -> None:
        self._file, self._start = file, start
        self._decoder = start()

    def read(self, size: int, /) -> bytes:
        while True:
            packed = b""
            if self._decoder.eof:
                packed = self._decoder.unused_data.lstrip(b"\0")
                while not packed:
                    if not (packed := self._file.read(PIECE)):
                        return b""
                    packed = packed.lstrip(b"\0")
                self._decoder = self._start()
            elif self._decoder.needs_input and not (packed := self._file.read(PIECE)):
                raise EOFError("the compressed data have no end")
            if data := self._decoder.decompress(packed, size):
                return data


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
    """Turn what decoders and zipfile raise on damaged data into an ArchiveError; errors of the machine pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # decoders give no number; zipfile seeks before the beginning
            raise
        raise ArchiveError(_damaged(error)) from error
    except (
        zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, struct.error, ValueError, OverflowError, RuntimeError
    ) as error:  # fmt: skip
        raise ArchiveError(_damaged(error)) from error


def _damaged(error: Exception) -> str:
    return f"it is damaged or cut short ({' '.join(str(error).split()) or type(error).__name__})"


def _tar_members(source: _Source) -> Iterator[Member]:
    """Members of a tar archive in the ustar, GNU or pax format; the end must be there."""
    pending: dict[bytes, bytes] = {}  # extensions of the next header, by kind
    first = True
    while any(block := source.exactly(BLOCK)):
        if not _checksum_holds(block):
            raise ArchiveError(NEITHER if first else "a member's header is damaged")
        first = False
        kind, size = block[156:157], _number(block[124:136])
        if kind in EXTENSIONS:
            if size > EXTENSION_BYTES or kind in pending:
                raise ArchiveError("a member has headers without bound")
            pending[kind] = source.exactly(size)
            source.exactly(-size % BLOCK)
            continue
        name, size = _described(block, size, pending)
        pending = {}
        if kind not in FILES + FOLDERS:
            raise ArchiveError(f"{shown(name)} is a {KINDS.get(kind, f'member of the unknown kind {kind!r}')}")
        folder = kind in FOLDERS or name.endswith("/")  # the oldest archives have no kind of folders
        if folder and size:
            raise ArchiveError(f"{shown(name)} is a folder with content")
        content = source.pieces(size)
        yield Member(name, folder, content)
        for _ in content:  # what the caller has left
            pass
        source.exactly(-size % BLOCK)
    if pending or any(source.exactly(BLOCK)):
        raise ArchiveError("its end is damaged")
    while source.read(PIECE):  # to the checksum of the compressed data
        pass


def _checksum_holds(block: bytes) -> bool:
    try:
        return _number(block[148:156]) == sum(block) - sum(block[148:156]) + 8 * ord(" ")
    except ArchiveError:
        return False


def _number(field: bytes) -> int:
    """A number of a tar header: octal digits, or binary where the first byte is 128."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if not re.fullmatch(rb"[0-7]*", digits):
        raise ArchiveError("a member's header holds a bad number")
    return int(digits or b"0", 8)


def _described(block: bytes, size: int, pending: dict[bytes, bytes]) -> tuple[str, int]:
    """Name and size of a member from its header and the extensions before it; pax goes before GNU."""
    raw = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:
        raw = block[345:500].partition(b"\0")[0] + b"/" + raw
    if b"L" in pending:
        raw = pending[b"L"].removesuffix(b"\0")
    records = _pax_records(pending.get(b"x", b""))
    shared = _pax_records(pending.get(b"g", b""))
    if shared.keys() & {"path", "size"} or any(key.startswith("GNU.sparse") for key in (*records, *shared)):
        raise ArchiveError("it has a sparse file or one name for all members")
    if "size" in records:
        if not re.fullmatch(rb"[0-9]{1,18}", records["size"]):
            raise ArchiveError("a member's header holds a bad number")
        size = int(records["size"])
    try:
        return records.get("path", raw).decode(), size
    except UnicodeDecodeError as error:
        raise ArchiveError("a member's name is not UTF-8") from error


def _pax_records(payload: bytes) -> dict[str, bytes]:
    """Records of a pax extension, ``LENGTH KEY=VALUE`` and a line feed each."""
    records: dict[str, bytes] = {}
    at = 0
    while at < len(payload):
        space = payload.find(b" ", at, at + 8)
        digits = payload[at:space] if space > at else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = payload[space + 1 : end].partition(b"=")
        if not equals or end > len(payload) or not value.endswith(b"\n"):
            raise ArchiveError("a member's pax header is damaged")
        records[key.decode(errors="replace")] = value[:-1]
        at = end
    return records


def _zip_members(file: _BoundedFile, meter: _Meter) -> Iterator[Member]:
    """Members of a zip archive, stored or deflated; zipfile unpacks other methods without bound."""
    with _damage():
        archive = zipfile.ZipFile(file)
    with archive:
        for info in archive.infolist():
            name, kind = info.orig_filename, stat.S_IFMT(info.external_attr >> 16)  # filename ends at a NUL
            folder = name.endswith("/")
            if kind not in (0, stat.S_IFDIR if folder else stat.S_IFREG):
                raise ArchiveError(f"{shown(name)} is a {KINDS.get(kind, 'file or folder of contradictory kind')}")
            if folder and info.file_size:
                raise ArchiveError(f"{shown(name)} is a folder with content")
            if info.flag_bits & 1:
                raise ArchiveError(f"{shown(name)} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ArchiveError(f"{shown(name)} is compressed by a method other than deflate")
            yield Member(name, folder, _zip_content(archive, info, meter))


def _zip_content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, meter: _Meter) -> Iterator[bytes]:
    with _damage():
        stream = archive.open(info)
    size = 0
    with stream:
        source = _Source(stream, meter)
        while data := source.read(PIECE):
            size += len(data)
            yield data
    if size != info.file_size:
        raise ArchiveError(f"{shown(info.orig_filename)} has {size} bytes instead of {info.file_size}")


def shown(name: str) -> str:
    """A member's name as messages have it: quoted, on one line, of bounded length."""
    return repr(name if len(name) <= 120 else f"{name[:100]}...")
