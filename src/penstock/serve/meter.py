"""What an engine in other processes has done, as far as it can be seen from here: tokens as they arrive."""

from __future__ import annotations

from penstock.core.spans import NO_SPANS, Spans
from penstock.core.tape import Tape
from penstock.core.types import GeneratorStats, Version, WeightUpdate
from penstock.models.text import Text

GRAIN = 0.005
"""Seconds of arrivals that become one span; an engine's step sends its tokens request by request."""


class Meter:
    """Counts tokens, and the seconds in which at least one request was in flight."""

    def __init__(self) -> None:
        self.tokens = 0
        self.busy = 0.0
        self.flying = 0
        self._since = 0.0
        self._fresh = 0

    def enter(self, now: float) -> None:
        """A request begins."""
        if not self.flying:
            self._since = now
        self.flying += 1

    def leave(self, spans: Spans) -> None:
        """A request is over."""
        self.flying -= 1
        if not self.flying:
            self._settle(spans.clock(), spans)

    def drew(self, count: int, spans: Spans) -> None:
        """Tokens have arrived."""
        self.tokens += count
        self._fresh += count
        now = spans.clock()
        if now - self._since >= GRAIN:
            self._settle(now, spans)

    def _settle(self, now: float, spans: Spans) -> None:
        self.busy += now - self._since
        spans.extend("generate", self._since, now, tokens=self._fresh, in_flight=self.flying)
        self._since, self._fresh = now, 0


class ForeignGenerator:
    """What every generator over an engine in other processes holds: the weights' version, and what it notes of its work."""

    def __init__(self, text: Text, version: Version) -> None:
        self.text = text
        self.version: Version = version
        self.learner_epoch = 0
        self.spans: Spans = NO_SPANS
        self.tape, self.meter = Tape(), Meter()

    def stats(self) -> GeneratorStats:
        """Without what waits in the engine, and without its cache."""
        seen = self.meter
        return GeneratorStats(self.version, seen.flying, 0, 0.0, generated_tokens=seen.tokens, busy_seconds=seen.busy)

    def _took(self, update: WeightUpdate) -> None:
        """From now on tokens are of an update's version."""
        self.tape.note("load", update.version, update.learner_epoch)
        self.learner_epoch, self.version = update.learner_epoch, update.version
