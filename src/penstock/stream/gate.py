"""The stream's bookkeeping as a synchronous state machine: slots, tickets, columns, leases and the bound on age.

Nothing in here waits and nothing knows of processes, so the same rules hold in one process, between many, and under the
virtual clock of a simulator. :class:`penstock.stream.stream.Stream` adds the waiting.

Why the bound holds with ``on_stale="wait"``: there are ``(k + 1) · B`` slots, and a slot opens again when the weights of its
batch are published. When version ``p`` is published, ``p · B`` groups have been trained, so whoever is admitted now is at most
the ``(p + k + 1) · B``-th; batches are made in the order of admission, so it is trained at version ``p + k`` at the latest, and
its tokens are of version ``p`` (its ticket's ``floor``) or younger.
"""

from __future__ import annotations

from itertools import islice

from penstock.core.contracts import State
from penstock.core.errors import StreamError
from penstock.core.types import Group, Version
from penstock.stream.admission import Admission
from penstock.stream.batch_selectors import BATCH_SELECTORS
from penstock.stream.columns import TOKENS, actions, masked
from penstock.stream.ledger import Ledger
from penstock.stream.rules import PATIENCE, Entry, Lease, Rules


class Gate(Admission):
    """Admits work by slots, gathers the columns of groups, leases batches. Every verb answers at once."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._leases: list[Lease] = []
        self._repeat: list[Lease] = []
        """Leases of a learner that died, which the next one is given again as they were."""
        self._used: list[Entry] = []
        """Trained groups that may be in a batch again, oldest first."""

    # ---- the learner

    def lease(self, version: Version) -> Lease | None:
        """The next batch for weights of ``version``; None while it is not complete.

        Raises:
            StreamError: more groups were passed over than ``dynamic_sampling`` allows, a group took down everyone who
                worked on it, or a group is staler than ``max_lag`` though the slots forbid it.
        """
        self._refuse_poison()
        if self._repeat:
            return self._leased_again(version)
        if self.rules.on_stale != "wait":
            self._renew_stale(version)
        chosen = self._due(version)
        if chosen is None:
            self._refuse_drought(version)
            return None
        again = self._again(version, self.rules.batch - len(chosen))
        ordinals = tuple(entry.ticket.ordinal for entry in chosen)
        passed = tuple(sorted(ordinal for ordinal in self.passed if ordinal < max(ordinals)))
        for ordinal in passed:
            del self.passed[ordinal]
        self.free, self._withheld = self.free + self._withheld, 0
        groups = tuple(self._young(entry, version) for entry in chosen)
        for entry in chosen:
            del self.entries[entry.ticket.ordinal]
            entry.uses += 1
        self._used += chosen if self.rules.max_uses > 1 else []
        lease = Lease(ordinals, groups, passed, again, version, tuple(chosen))
        self._leases.append(lease)
        self._check_age(lease)
        return lease

    def _leased_again(self, version: Version) -> Lease:
        lease = self._repeat[0]
        if lease.version != version:
            raise StreamError(f"a learner of version {version} asked for the batch that version {lease.version} was trained on")
        self._leases.append(self._repeat.pop(0))
        return lease

    def _due(self, version: Version) -> list[Entry] | None:
        """The fresh groups of the next batch, once they are there."""
        count = self._fresh(version)
        if self.rules.on_stale == "wait" or any(entry.withdrawals >= PATIENCE for entry in self.entries.values()):
            due = list(islice(self.entries.values(), count))
            return due if len(due) == count and all(map(self._is_ready, due)) else None
        ready = sorted(filter(self._is_ready, self.entries.values()), key=lambda entry: entry.turn)
        if len(ready) < count:
            return None
        groups = [entry.group for entry in ready if entry.group is not None]
        return [ready[place] for place in BATCH_SELECTORS[self.rules.batch_selector](groups, count)]

    def _fresh(self, version: Version) -> int:
        """Groups that the next batch needs beside those that may be in it again."""
        spare = sum(1 for entry in self._used if self._usable(entry, version))
        return self.rules.batch - min(spare, self.rules.batch - self.rules.fresh)

    def _usable(self, entry: Entry, version: Version) -> bool:
        fresh = entry.group is not None and version - entry.group.oldest_version <= self.rules.max_lag
        return fresh and entry.uses < self.rules.max_uses

    def _again(self, version: Version, count: int) -> tuple[Group, ...]:
        self._used = [entry for entry in self._used if self._usable(entry, version)]
        chosen = self._used[:count]
        for entry in chosen:
            entry.uses += 1
        return tuple(entry.group for entry in chosen if entry.group is not None)

    def _renew_stale(self, version: Version) -> None:
        """Start groups again of which nothing could be trained at ``version`` any more."""
        oldest = version - self.rules.max_lag
        for entry in list(self.entries.values()):
            if entry.group is None:
                stale = bool(entry.makers) and entry.ticket.floor < oldest and self.rules.on_stale == "drop"
            else:
                usable = masked(entry.group, oldest) if self.rules.on_stale == "mask" else entry.group
                stale = 0 <= usable.oldest_version < oldest or (usable.oldest_version < 0 <= entry.group.oldest_version)
            if stale:
                self._withdraw(entry)

    def _withdraw(self, entry: Entry) -> None:
        if TOKENS in entry.makers:
            self._drawing[entry.makers[TOKENS]] -= 1
        for maker in set(entry.makers.values()):
            self.withdrawn.setdefault(maker, []).append(entry.ticket)
        self.stats.dropped += 1
        self.stats.tokens_dropped += actions(entry.group) if entry.group else 0
        self._start_over(entry, entry.withdrawals + 1)

    def _young(self, entry: Entry, version: Version) -> Group:
        group = _group_of(entry)
        if self.rules.on_stale != "mask":
            return group
        young = masked(group, version - self.rules.max_lag)
        self.stats.tokens_masked += actions(group) - actions(young)
        return young

    def _refuse_drought(self, version: Version) -> None:
        """So many slots are closed by passed groups that the batch cannot get complete."""
        left = self.rules.slots - self._withheld
        if not self._withheld or left >= self._fresh(version) or not all(map(self._is_ready, self.entries.values())):
            return
        last = self.passed[max(self.passed)]
        raise StreamError(
            f"{len(self.passed)} groups without signal were passed over, more than "
            f"dynamic_sampling={self.rules.dynamic_sampling} allows for batches of {self.rules.batch}; in the last one {last}. "
            "Use prompts the model solves sometimes, or raise dynamic_sampling"
        )

    def _check_age(self, lease: Lease) -> None:
        for group in lease.groups + lease.again:
            oldest = group.oldest_version
            lag = lease.version - oldest if oldest >= 0 else 0
            self.stats.largest_lag = max(self.stats.largest_lag, lag)
            if not 0 <= lag <= self.rules.max_lag:
                raise StreamError(
                    f"group {group.key} is {lag} versions old; max_lag={self.rules.max_lag} forbids training on it"
                )

    def trained(self, lease: Lease) -> None:
        """The optimizer has used the lease; its ordinals belong to the weights from now on."""
        self.ledger.add(lease.ordinals + lease.passed, lease.version + 1)
        self.stats.trained += len(lease.ordinals)

    def release(self, lease: Lease) -> None:
        """The weights trained on the lease are published: its slots open again. Raises StreamError the second time."""
        if lease.released:
            raise StreamError(f"the lease of ordinals {lease.ordinals} was released twice")
        lease.released = True
        self.free += 0 if lease.opened else len(lease.ordinals)
        lease.opened = True
        self.published = max(self.published, lease.version + 1)

    def acknowledge(self) -> None:
        """A checkpoint holds every trained lease: forget their groups, once their slots are open."""
        self._leases = [lease for lease in self._leases if not lease.opened or lease.ordinals[0] not in self.ledger]

    def restore(self, kept: State) -> None:
        """The learner died and goes on from ``kept``, the ledger of its checkpoint: later leases are given out again.

        Raises:
            StreamError: the checkpoint is older than one whose leases were acknowledged and forgotten.
        """
        before = Ledger()
        before.load_state(kept)
        known = sorted((*self._leases, *self._repeat), key=lambda lease: lease.version)
        repeat = [lease for lease in known if lease.ordinals[0] not in before]
        reached = repeat[0].version if repeat else self.ledger.version
        if reached > before.version:
            raise StreamError(
                f"the learner goes on from version {before.version}, but batches up to version {reached} are durable and "
                "forgotten; resume from the newest checkpoint, or start stream and learner again from this one"
            )
        self._repeat = repeat
        for lease in known:
            if lease not in self._repeat and not lease.opened:  # it was saved, but the learner died before it could say so
                self.release(lease)
            lease.released = False
        self._leases, self.ledger = [], before

    def describe(self) -> str:
        """Where groups are, for the message of a wait that was too long."""
        ready = sum(map(self._is_ready, self.entries.values()))
        at = [(ordinal, entry.makers) for ordinal, entry in self.entries.items() if not self._is_ready(entry)]
        makers = sorted({f"{who} ({column})" for _, held in at for column, who in held.items() if who})
        named = f", with {', '.join(makers)}" if makers else ""
        return f"{ready} groups are ready, {len(at)} in flight (ordinals {[ordinal for ordinal, _ in at[:5]]}…){named}"

    # ---- a new stream for an old run

    def load_state(self, state: State) -> None:
        """Everything that is not in the ledger is started again."""
        self.ledger.load_state(state)
        self._next, self.published = self.ledger.floor, self.ledger.version


def _group_of(entry: Entry) -> Group:
    if entry.group is None:
        raise StreamError(f"ordinal {entry.ticket.ordinal} was leased without a group")
    return entry.group
