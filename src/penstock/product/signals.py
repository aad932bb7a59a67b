"""What products tell of their users: signals on responses, checked, and as the log keeps them.

A signal is no vote. Nobody was shown a guideline, nobody was asked, and anybody may click; what becomes of it is
decided in ``product.py``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from penstock.feedback.errors import FeedbackError
from penstock.feedback.records import LONGEST_TEXT, Response, canonical, digest, require_name

SignalKind = Literal["thumbs_up", "thumbs_down", "edit", "copy", "regenerate", "rating"]
Reason = Literal["", "wrong", "style", "refused", "unwelcome_but_true", "other"]
Standing = Literal["counted", "capped"]

SIGNALS: tuple[SignalKind, ...] = ("thumbs_up", "thumbs_down", "edit", "copy", "regenerate", "rating")
REASONS: tuple[Reason, ...] = ("wrong", "style", "refused", "unwelcome_but_true", "other")
REASONED = frozenset({"thumbs_down", "edit", "regenerate", "rating"})
"""Signals that may have a reason."""
UNWELCOME = "unwelcome_but_true"
"""The reason of who dislikes what is true: never held against a response, or the policy learns to flatter."""
LOW, HIGH = 1.0, 5.0
"""The scale of ratings."""
LONGEST_EDIT = 20_000
"""Characters of an edited answer."""
LONGEST_USER = 200


@dataclass(frozen=True)
class Reply:
    """A response as a user saw it: the prompt, the response and where it comes from."""

    prompt: str
    response: Response
    name: str = ""
    """The product's own name for it; empty: the hash of what it is."""
    request: str = ""
    """The request that it answered, which decides its arm (``retrieval.arm``)."""
    arm: str = ""
    """``corrections`` or ``control``, where corrections were retrieved for its prompt."""

    def __post_init__(self) -> None:
        if not self.prompt or len(self.prompt) > LONGEST_TEXT:
            raise FeedbackError(f"response.prompt has {len(self.prompt)} characters; give 1 to {LONGEST_TEXT}")
        for what, value in (("response.id", self.name), ("response.request", self.request)):
            if value:
                require_name(value, what)
        if self.arm not in ("", "corrections", "control") or bool(self.arm) != bool(self.request and self.arm):
            raise FeedbackError("response.arm is corrections or control, and needs response.request with it")

    @cached_property
    def body(self) -> str:
        """As the store holds it."""
        return canonical({**self.response.plain(), "prompt": self.prompt, "request": self.request, "arm": self.arm})

    @cached_property
    def content(self) -> str:
        return hashlib.sha256(self.body.encode()).hexdigest()

    @property
    def key(self) -> str:
        """Its name in the store."""
        return self.name or self.content[:32]

    @property
    def said(self) -> str:
        """The same for every response that says the same to the same prompt, whichever weights wrote it."""
        return digest([self.prompt, self.response.text])


@dataclass(frozen=True)
class Signal:
    """What a product sends. ``key`` names the act: sent again it does nothing, with other content it is refused."""

    key: str
    user: str
    """The product's opaque name of a user; the store keeps a keyed hash of it."""
    signal: SignalKind
    reply: Reply | None = None
    response: str = ""
    """The name of a response that was sent before, instead of ``reply``."""
    reason: Reason = ""
    text: str = ""
    """The answer as the user edited it."""
    value: float | None = None
    """The number of a rating."""
    time: float | None = None
    """When it happened, by the product's clock, seconds since 1970; kept, never relied on."""

    def __post_init__(self) -> None:
        require_name(self.key, "id")
        if not 0 < len(self.user) <= LONGEST_USER:
            raise FeedbackError(f"user has {len(self.user)} characters; give an opaque name of 1 to {LONGEST_USER}")
        if self.signal not in SIGNALS:
            raise FeedbackError(f"signal={self.signal!r:.40}; use one of: {', '.join(SIGNALS)}")
        if self.reason and (self.reason not in REASONS or self.signal not in REASONED):
            raise FeedbackError(
                f"reason={self.reason!r:.40} (of a {self.signal}): give {', '.join(REASONS)}, to {', '.join(sorted(REASONED))}"
            )
        if (self.reply is None) == (not self.response):
            raise FeedbackError("give either response, what the user saw, or response_id, one that was sent before")
        if (self.signal == "edit") != bool(self.text.strip()) or len(self.text) > LONGEST_EDIT:
            raise FeedbackError(f"text: an edit, and no other signal, has the edited answer, of 1 to {LONGEST_EDIT} characters")
        if (self.signal == "rating") != (self.value is not None):
            raise FeedbackError("value: a rating, and no other signal, has a number")
        if self.value is not None and not LOW <= self.value <= HIGH:
            raise FeedbackError(f"value={self.value!r:.40}; give a number from {LOW:g} to {HIGH:g}")
        if self.time is not None and not 0 <= self.time < math.inf:
            raise FeedbackError(f"time={self.time!r:.40}; give seconds since 1970")

    @property
    def body(self) -> dict[str, Any]:
        """What only some signals have."""
        given = {"text": self.text or None, "value": self.value, "said_at": self.time}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class SignalEvent:
    """One line of the log of signals. ``sequence`` counts from 1 without gaps."""

    sequence: int
    tenant: str
    key: str
    time: float
    """When the store recorded it, seconds of its own clock."""
    response: str
    user: str
    """The keyed hash of the product's name of the user."""
    signal: SignalKind
    reason: Reason
    standing: Standing
    """``capped`` ones came above a user's cap of a day: kept, never used."""
    body: Mapping[str, Any]

    @property
    def sign(self) -> int:
        """1: speaks for the response, -1: against it, 0: neither. Whether it counts is the policy's choice."""
        if self.reason == UNWELCOME:
            return 0
        if self.signal == "rating":
            middle = (LOW + HIGH) / 2
            return (self.body["value"] > middle) - (self.body["value"] < middle)
        return {"thumbs_up": 1, "copy": 1, "thumbs_down": -1, "regenerate": -1}.get(self.signal, 0)


def user_hash(secret: str, user: str) -> str:
    """A user's name as the store keeps it: BLAKE2b under the tenant's key, so that no two tenants share a hash."""
    return hashlib.blake2b(user.encode("utf-8", "surrogatepass"), key=bytes.fromhex(secret), digest_size=16).hexdigest()
