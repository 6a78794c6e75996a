"""Unpacking an archive that nobody vouches for: all of it and within bounds, or nothing."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dystress_text.errors import DataError, UserError
from dystress_text.preparation.archives import ArchiveError, Member, members, shown

FILE_MODE, FOLDER_MODE = 0o644, 0o755
MOST_LEVELS = 64
RATIO_FREE = 1 << 20  # bytes; an archive of short texts may unpack to more than any sensible multiple of itself
DIRECTORY_ENTRY = 1 << 10  # bytes; a zip's entry with names and dates takes a few hundred

Parts = tuple[str, ...]


@dataclass(frozen=True)
class UnpackLimits:
    """What an archive may unpack to, counted while it is unpacked, chosen members or not.

    Attributes:
        total_bytes: of all files together.
        file_bytes: of one file.
        members: files and folders.
        ratio: bytes unpacked by bytes of the archive, a tar's headers with them; it counts above 1 MiB.
    """

    total_bytes: int = 32 << 30
    file_bytes: int = 8 << 30
    members: int = 500_000
    ratio: float = 100.0


def unpack(
    archive: Path,
    target: Path,
    limits: UnpackLimits,
    keep: Callable[[str], bool] | None = None,
    strip: int = 0,
) -> list[Path]:
    """Unpack a tar (plain, gz, bz2, xz) or zip archive, told apart by content, into a new folder.

    The folder appears when all is unpacked; before that, and after any error, nothing is there. Files get mode 0644 and
    folders 0755, whatever the archive says. macOS litter (``._name``, ``__MACOSX/``, ``.DS_Store``) is left out.

    Args:
        archive: the file.
        target: the folder to make; its parent exists, itself it does not.
        limits: what the archive may unpack to.
        keep: chooses members by their name in the archive, without ``./`` before or ``/`` after it; the others are
            checked all the same. All by default.
        strip: leading components to take off the names.

    Returns:
        The files, in the archive's order.

    Raises:
        DataError: the archive is damaged, cut short, too large, or hostile: a name that leads elsewhere or stands
            twice (case aside), a link, a device.
        UserError: the archive cannot be read, the target exists or cannot be written; a kept file has no name left.
    """
    if os.path.lexists(target):
        raise UserError(f"{target} exists already: nothing is overwritten")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent} is no folder: {target} cannot be made")
    if not archive.is_file():
        raise UserError(f"{archive} does not exist or is no file")
    try:
        most_bytes = max(RATIO_FREE, int(limits.ratio * archive.stat().st_size))
        with (
            _staging(target) as staging,
            closing(members(archive, most_bytes, DIRECTORY_ENTRY * limits.members)) as found,
        ):
            files = _write_all(found, staging, limits, keep or (lambda _: True), strip)
            staging.rename(target)
    except ArchiveError as error:
        raise DataError(f"{archive}: {error}") from error
    except OSError as error:
        raise UserError(f"cannot unpack {archive} into {target}: {error.strerror}") from error
    return [target.joinpath(*parts) for parts in files]


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A new folder beside the target, gone at the end unless it has been renamed."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        folder.chmod(FOLDER_MODE)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_all(
    found: Iterable[Member], folder: Path, limits: UnpackLimits, keep: Callable[[str], bool], strip: int
) -> list[Parts]:
    """Check every member, write those to keep; the files' names in the folder."""
    archived, written = _Names(), _Names()
    files: list[Parts] = []
    total = 0
    for number, member in enumerate(found, 1):
        if number > limits.members:
            raise ArchiveError(f"it has more than the allowed {limits.members} members")
        parts = _parts(member.name)
        if not parts and not member.folder:
            raise ArchiveError(f"{shown(member.name)} is a file without a name")
        place = None
        if parts and not _is_litter(parts):
            archived.add(parts, member.folder)
            if keep("/".join(parts)):
                place = _place(parts, member.folder, strip, written)
        if place and member.folder:
            _make_folders(folder, place)
        elif place:
            _make_folders(folder, place[:-1])
            files.append(place)
        total += _copy(member, folder.joinpath(*place) if place and not member.folder else None, limits, total)
    return files


