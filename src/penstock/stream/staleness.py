"""What the bound on age means for groups: which are too old, what is left of them, and which may be trained on again."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.errors import StreamError
from penstock.core.types import Group, Version
from penstock.stream.enrichment import TOKENS
from penstock.stream.entry import Entry
from penstock.stream.lag import masked, token_versions
from penstock.stream.rules import Rules, StreamStats

PATIENCE = 2
"""How often a group may be started again for its age before the learner waits for it, so that every group ends."""


class Staleness:
    """Decides by the versions that entries keep; arrays are read only where tokens are masked."""

    def __init__(self, rules: Rules, stats: StreamStats) -> None:
        self.rules, self.stats = rules, stats
        self.used: list[Entry] = []
        """Trained groups that may be in a batch again, oldest first."""

    def is_stale(self, entry: Entry, version: Version) -> bool:
        """Whether nothing of the group can be trained at ``version`` any more."""
        oldest = version - self.rules.max_lag
        if entry.group is not None:
            reach = entry.versions.newest if self.rules.on_stale == "mask" else entry.versions.oldest
            return entry.versions.oldest >= 0 and reach < oldest
        return self.rules.on_stale == "drop" and TOKENS in entry.owners and entry.ticket.min_version < oldest

    def starves(self, entries: Iterable[Entry]) -> bool:
        """Whether a group was started again so often that batches go in order until it is trained."""
        return any(entry.stale_restarts >= PATIENCE for entry in entries)

    def trained_part(self, entry: Entry, version: Version) -> Group:
        """The group as weights of ``version`` are trained on it: without tokens that are too old, where they are masked.

        Raises:
            StreamError: it is staler than ``max_lag`` though the slots forbid it.
        """
        group, versions, oldest = entry.whole, entry.versions, version - self.rules.max_lag
        if self.rules.on_stale == "mask" and 0 <= versions.oldest < oldest:
            group = masked(group, oldest)
            versions = token_versions(group)
            self.stats.tokens_masked += entry.versions.tokens - versions.tokens
        lag = versions.lag(version)
        self.stats.largest_lag = max(self.stats.largest_lag, lag)
        if not 0 <= lag <= self.rules.max_lag:
            raise StreamError(f"group {group.key} is {lag} versions old; max_lag={self.rules.max_lag} forbids training on it")
        return group

    # ---- groups that are trained on more than once

    def fresh(self, version: Version) -> int:
        """Groups that the next batch needs besides those that may be in it again."""
        spare = sum(self._usable(entry, version) for entry in self.used)
        return self.rules.batch - min(spare, self.rules.batch - self.rules.fresh)

    def _usable(self, entry: Entry, version: Version) -> bool:
        return entry.versions.lag(version) <= self.rules.max_lag and entry.uses < self.rules.max_uses

    def reuse(self, version: Version, count: int) -> tuple[Group, ...]:
        """So many groups that were trained on before, the oldest first; those that cannot be used any more are forgotten."""
        self.used = [entry for entry in self.used if self._usable(entry, version)]
        chosen = self.used[:count]
        for entry in chosen:
            entry.uses += 1
        return tuple(self.trained_part(entry, version) for entry in chosen)

    def keep(self, entries: Iterable[Entry]) -> None:
        """Groups that are trained on for the first time."""
        for entry in entries:
            entry.uses += 1
            if entry.uses < self.rules.max_uses:
                self.used.append(entry)
