"""Where the time of a run went: seconds by kind of work and role, bubbles, lag of tokens, stall of updates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.core.files import replaced
from penstock.core.spans import Span
from penstock.observe.lanes import Lane

KINDS = ("train", "label", "publish", "evaluate", "save", "generate", "update", "reward", "wait")
"""Kinds of spans in the order in which they are shown. All but ``wait`` are work."""


@dataclass(frozen=True)
class RoleTime:
    """A role's seconds: ``alive`` in all, of which ``seconds`` by kind were recorded; ``idle`` is the rest."""

    role: str
    alive: float
    seconds: Mapping[str, float]

    @property
    def work(self) -> float:
        return sum(seconds for kind, seconds in self.seconds.items() if kind != "wait")

    @property
    def idle(self) -> float:
        return max(0.0, self.alive - sum(self.seconds.values()))


@dataclass(frozen=True)
class Account:
    """What the lanes of a run add up to.

    Attributes:
        learner_waits: share of the learner's time from its first wait on in which it waited for a batch; None without a wait.
        generators_idle: share of the generators' time in which they neither generated nor took weights; None without one.
        lags: number of trained tokens by lag in versions.
        stalls: (seconds, how many) of weight updates, as a generator felt them.
        waits: seconds in which learner or generators did nothing, by kind of role and by the kind that worked meanwhile; ""
            where none did.
    """

    roles: tuple[RoleTime, ...]
    learner_waits: float | None
    generators_idle: float | None
    lags: Mapping[int, int]
    stalls: tuple[tuple[float, int], ...]
    waits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def mean_lag(self) -> float:
        return sum(lag * tokens for lag, tokens in self.lags.items()) / max(1, sum(self.lags.values()))

    def stall(self, share: float) -> float:
        """The smallest stall in seconds that ``share`` of the updates do not exceed."""
        return percentile(self.stalls, share)


def account(lanes: Sequence[Lane]) -> Account:
    """Add the lanes of a run up."""
    roles = tuple(role_time(lane) for lane in lanes)
    generators = [role for role in roles if role.role.startswith("generator")]
    alive = sum(role.alive for role in generators)
    spans = [span for lane in lanes for span in lane.spans]
    lags: Counter[int] = Counter()
    for span in spans:
        lags.update(lags_of(span))
    stalls = tuple((span.busy / max(1, span.count), max(1, span.count)) for span in spans if span.name == "update")
    learner = next((lane for lane in lanes if lane.role == "learner"), None)
    return Account(
        roles=roles,
        learner_waits=waiting_share(learner) if learner else None,
        generators_idle=1 - sum(min(role.alive, role.work) for role in generators) / alive if alive > 0 else None,
        lags=dict(sorted(lags.items())),
        stalls=stalls,
        waits=waits_of(lanes),
    )


def waits_of(lanes: Sequence[Lane]) -> dict[str, dict[str, float]]:
    """Whom learner and generators wait for: of the time in which a role does no work, who works meanwhile.

    A learner waits for generators rather than for rewards where both work, a generator for the learner. Spans that were joined
    count as work from end to end.
    """
    order = {"learner": ("generator", "reward", "reference"), "generator": ("learner", "reward", "reference")}
    changes = [
        (at, lane.role, "alive", step) for lane in lanes for life in lane.lives for at, step in zip(life, (1, -1), strict=True)
    ]
    worked = [(span, lane.role) for lane in lanes for span in lane.spans if span.name != "wait"]
    changes += [(at, role, "work", step) for span, role in worked for at, step in ((span.start, 1), (span.end, -1))]
    counts: Counter[tuple[str, str]] = Counter()
    found: dict[str, dict[str, float]] = {}
    before = 0.0
    for at, role, what, step in sorted(changes):
        working = {kind_of(name) for (name, other), count in counts.items() if other == "work" and count}
        for name in [
            name for (name, other), count in counts.items() if other == "alive" and count and not counts[name, "work"]
        ]:
            kind = kind_of(name)
            if kind in order:
                whom = next((other for other in order[kind] if other in working), "")
                waits = found.setdefault(kind, {})
                waits[whom] = waits.get(whom, 0.0) + at - before
        counts[role, what] += step
        before = at
    return found


