"""Files of object stores (``s3://…``, ``gs://…``, ``https://…``): fetched once into the user's cache, read as files are."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

from penstock.core.errors import DataError
from penstock.core.storage import file_system
from penstock.data.files import PATIENCE, cache_folder, made_once

PIECE = 16 << 20
"""Bytes of a file that are fetched at a time."""


def fetched(url: str) -> Path:
    """The file behind a URL, in the user's cache: fetched once for each state of it that the store tells apart.

    Raises:
        DataError: it is not there or cannot be read.
        SpecError: no such kind of store, or its package is missing.
    """
    fs, path = file_system(url, "data.source", use_listings_cache=False)
    try:
        size, state = fs.info(path).get("size"), str(fs.ukey(path))
        kept = cache_folder("remote") / hashlib.sha256(f"{url} {state}".encode()).hexdigest()[:24] / Path(path).name

        def copy(file: Any) -> None:
            with fs.open(path, "rb", block_size=PIECE) as source:
                _copy(source, file, url, size)

        return made_once(kept, url, copy)
    except Exception as error:  # each file system has its own for a store that is away or refuses a key
        said = str(error) or type(error).__name__
        raise DataError(f"data.source={url}: cannot be read ({said}); is it there, and are the credentials set?") from error


def _copy(source: Any, file: Any, url: str, size: int | None) -> None:
    done, said = 0, time.monotonic() + PATIENCE
    while piece := source.read(PIECE):
        file.write(piece)
        done += len(piece)
        if time.monotonic() > said:
            of = f" of {size >> 20:,}" if size else ""
            print(f"{url}: {done >> 20:,}{of} MB fetched; once", file=sys.stderr, flush=True)
            said = time.monotonic() + PATIENCE
    if size is not None and done != size:
        raise OSError(f"{done:,} of {size:,} bytes arrived")
