"""What can be known of the network before anything is asked of it."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit


def hub_is_reachable() -> bool:
    """Whether the hub's name resolves; true where a proxy would do that.

    Without this look a mistyped folder costs minutes on a machine without a network: it is taken for a hub name, and every
    file of it is asked for again and again.
    """
    from urllib.request import getproxies  # imports an HTTP client, which a run of local files does without

    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname or ""
    if {"https", "all"} & set(getproxies()):
        return True
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