def kind_of(role: str) -> str:
    """``generator`` for ``generator-0``."""
    return role.rstrip("0123456789").rstrip("-")


def role_time(lane: Lane) -> RoleTime:
    """One lane added up, kinds in the order of KINDS."""
    found: Counter[str] = Counter()
    for span in lane.spans:
        found[span.name] += span.busy  # type: ignore[assignment]
    kinds = sorted(found, key=kind_order)
    return RoleTime(lane.role, sum(end - start for start, end in lane.lives), {kind: found[kind] for kind in kinds})


def kind_order(kind: str) -> tuple[int, str]:
    """Sort key of kinds: those known in their order, then by name."""
    return (KINDS.index(kind) if kind in KINDS else len(KINDS), kind)


def waiting_share(learner: Lane) -> float | None:
    """The share of a learner's time in which it waits, from its first wait on: what lies before takes no batches."""
    waits = [span for span in learner.spans if span.name == "wait"]
    if not waits:
        return None
    first = min(span.start for span in waits)
    alive = sum(max(0.0, end - max(start, first)) for start, end in learner.lives)
    return min(1.0, sum(span.busy for span in waits) / alive) if alive > 0 else None


def lags_of(span: Span) -> dict[int, int]:
    """The lag counts that a span of training carries; what is malformed is left out."""
    counts = span.fields.get("lag")
    if not isinstance(counts, Mapping):
        return {}
    return {int(lag): int(tokens) for lag, tokens in counts.items() if str(lag).isdigit() and isinstance(tokens, int)}


def percentile(counted: Sequence[tuple[float, int]], share: float) -> float:
    """The smallest of (value, how often) that ``share`` of all do not exceed; 0 where there is none."""
    left = share * sum(count for _, count in counted)
    for value, count in sorted(counted):
        left -= count
        if left <= 1e-9:
            return value
    return 0.0


def trace_events(lanes: Sequence[Lane]) -> Iterator[dict[str, Any]]:
    """Events in the Trace Event Format, which Perfetto and Chrome read: a process per role, a thread per kind, counters.

    SOURCE: "Trace Event Format" (Chromium project): complete events ``X``, counters ``C``, metadata ``M``; microseconds.
    """
    begin = min((start for lane in lanes for start, _ in lane.lives), default=0.0)
    for place, lane in enumerate(lanes, start=1):
        yield {"ph": "M", "name": "process_name", "pid": place, "args": {"name": lane.role}}
        yield {"ph": "M", "name": "process_sort_index", "pid": place, "args": {"sort_index": place}}
        kinds = sorted({span.name for span in lane.spans}, key=kind_order)
        for thread, kind in enumerate(kinds, start=1):
            yield {"ph": "M", "name": "thread_name", "pid": place, "tid": thread, "args": {"name": kind}}
        threads = {kind: thread for thread, kind in enumerate(kinds, start=1)}
        for span in lane.spans:
            yield from span_events(span, begin, place, threads[span.name])


def span_events(span: Span, begin: float, process: int, thread: int) -> Iterator[dict[str, Any]]:
    """A span, and the counters that follow from its fields: mean lag, requests in flight, tokens per second."""
    at = round((span.start - begin) * 1e6, 1)
    shown = span.fields | ({"busy_ms": round(span.busy * 1e3, 3), "pieces": span.count} if span.count != 1 else {})
    duration = round((span.end - span.start) * 1e6, 1)
    yield {
        "ph": "X",
        "name": span.name,
        "cat": span.name,
        "pid": process,
        "tid": thread,
        "ts": at,
        "dur": duration,
        "args": shown,
    }
    lags = lags_of(span)
    counters: dict[str, float] = {}
    if lags:
        counters["lag"] = sum(lag * tokens for lag, tokens in lags.items()) / max(1, sum(lags.values()))
    if isinstance(flying := span.fields.get("in_flight"), int | float):
        counters[f"{span.name}: in flight"] = flying
    if isinstance(tokens := span.fields.get("tokens"), int | float) and span.busy > 0:
        counters["tokens per second"] = tokens / span.busy
    for name, value in counters.items():
        yield {"ph": "C", "name": name, "pid": process, "ts": at, "args": {"value": round(value, 3)}}


