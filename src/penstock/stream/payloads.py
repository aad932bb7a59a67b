"""Groups whose payload lies somewhere else than in the hub: what is sent instead, and how the two come together again.

The hub gets a **card**: the group with what the gate decides by (versions, actions, rewards, errors, plain extras). The rest
(tokens, log-probs, texts, the prompt, arrays in extras) lies in rows, which the first sample's extras name. A row is one frame
of :mod:`penstock.net.wire`, so whole groups come back bit for bit, and nothing of ours is pickled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import StreamError
from penstock.core.types import Group, Prompt, Sample
from penstock.net import wire
from penstock.stream.columns import TOKENS, Change
from penstock.stream.rules import Ticket

AWAY = "away/"
"""Before the name of a column in the extras of a card's first sample; the value is the row that holds it."""

Frame = NDArray[np.uint8]


class Rows(Protocol):
    """Where payloads lie: frames of bytes by key."""

    async def put(self, key: str, frame: Frame) -> None:
        """Keep a frame; one that is there already is replaced."""

    async def get(self, keys: Sequence[str]) -> Mapping[str, Frame]:
        """The frames of those keys that are there."""
        ...


class PayloadGone(StreamError):
    """Rows that nobody can give any more."""

    def __init__(self, rows: Collection[str]) -> None:
        super().__init__(f"{len(rows)} payloads are gone, {', '.join(sorted(rows)[:3])} among them")
        self.rows = frozenset(rows)


class Payloads:
    """What a process does with the payload of groups that it makes or wants. Without ``rows`` groups travel whole."""

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows = rows

    async def away(self, ticket: Ticket, group: Group) -> Group:
        """What the hub gets of a drawn group, once the rest is stored."""
        if self.rows is None or not group.samples:
            return group
        row = row_of(ticket)
        await self.rows.put(row, framed(group))
        return card_of(group, row)

    async def changed(self, ticket: Ticket, stage: str, found: Sequence[Change]) -> Sequence[Change]:
        """What the hub gets of a stage's findings, once arrays among their extras are stored."""
        heavy = [{name: value for name, value in _extras(change).items() if not _plain(value)} for change in found]
        if self.rows is None or not any(heavy):
            return found
        row = f"{row_of(ticket)}/{stage}"
        await self.rows.put(row, framed(heavy))
        light = [{**change, "extras": _plain_of(_extras(change))} for change in found]
        light[0]["extras"][AWAY + stage] = row
        return light

    async def back(self, groups: Sequence[Group]) -> list[Group]:
        """The whole groups of cards. Raises PayloadGone with the rows that are not there any more."""
        keys = [row for group in groups for row in rows_of(group).values()]
        if self.rows is None or not keys:
            return list(groups)
        frames = await self.rows.get(keys)
        if missing := set(keys) - frames.keys():
            raise PayloadGone(missing)
        return [whole(group, {row: unframed(frames[row]) for row in rows_of(group).values()}) for group in groups]


CARRIED = Payloads()
"""Groups travel whole."""


def row_of(ticket: Ticket) -> str:
    """The key of what a ticket's group is stored under; another attempt has another one."""
    return f"{ticket.ordinal}.{ticket.attempt}"


def ticket_of(row: str) -> Ticket:
    """The ticket that a row was stored for."""
    ordinal, attempt = row.partition("/")[0].split(".")
    return Ticket(int(ordinal), int(attempt))


def rows_of(group: Group) -> dict[str, str]:
    """Where a card's columns lie: row by name of the column; nothing for a group that is whole."""
    extras = group.samples[0].extras if group.samples else {}
    return {name.removeprefix(AWAY): row for name, row in extras.items() if name.startswith(AWAY) and isinstance(row, str)}


def card_of(group: Group, row: str) -> Group:
    """The group without what lies in ``row``."""
    samples = [_light(sample) for sample in group.samples]
    samples[0] = replace(samples[0], extras={**samples[0].extras, AWAY + TOKENS: row})
    return replace(group, prompt=Prompt(group.key, ""), samples=tuple(samples))


def _light(sample: Sample) -> Sample:
    return replace(
        sample, tokens_T=sample.tokens_T[:0], logp_T=sample.logp_T[:0], text="", extras=_plain_of(sample.extras)
    )  # fmt: skip


def whole(card: Group, rows: Mapping[str, Any]) -> Group:
    """A card and the values of its rows as one group: what was drawn, with what the stream and its stages made of it since."""
    places = rows_of(card)
    if TOKENS not in places:
        return card
    drawn: Group = rows[places.pop(TOKENS)]
    stages = [rows[row] for row in places.values()]
    samples = []
    for index, (light, full) in enumerate(zip(card.samples, drawn.samples, strict=True)):
        extras = dict(full.extras)
        for stage in stages:
            extras |= stage[index]
        extras |= {name: value for name, value in light.extras.items() if not isinstance(value, str)}
        samples.append(replace(full, action_T=light.action_T, reward_T=light.reward_T, error=light.error, extras=extras))
    return replace(drawn, samples=tuple(samples))


def framed(value: Any) -> Frame:
    """A value as the bytes of one frame."""
    return np.concatenate([np.frombuffer(buffer, np.uint8) for buffer in wire.pack(value)])


def unframed(frame: Frame) -> Any:
    """The value of a frame, in memory of its own. Raises WireError where the bytes are none."""
    view = memoryview(np.ascontiguousarray(frame).data)
    header, body = wire.lengths(view[: wire.PRELUDE.size], "the store of payloads")
    start = wire.PRELUDE.size + header
    if len(view) != start + body:
        raise StreamError(f"a payload of {len(view)} bytes came back where {start + body} were stored")
    own = np.array(frame[start:])  # arrays in it must be aligned and writable
    return wire.unpack(view[wire.PRELUDE.size : start], own.data if body else b"", "the store of payloads")


def _extras(change: Change) -> Mapping[str, Any]:
    found: Mapping[str, Any] = change.get("extras", {})
    return found


def _plain(value: Any) -> bool:
    """Whether the gate may look at it, and it takes no room."""
    return value is None or isinstance(value, bool | int | float)


def _plain_of(extras: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in extras.items() if _plain(value)}
