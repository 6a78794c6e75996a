"""Access to the Hugging Face hub, and SimCSE's published data there."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from dystress_text.errors import UserError, reason_of

HUB_REPOSITORY = "princeton-nlp/datasets-for-simcse"

R = TypeVar("R")


@cache
def hub_reachable() -> bool:
    """Return whether the hub accepts connections; with a proxy, assume so.

    Without this check, huggingface_hub tries for half a minute for each file that is not in its
    cache.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    if {"http", "https", "all"} & getproxies().keys():
        return True
    endpoint = urlsplit(constants.ENDPOINT)
    port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
    try:
        socket.create_connection((endpoint.hostname, port), constants.HF_HUB_ETAG_TIMEOUT).close()
    except OSError:
        return False
    return True


def model_file(name: str, file: str) -> Path | None:
    """Return the path of a model's file, here or from the hub; None if the model has no such file.

    Raises:
        UserError: no model has this name.
    """
    from huggingface_hub import file_download, hf_hub_download

    if Path(name).is_dir():
        path = Path(name) / file
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(name, file, local_files_only=not hub_reachable()))
    except GatedRepoError:
        raise
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise UserError(f"{name!r} is neither a folder here nor a model on the hub") from error
    except LocalEntryNotFoundError as error:
        if hub_reachable():
            raise  # the network failed
        folder = file_download.repo_folder_name(repo_id=name, repo_type="model")
        if not (Path(constants.HF_HUB_CACHE) / folder).is_dir():
            reason = "not a folder and not in the cache, and the hub cannot be reached"
            raise UserError(f"{name!r} is {reason}") from error
    except EntryNotFoundError:
        pass
    return None


def published_file(filename: str, then: Callable[[str], R], otherwise: str) -> R:
    """Call ``then`` with the path of a file of the published data sets, from the hub or its cache.

    Raises:
        UserError: the file cannot be read. The message begins with ``otherwise``, which says what
            else the user can do.
    """
    from huggingface_hub import hf_hub_download

    try:
        local = not hub_reachable()
        file = hf_hub_download(
            HUB_REPOSITORY, filename, repo_type="dataset", local_files_only=local
        )
        return then(file)
    except UserError:
        raise
    except Exception as error:  # of the network, the hub or the file system
        raise UserError(f"{otherwise}. Download from the Hub failed: {reason_of(error)}") from error