def write_trace(lanes: Sequence[Lane], path: Path) -> None:
    """Write a trace file, whole or not at all."""
    with replaced(path) as out:
        out.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for index, event in enumerate(trace_events(lanes)):
            out.write(",\n" * bool(index) + json.dumps(event))
        out.write("\n]}\n")


WAITS, PUBLISHES, SAVES, EVALUATES = 0.3, 0.1, 0.1, 0.2
"""Shares of time from which on something counts as a bottleneck."""


@dataclass(frozen=True)
class Bottleneck:
    """What takes ``share`` of the time of ``role``, and what to change."""

    role: str
    share: float
    what: str
    change: str

    def __str__(self) -> str:
        return f"{self.role} {self.what} {self.share:.0%} of its time: {self.change}"


def bottleneck(found: Account) -> Bottleneck | None:
    """What takes most of the learner's time, or else what generators wait for; None where nothing is recorded.

    The learner's shares are of its time; where it takes batches, without what lies before its first wait only for the wait
    itself. Generators and reward workers are each taken together.
    """
    learner = next((role for role in found.roles if role.role == "learner"), None)
    if learner is None or learner.alive <= 0:
        return None
    waits, idle = found.learner_waits or 0.0, found.generators_idle
    unscored = found.waits.get("learner", {}).get("reward", 0.0) / learner.alive
    publishes, saves, evaluates = (learner.seconds.get(kind, 0.0) / learner.alive for kind in ("publish", "save", "evaluate"))
    rules = (
        (publishes > PUBLISHES, "learner", publishes, "publishes weights",
         "another roles.channel, or adapters (learner.lora), which are small"),
        (saves > SAVES, "learner", saves, "saves", "a larger checkpoint.every"),
        (evaluates > EVALUATES, "learner", evaluates, "evaluates", "a larger evaluation.every, or roles.evaluator"),
        (unscored > WAITS, "learner", unscored, "waits for rewards", "more roles.rewards, or quicker rewards"),
        (waits > WAITS >= unscored and idle is not None and idle > WAITS, "learner", waits,
         "waits for groups while generators idle", "a larger max_lag (with runtime procs or ray), so that both work at a time"),
        (waits > WAITS >= unscored, "learner", waits, "waits for groups", "more roles.generators, or a faster engine"),
        (idle is not None and idle > WAITS, "generators", idle or 0.0, "idle",
         "a larger max_lag, a faster learner (more ranks), "
         "or fewer generators"),
    )  # fmt: skip
    if held := [rule[1:] for rule in rules if rule[0]]:
        return Bottleneck(*max(held, key=lambda rule: (rule[0] == "learner", rule[1])))
    trains = (learner.seconds.get("train", 0.0) + learner.seconds.get("label", 0.0)) / learner.alive
    return Bottleneck(
        "learner", trains, "trains", "nothing holds it up; a faster learner (more ranks, bfloat16) is what is left"
    )


def times(found: Account) -> dict[str, dict[str, float]]:
    """By kind of role, learner and generators, the shares of its time: ``computing``, ``moving weights``, ``waiting for`` each
    other kind, and ``idle`` where nobody worked."""
    shares: dict[str, dict[str, float]] = {}
    for kind in ("learner", "generator"):
        roles = [role for role in found.roles if kind_of(role.role) == kind]
        alive = sum(role.alive for role in roles)
        if alive <= 0:
            continue
        moving = sum(role.seconds.get(name, 0.0) for role in roles for name in ("publish", "update"))
        seconds = {"computing": sum(role.work for role in roles) - moving, "moving weights": moving}
        waits = found.waits.get(kind, {})
        seconds |= {f"waiting for {whom}s": spent for whom, spent in sorted(waits.items()) if whom}
        seconds["idle"] = waits.get("", 0.0)
        shares[kind] = {name: spent / alive for name, spent in seconds.items()}
    return shares
