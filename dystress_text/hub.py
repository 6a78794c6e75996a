"""Whether the hub can be asked at all, so that a machine without a network is told so at once."""

from __future__ import annotations

import socket
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants


@cache
def hub_reachable() -> bool:
    """Whether the hub's host has an address (huggingface_hub itself would try for half a minute to find out).

    With a proxy configured the answer is yes: only the proxy knows.
    """
    if constants.is_offline_mode():
        return False
    if {"http", "https", "all"} & getproxies().keys():
        return True
    endpoint = urlsplit(constants.ENDPOINT)
    try:
        socket.getaddrinfo(endpoint.hostname, endpoint.port or 443)
    except OSError:
        return False
    return True
