"""Pictures, films and sounds in what environments and tools say: a part of a message becomes a mark in its text, and a blob.

Parts are ``{"type": "text", "text": …}`` and ``{"type": "image", "image": …}`` (``video``, ``audio``), with what a row may have
in a column of that name; but no path, for who answers a policy might be led to any file by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.config.media import MARKS
from penstock.core.blobs import Blob
from penstock.core.errors import EnvError
from penstock.core.messages import read_content

Part = Mapping[str, Any]
READS_TEXT = "it shows a medium and the model reads text alone; set model.media=Vision() or Hearing()"


def is_parts(given: Any) -> bool:
    """Whether it is a content in parts, some of which may be media."""
    return isinstance(given, list | tuple) and len(given) > 0 and all(map(_is_part, given))


def _is_part(given: Any) -> bool:
    return isinstance(given, Mapping) and given.get("type") in ("text", *MARKS) and set(given) == {"type", given["type"]}


def has_parts(observation: Any) -> bool:
    """Whether an observation is, or has a message whose content is, in parts."""
    if not isinstance(observation, list | tuple):
        return False
    return is_parts(observation) or any(isinstance(said, Mapping) and is_parts(said.get("content")) for said in observation)


def together(contents: Sequence[str | Sequence[Part]]) -> str | list[Part]:
    """Contents one under the other: a text, unless one of them is in parts."""
    if all(isinstance(content, str) for content in contents):
        return "\n".join(map(str, contents))
    parts: list[Part] = []
    for content in contents:
        parts += [{"type": "text", "text": "\n"}] if parts else []
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def taken(observation: Any, store: Any) -> tuple[Any, tuple[Blob, ...]]:
    """An observation (a content in parts, or messages) as text with marks, and its media in their order, which ``store``
    (:class:`penstock.data.media.MediaStore`) keeps.

    Raises:
        EnvError: the model reads none, or one is given by a path.
        DataError: one cannot be read.
    """
    blobs: list[Blob] = []

    def mark(part: Part, where: str) -> str:
        kind = part["type"]
        if kind == "text":
            raise EnvError(f"a part's text is {part['text']!r:.40}; give a text")
        if store is None:
            raise EnvError(READS_TEXT)
        if _has_path(part[kind]):
            raise EnvError(f"a part gives its {kind} by a path; give the file's bytes, or an array")
        blobs.append(store.add(part[kind], "a part", Path(), kind))
        return MARKS[kind]

    def text_of(parts: Sequence[Part]) -> str:
        return read_content(parts, "an observation", mark)

    if is_parts(observation):
        return text_of(observation), tuple(blobs)
    said = [{**one, "content": text_of(one["content"])} if is_parts(one.get("content")) else one for one in observation]
    return said, tuple(blobs)


def _has_path(value: Any) -> bool:
    return isinstance(value, str | Path) or (isinstance(value, list | tuple) and any(map(_has_path, value)))
