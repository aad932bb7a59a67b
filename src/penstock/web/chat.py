"""What two servers share of OpenAI's completions: the inference server, and the one that agent programs call."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from penstock.web.fields import Fields
from penstock.web.refusals import Refusal

STOPS = 16
"""Stop strings of one request at most."""


def limit(fields: Fields, default: int) -> int:
    """Tokens of the answer at most, by either of their names."""
    if fields.has("max_completion_tokens") and fields.has("max_tokens"):
        raise Refusal(400, "max_tokens and max_completion_tokens mean the same here; give one of them", param="max_tokens")
    return fields.whole("max_completion_tokens" if fields.has("max_completion_tokens") else "max_tokens", default, 1)


def streaming(fields: Fields) -> tuple[bool, bool]:
    """Whether the answer is a stream, and whether that ends with its usage."""
    options = Fields(fields.object("stream_options"))
    found = fields.flag("stream"), options.flag("include_usage")
    options.neutral("include_obfuscation", False)
    options.done()
    return found


def event(value: Any, name: str = "") -> bytes:
    """A server-sent event; a value that is a text is sent as it is."""
    data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {name}\n" * bool(name) + f"data: {data}\n\n").encode()


class Completion:
    """The bodies of one answer, whole or in chunks; ``chat`` or of a text. ``usage``: a stream ends with it."""

    def __init__(self, model: str, chat: bool = True, usage: bool = False) -> None:
        self.usage, self._kinds = usage, ("chat.completion", "chat.completion.chunk") if chat else ("text_completion",) * 2
        self._about = {"created": int(time.time()), "model": model}
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"

    def whole(self, choices: Sequence[dict[str, Any]], read: int, written: int) -> dict[str, Any]:
        """With so many tokens read and written."""
        body = {"id": self._id, "object": self._kinds[0], **self._about, "choices": list(choices)}
        return body | {"usage": _usage(read, written)}

    def chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        usage = {"usage": None} if self.usage else {}  # in every chunk; the last one fills it in
        return {"id": self._id, "object": self._kinds[1], **self._about, "choices": list(choices)} | usage

    def delta(self, index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        """A chunk that adds to the message of one choice."""
        return self.chunk({"index": index, "delta": delta, "finish_reason": finish, "logprobs": None})

    def closing(self, read: int, written: int) -> list[dict[str, Any]]:
        """Chunks after the last choice has ended: the usage, where it was asked for."""
        return [self.chunk() | {"usage": _usage(read, written)}] if self.usage else []


def _usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
