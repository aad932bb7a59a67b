"""The files of a page: a fixed list by plain names, from the page's own folder and what all pages share (``web/page/``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SHARED = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files that are sent, by suffix. Templates are not among them."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "font-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The content policy of every page: nothing of another host, no script or style but files of this list."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Sent with everything by a server of pages; a response may say otherwise."""


def page_files(*places: Path) -> Mapping[str, Path]:
    """Files by their names: those of ``web/page/``, and of each of ``places`` that is a folder, or the place itself.

    Raises:
        ValueError: two files have the same name.
    """
    found: dict[str, Path] = {}
    for place in (SHARED, *places):
        for path in sorted(place.iterdir()) if place.is_dir() else (place,):
            if path.suffix not in KINDS:
                continue
            if path.name in found:
                raise ValueError(f"{path} and {found[path.name]} have the same name; rename one of them")
            found[path.name] = path
    return found


def kind_of(path: Path) -> str:
    """The content type of a file of the list."""
    return KINDS[path.suffix]