def _parts(name: str) -> Parts:
    """The components of a member's name without ``.``; none for the archive's own root.

    Raises:
        ArchiveError: the name could lead elsewhere, on this system or on another, or cannot be shown.
    """
    if not name or "\\" in name or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        raise ArchiveError(f"{shown(name)} is no name of a member: empty, or with backslashes or control characters")
    parts = tuple(part for part in name.removesuffix("/").split("/") if part != ".")
    if "" in parts or ".." in parts or any(re.match("[A-Za-z]:", part) for part in parts):
        raise ArchiveError(f"{shown(name)} could lead out of the folder")
    if len(parts) > MOST_LEVELS:
        raise ArchiveError(f"{shown(name)} lies more than {MOST_LEVELS} levels deep")
    return parts


def _is_litter(parts: Parts) -> bool:
    return parts[-1] == ".DS_Store" or any(part == "__MACOSX" or part.startswith("._") for part in parts)


class _Names:
    """The names so far, as a file system sees them that does not tell upper from lower case."""

    def __init__(self) -> None:
        self._spelling: dict[str, str] = {}  # every file and folder, by its name without case
        self._files: set[str] = set()
        self._listed: set[str] = set()  # members of their own, not only the folder of one

    def add(self, parts: Parts, folder: bool) -> None:
        """Take a member in.

        Raises:
            ArchiveError: it is there already, differs by case only, or one of the two names is a file in the other.
        """
        name = "/".join(parts)
        if name in self._listed:
            raise ArchiveError(f"{shown(name)} stands in it twice")
        if not folder and name in self._spelling:
            raise ArchiveError(f"{shown(name)} is a file and a folder")
        for level in range(1, len(parts) + 1):
            path = "/".join(parts[:level])
            if path in self._files:
                raise ArchiveError(f"{shown(name)} lies below a file")
            if (other := self._spelling.setdefault(_without_case(path), path)) != path:
                raise ArchiveError(f"{shown(other)} and {shown(path)} differ by case only")
        self._listed.add(name)
        if not folder:
            self._files.add(name)


def _without_case(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _place(parts: Parts, folder: bool, strip: int, written: _Names) -> Parts | None:
    """Where a member to keep goes; None for a folder that is stripped off."""
    if len(parts) > strip:
        written.add(parts[strip:], folder)
        return parts[strip:]
    if not folder:
        raise UserError(f"{shown('/'.join(parts))} lies above the {strip} leading folders to strip; do not keep it")
    return None


def _make_folders(root: Path, parts: Parts) -> None:
    """Make the folder and those above it, as far as they are missing; the mode does not depend on the umask."""
    for level in range(1, len(parts) + 1):
        folder = root.joinpath(*parts[:level])
        if not folder.is_dir():
            folder.mkdir()
            folder.chmod(FOLDER_MODE)


def _copy(member: Member, place: Path | None, limits: UnpackLimits, before: int) -> int:
    """Read a member's content and write it where it has a place; its bytes, of which ``before`` have come before."""
    size = 0
    with _new_file(place) if place else nullcontext() as file:
        for piece in member.content:
            size += len(piece)
            if size > limits.file_bytes:
                raise ArchiveError(f"{shown(member.name)} is larger than the allowed {limits.file_bytes} bytes")
            if before + size > limits.total_bytes:
                raise ArchiveError(f"it unpacks to more than the allowed {limits.total_bytes} bytes")
            if file:
                file.write(piece)
    return size


def _new_file(path: Path) -> BinaryIO:
    """A file that did not exist; the mode does not depend on the umask."""
    file = path.open("xb")
    path.chmod(FILE_MODE)
    return file
