"""What a checkpoint is called, what is known of it without its state, and which ones stay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from penstock.ckpt import files
from penstock.core.contracts import State

_NAME = re.compile(r"stage-(\d{2,})-([^/]+)-step-(\d{6,})")


class Position(NamedTuple):
    """A place in a run: after ``step`` steps of the stage called ``stage``, the ``number``-th from 0."""

    number: int
    stage: str
    step: int

    @property
    def order(self) -> tuple[int, int]:
        """What checkpoints are ordered by."""
        return self.number, self.step

    @property
    def name(self) -> str:
        return f"stage-{self.number:02d}-{self.stage}-step-{self.step:06d}"

    @classmethod
    def of(cls, name: str) -> Position | None:
        """The position a folder's name stands for; None for a name of another kind."""
        found = _NAME.fullmatch(name)
        return cls(int(found[1]), found[2], int(found[3])) if found else None


@dataclass(frozen=True)
class Entry:
    """A checkpoint of the store without its state. ``score`` is larger for better; ``good`` marks a healthy run."""

    path: Path
    position: Position
    score: float | None
    good: bool
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint. ``warnings`` says what was passed over to reach it, and why."""

    entry: Entry
    states: Mapping[str, State]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pending:
    """A checkpoint that was checked and is to be written."""

    position: Position
    header: bytes
    states: Mapping[str, files.Prepared]
    score: float | None

    @property
    def in_pieces(self) -> bool:
        """Whether some of its arrays are fetched as they are written, which must happen before the next step."""
        return any(one.in_pieces for one in self.states.values())

    def copied(self) -> Pending:
        """The same, in memory of its own."""
        return replace(self, states={name: one.copied() for name, one in self.states.items()})


def kept(entries: Sequence[Entry], keep: int) -> set[str]:
    """Names of what stays of checkpoints from oldest to newest: the newest, the last good one, and the best."""
    names = {entry.path.name for entry in entries[-keep:]}
    good = [entry for entry in entries if entry.good]
    names |= {entry.path.name for entry in good[-1:]}
    scored = [entry for entry in entries if entry.score is not None]
    if scored:
        number = scored[-1].position.number
        same = [entry for entry in scored if entry.position.number == number]
        names.add(max(same, key=lambda entry: (entry.score, entry.position.order)).path.name)
    return names
