"""The manifest in a folder of prepared data: its source, variant and counts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dystress_text.errors import DataError
from dystress_text.io.atomic import write_json

MANIFEST = "prepared.json"
WIKI1M = "wiki1m_for_simcse.txt"  # the published text
DOCUMENTATION = "python-documentation"  # written here, without a network
CLASSES = "classes.txt"  # a selection of classes of images: folder names, one a line


@dataclass(frozen=True)
class Manifest:
    """The description of prepared data.

    Attributes:
        name: the name of the data set.
        source: where it came from: a hub repository, or the name of the local file or folder.
        variant: how it differs from the published data set; None for the published one.
        not_ready: parts that are missing or damaged, with the reason.
        counts: the numbers of rows or images, by split.
        folder: the folder of the images, if they stay in a folder of the user.
    """

    name: str
    source: str
    variant: str | None = None
    not_ready: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    folder: str | None = None


def variant_of(path: Path) -> str | None:
    """Return the variant of prepared data; None for published data and for a user's own files."""
    for folder in (path, *path.parents[:3]):  # senteval/STS/STSBenchmark/sts-dev.csv is the deepest
        manifest = read_manifest(folder)
        if manifest is not None:
            return manifest.variant
    return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json(folder / MANIFEST, asdict(manifest))


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in a folder; None if there is none."""
    try:
        values = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        values.pop("files", None)  # of 0.2
        return Manifest(**values)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = f"is damaged ({error}); prepare the data again"
        raise DataError(f"{folder / MANIFEST} {reason}") from error
