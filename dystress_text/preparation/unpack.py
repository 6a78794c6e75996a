"""Unpacking an archive that is not trusted: all of it and within bounds, or nothing."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from dystress_text.errors import DataError, UserError
from dystress_text.files.whole import whole_folder
from dystress_text.preparation.archives import ArchiveError, Member, members, shown

FILE_MODE, FOLDER_MODE = 0o644, 0o755
MOST_LEVELS = 64
RATIO_FREE = 1 << 20  # bytes; an archive of short texts may unpack to more than any sensible multiple of itself
DIRECTORY_ENTRY = 1 << 10  # bytes; a zip's entry with names and dates takes a few hundred


@dataclass(frozen=True)
class UnpackLimits:
    """What an archive may unpack to, counted while it is unpacked.

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


def unpack(archive: Path, target: Path, limits: UnpackLimits) -> list[Path]:
    """Unpack a tar (plain, gz, bz2, xz) or zip archive, told apart by content, into a new folder.

    After an error the folder is gone again. Files get mode 0644 and folders 0755, whatever the archive says. macOS
    litter (``._name``, ``__MACOSX/``, ``.DS_Store``) is left out.

    Args:
        archive: the file.
        target: the folder to make; its parent exists, itself it does not.
        limits: what the archive may unpack to.

    Returns:
        The files, in the archive's order.

    Raises:
        DataError: the archive is damaged, cut short, too large, or hostile: a name that leads elsewhere or occurs
            twice (case aside), a link, a device.
        UserError: the archive cannot be read, the target exists or cannot be written.
    """
    if os.path.lexists(target):
        raise UserError(f"{target} exists already: nothing is overwritten")
    if not archive.is_file():
        raise UserError(f"{archive} does not exist or is not a file")
    most_bytes = max(RATIO_FREE, int(limits.ratio * archive.stat().st_size))
    try:
        target.parent.stat()  # a folder that is not there is not made
        with (
            whole_folder(target) as staging,
            closing(members(archive, most_bytes, DIRECTORY_ENTRY * limits.members)) as found,
        ):
            files = [target / file.relative_to(staging) for file in _write_all(found, staging, limits)]
            for path in (staging, *staging.rglob("*")):  # afterwards, as the umask has a say in how they are made
                path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)
    except ArchiveError as error:
        raise DataError(f"{archive}: {error}") from error
    except OSError as error:
        raise UserError(f"cannot unpack {archive} into {target}: {error.strerror}") from error
    return files


def _write_all(found: Iterable[Member], folder: Path, limits: UnpackLimits) -> list[Path]:
    """Check every member and write those that are not litter; the files."""
    names = _Names()
    files: list[Path] = []
    total = 0
    for number, member in enumerate(found, 1):
        if number > limits.members:
            raise ArchiveError(f"it has more than the allowed {limits.members} members")
        parts = _parts(member.name)
        if not parts and not member.folder:
            raise ArchiveError(f"{shown(member.name)} is a file without a name")
        place = None
        if parts and not _is_litter(parts):
            names.add(parts, member.folder)
            path = folder.joinpath(*parts)
            (path if member.folder else path.parent).mkdir(parents=True, exist_ok=True)
            if not member.folder:
                files.append(path)
                place = path
        total += _copy(member, place, limits, total)
    return files


def _parts(name: str) -> tuple[str, ...]:
    """The components of a member's name without ``.``; none for the archive's own root.

    Raises:
        ArchiveError: the name could lead elsewhere, on this system or on another, or cannot be shown.
    """
    if not name or "\\" in name or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        raise ArchiveError(f"the name {shown(name)} is empty, or has backslashes, control characters or broken UTF-8")
    parts = tuple(part for part in name.removesuffix("/").split("/") if part != ".")
    if "" in parts or ".." in parts or any(re.match("[A-Za-z]:", part) for part in parts):
        raise ArchiveError(f"{shown(name)} could lead out of the folder")
    if len(parts) > MOST_LEVELS:
        raise ArchiveError(f"{shown(name)} lies more than {MOST_LEVELS} levels deep")
    return parts


def _is_litter(parts: tuple[str, ...]) -> bool:
    return parts[-1] == ".DS_Store" or any(part == "__MACOSX" or part.startswith("._") for part in parts)


class _Names:
    """The names so far, as a file system sees them that does not tell upper from lower case."""

    def __init__(self) -> None:
        self._spelling: dict[str, str] = {}  # every file and folder, by its name without case
        self._files: set[str] = set()
        self._listed: set[str] = set()  # members themselves, not only the folder of one

    def add(self, parts: tuple[str, ...], folder: bool) -> None:
        """Take a member in.

        Raises:
            ArchiveError: it is there already, differs by case only, or one of the two names is a file in the other.
        """
        name = "/".join(parts)
        if name in self._listed:
            raise ArchiveError(f"{shown(name)} occurs twice")
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


def _copy(member: Member, place: Path | None, limits: UnpackLimits, before: int) -> int:
    """Read a member's content and write it where it has a place; its bytes, of which ``before`` have come before."""
    size = 0
    with place.open("xb") if place else nullcontext() as file:
        for piece in member.content:
            size += len(piece)
            if size > limits.file_bytes:
                raise ArchiveError(f"{shown(member.name)} is larger than the allowed {limits.file_bytes} bytes")
            if before + size > limits.total_bytes:
                raise ArchiveError(f"it unpacks to more than the allowed {limits.total_bytes} bytes")
            if file:
                file.write(piece)
    return size
