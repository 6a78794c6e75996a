"""Tables: csv, tsv, jsonl and parquet files, and data sets on the hub, read through ``datasets``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.errors import UserError
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


def is_table(train_file: str) -> bool:
    """Whether a training file is a table, by its ending, or the name of a data set on the hub."""
    return Path(train_file).suffix.lower() in LOADERS or is_hub_name(train_file)


def is_hub_name(name: str) -> bool:
    """Whether a name has the form ``owner/name``, has no ending, and is not a file on this machine."""
    words = name.split("/")
    named = len(words) == 2 and all(words) and not name.startswith((".", "~")) and not Path(name).suffix
    return named and not Path(name).exists()


def load_table(source: str, option: str = "--train_file", split: str = "train") -> Dataset:
    """The rows of a table.

    Args:
        source: a file with one of the endings in :data:`LOADERS`, or a hub data set's name.
        option: the option that names the source, for errors.
        split: of a data set on the hub.

    Raises:
        UserError: the file or data set does not exist or cannot be read.
    """
    import datasets  # slow to import

    datasets.disable_progress_bars()
    try:
        if is_hub_name(source):
            if not hub_reachable():
                raise UserError(f"{option}: no file {source!r}, and no hub to look for a data set of that name")
            return datasets.load_dataset(source, split=split)
        loader, options = LOADERS[Path(source).suffix.lower()]
        if loader == "json" and os.path.isfile(source):
            with open(source, "rb") as file:
                if b"{" not in file.read(2**20):  # pyarrow crashes on a file with only nulls
                    raise UserError(f"{option}: cannot read {source!r}: no row in its first megabyte")
        cache = str(cache_root() / "datasets")
        return datasets.load_dataset(loader, data_files=str(source), split="train", cache_dir=cache, **options)
    except UserError:
        raise
    except Exception as error:  # the libraries that read tables have many kinds
        cause = error.__cause__ or error
        raise UserError(f"{option}: cannot read {source!r}: {' '.join(str(cause).split())}") from error
