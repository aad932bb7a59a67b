"""Texts that others wrote, for a model to judge: between lines with a mark that they cannot hold, so as to give no orders."""

from __future__ import annotations

import hashlib


def fence(*texts: str) -> str:
    """A mark that occurs in none of the texts: a hash of them all, which nobody can write into what is hashed."""
    whole = hashlib.sha256()
    for text in texts:
        whole.update(len(text.encode()).to_bytes(8, "big") + text.encode())
    return whole.hexdigest()[:24]


def fenced(mark: str, **texts: str) -> str:
    """Texts by name (``answer_A``), each between two lines with the mark."""
    named = ((name.replace("_", " "), text) for name, text in texts.items())
    return "\n".join(f"{mark} {name}\n{text}\n{mark} end of {name}" for name, text in named)
