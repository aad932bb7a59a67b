"""What can be known of the network before anything is asked of it, and addresses that give a secret away."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from penstock.core.errors import SpecError

_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^@\s]+@|([?&]\w*password=)[^&\s]+", re.IGNORECASE)


def require_no_password(value: Any) -> None:
    """Refuse a URL with a password in it, also inside of a mapping or list: it would be in ``run.json``, reports and logs.

    Raises:
        SpecError: there is one; the message shows the URL without it.
    """
    if isinstance(value, str) and _PASSWORD.search(value):
        shown = _PASSWORD.sub(lambda found: f"{found[1]}…@" if found[1] else f"{found[2]}…", value)
        raise SpecError(
            f"{shown}: a password in a URL would be shown in run folders, reports and logs; leave it out, and put it into "
            "~/.pgpass or into the file that PGPASSFILE names, mode 0600 (HOST:PORT:DATABASE:USER:PASSWORD); that of an object "
            "store into its environment variable, such as AWS_SECRET_ACCESS_KEY"
        )
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        require_no_password(inner)


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
