"""File systems behind a URL: fsspec's, which take credentials from the environment."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.core.errors import SpecError

EXTRAS = {"s3": "s3", "s3a": "s3"}
"""The extra that a URL's scheme needs; all others: ``storage``, and the file system's own package."""


def file_system(url: str, setting: str, **options: Any) -> tuple[Any, str]:
    """fsspec's file system of a URL and the path in it. Makes no connection yet.

    Raises:
        SpecError: no such kind of store, or its package is missing; names ``setting`` and what to install.
    """
    scheme = url.partition("://")[0]
    try:
        fs, path = importlib.import_module("fsspec.core").url_to_fs(url, **options)
    except ImportError as error:
        extra = EXTRAS.get(scheme, "storage")
        raise SpecError(f"{setting}={url}: {error}; pip install 'penstock[{extra}]'") from error
    except ValueError as error:
        raise SpecError(f"{setting}={url}: {error}; use file://, s3://, gs:// or another of fsspec's") from error
    return fs, str(path)
