"""Images and sounds in requests: decoded within limits, kept for as long as their request, fetched from named hosts alone."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import httpx

from penstock.config.media import MARKS
from penstock.core.blobs import Blob, Decoded
from penstock.core.errors import DataError
from penstock.data.pictures import picture_of
from penstock.data.sounds import sound_of
from penstock.web.fields import Fields, shown
from penstock.web.refusals import Refusal

FETCH_SECONDS = 10.0
FASTEST = 192_000
"""Samples a second of a sound at most."""


@dataclass(frozen=True)
class MediaLimits:
    """What media a request may have."""

    count: int = 16
    pixels: int = 1 << 24
    """Of one image, in width times height."""
    file_bytes: int = 8 << 20
    """Of one file."""
    hosts: tuple[str, ...] = ()
    """From where images are fetched, such as ``images.example.org`` or ``127.0.0.1:8001``; none: from nowhere, because a client
    would choose what this machine asks of its own network."""


@dataclass(frozen=True, eq=False)
class Held:
    """The file of a medium; who answers the request holds it."""

    blob: Blob
    content: bytes


class Part(NamedTuple):
    """A part of a message that is no text: what a request says of it (``given``), and ``where``."""

    kind: str
    given: Any
    where: str


class RequestMedia:
    """The media of requests under way. It is the model's store: a medium is in it for as long as somebody holds it."""

    def __init__(self, limits: MediaLimits | None = None) -> None:
        self.limits = limits or MediaLimits()
        self._held: WeakValueDictionary[int, Held] = WeakValueDictionary()

    @classmethod
    def of(cls, hosts: str) -> RequestMedia:
        """With the hosts, separated by commas, from which images are fetched."""
        return cls(MediaLimits(hosts=tuple(filter(None, hosts.split(",")))))

    def decoded(self, name: int) -> Decoded:
        """The medium whose blob has this number. Raises DataError where no request has it."""
        held = self._held.get(name)
        if held is None:
            raise DataError(f"medium {name:015x} belongs to no request")
        if held.blob.medium == "image":
            return picture_of(held.content, "the image", self.limits.pixels)
        sound = sound_of(held.content, "the sound", Path())
        if sound.rate > FASTEST:
            raise DataError(f"the sound has {sound.rate} samples a second; at most {FASTEST}")
        return sound

    async def take(self, parts: Sequence[Part]) -> tuple[Held, ...]:
        """Hold the media of a request. Raises Refusal where one is too large or cannot be had; decoding them comes later."""
        if len(parts) > self.limits.count:
            raise Refusal(400, f"{len(parts)} images and sounds; a request takes {self.limits.count}", param="messages")
        return tuple([await self._hold(part) for part in parts])

    async def _hold(self, part: Part) -> Held:
        fields = Fields(dict(part.given)) if isinstance(part.given, Mapping) else Fields({"url": part.given})
        if part.kind == "audio":
            fields.text("format", one_of=("wav",))
            content = await asyncio.to_thread(_unpacked, fields.text("data"), part.where)
        else:
            fields.neutral("detail", "auto")
            content = await self._image(fields.text("url"), part.where)
        fields.done()
        if not 0 < len(content) <= self.limits.file_bytes:
            raise Refusal(400, f"{part.where} has {len(content)} bytes; give 1 to {self.limits.file_bytes}", param=part.where)
        held = Held(Blob.of(content, f"{part.kind}/x-request"), content)
        return self._held.setdefault(held.blob.number, held)

    async def _image(self, url: str, where: str) -> bytes:
        scheme, _, rest = url.partition(":")
        if scheme == "data":
            kind, _, content = rest.partition(",")
            if not kind.startswith("image/") or not kind.endswith(";base64"):
                raise Refusal(
                    400, f"{where}: {shown(kind[:40])} is no image in base64; write data:image/png;base64,…", param=where
                )
            return await asyncio.to_thread(_unpacked, content, where)
        host = urlsplit(url).netloc
        if host not in self.limits.hosts or scheme not in ("http", "https"):
            said = (
                f"from {', '.join(self.limits.hosts)} alone" if self.limits.hosts else "from nowhere (--fetch HOST allows it)"
            )
            raise Refusal(400, f"{where}: images are fetched {said}; send it as data:image/png;base64,…", param=where)
        return await self._fetched(url, where)

    async def _fetched(self, url: str, where: str) -> bytes:
        """A file from a host that is allowed; to no other does it lead."""
        content = bytearray()
        try:
            async with (
                asyncio.timeout(FETCH_SECONDS),
                httpx.AsyncClient(trust_env=False, follow_redirects=False) as client,
                client.stream("GET", url) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise Refusal(400, f"{where}: {url[:200]} answers with status {response.status_code}", param=where)
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > self.limits.file_bytes:
                        raise Refusal(400, f"{where} has more than {self.limits.file_bytes} bytes", param=where)
        except (httpx.HTTPError, TimeoutError) as error:
            raise Refusal(
                400, f"{where}: {url[:200]} cannot be fetched: {error or type(error).__name__}", param=where
            ) from error
        return bytes(content)


def marked(part: Any, where: str, found: list[Part]) -> str:
    """The mark in the place of a part of a message, whose medium joins those ``found``. Raises Refusal for other parts."""
    given = str(part.get("type")) if isinstance(part, Mapping) else ""
    kind = {"image_url": "image", "input_audio": "audio"}.get(given)
    if kind is None or set(part) != {"type", given}:
        said = f"{where}: parts are of type text, image_url or input_audio and of one key besides"
        raise Refusal(400, said, param=where, code="unsupported_parameter")
    found.append(Part(kind, part[given], where))
    return MARKS[kind]


def _unpacked(content: str, where: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(400, f"{where} is not in base64: {error}", param=where) from error
