"""The hub: whether it can be reached, and SimCSE's published data there."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cache
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

from dystress_text.errors import UserError, reason_of

HUB_REPOSITORY = "princeton-nlp/datasets-for-simcse"

R = TypeVar("R")


@cache
def hub_reachable() -> bool:
    """Whether the hub's host name has an address (huggingface_hub itself would try for half a minute).

    With a proxy configured the answer is yes, since only the proxy knows.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    if {"http", "https", "all"} & getproxies().keys():
        return True
    endpoint = urlsplit(constants.ENDPOINT)
    try:
        socket.getaddrinfo(endpoint.hostname, endpoint.port or 443)
    except OSError:
        return False
    return True


def published_file(filename: str, then: Callable[[str], R], otherwise: str) -> R:
    """Call ``then`` with a file of the published data sets, from the hub or huggingface_hub's cache.

    If it cannot be had or read, a UserError begins with ``otherwise``.
    """
    from huggingface_hub import hf_hub_download

    try:
        local = not hub_reachable()
        return then(hf_hub_download(HUB_REPOSITORY, filename, repo_type="dataset", local_files_only=local))
    except UserError:
        raise
    except Exception as error:  # of the network, the hub or the file system
        raise UserError(f"{otherwise}. The hub did not help: {reason_of(error)}") from error
