"""Tables: csv, tsv, jsonl and parquet files, and data sets on the hub, read through ``datasets``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.errors import DataError, reason_of
from dystress_text.files.hub import hub_reachable
from dystress_text.files.places import cache_root

if TYPE_CHECKING:
    from datasets import Dataset

LOADERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".csv": ("csv", {"na_filter": False}),  # a cell with the text NA or None is not missing
    ".tsv": ("csv", {"sep": "\t", "na_filter": False}),
    ".jsonl": ("json", {}),
    ".json": ("json", {}),
    ".parquet": ("parquet", {}),
}


def is_table(source: str) -> bool:
    """Whether a source is a table, by its ending, or the name of a data set on the hub."""
    return Path(source).suffix.lower() in LOADERS or is_hub_name(source)


def is_hub_name(name: str) -> bool:
    """Whether a name has the form ``owner/name``, has no ending, and is not a file on this machine."""
    words = name.split("/")
    named = len(words) == 2 and all(words) and not name.startswith((".", "~")) and not Path(name).suffix
    return named and not Path(name).exists()


def load_table(source: str, split: str = "train") -> Dataset:
    """The rows of a table.

    Args:
        source: a file with one of the endings in :data:`LOADERS`, or a hub data set's name.
        split: of a data set on the hub.

    Raises:
        DataError: the file or data set does not exist or cannot be read.
    """
    import datasets  # slow to import

    datasets.disable_progress_bars()
    on_hub = is_hub_name(source)
    if on_hub and not hub_reachable():
        raise DataError(f"no file {source!r}, and no hub to look for a data set of that name")
    loader, options = ("", {}) if on_hub else LOADERS[Path(source).suffix.lower()]
    try:
        if on_hub:
            return datasets.load_dataset(source, split=split)
        if loader == "json":
            with open(source, "rb") as file:
                if b"{" not in file.read(2**20):  # pyarrow crashes on a file with only nulls
                    raise ValueError("no row in its first megabyte")
        cache = str(cache_root() / "datasets")
        return datasets.load_dataset(loader, data_files=source, split="train", cache_dir=cache, **options)
    except Exception as error:  # the libraries that read tables have many kinds
        raise DataError(f"cannot read {source!r}: {reason_of(error.__cause__ or error)}") from error
