"""What an engine in other processes has done, as far as it can be seen from here: tokens as they arrive."""

from __future__ import annotations

from penstock.core.spans import Spans

GRAIN = 0.005
"""Seconds of arrivals that become one span; an engine's step sends its tokens request by request."""


class Meter:
    """Counts tokens, and the seconds in which at least one request was in flight."""

    def __init__(self) -> None:
        self.tokens = 0
        self.busy = 0.0
        self._flying = 0
        self._since = 0.0
        self._fresh = 0

    def enter(self, now: float) -> None:
        """A request begins."""
        if not self._flying:
            self._since = now
        self._flying += 1

    def leave(self, spans: Spans) -> None:
        """A request is over."""
        self._flying -= 1
        if not self._flying:
            self._settle(spans.clock(), 0, spans)

    def drew(self, count: int, in_flight: int, spans: Spans) -> None:
        """Tokens have arrived."""
        self.tokens += count
        self._fresh += count
        now = spans.clock()
        if now - self._since >= GRAIN:
            self._settle(now, in_flight, spans)

    def _settle(self, now: float, in_flight: int, spans: Spans) -> None:
        self.busy += now - self._since
        spans.extend("generate", self._since, now, tokens=self._fresh, in_flight=in_flight)
        self._since, self._fresh = now, 0
