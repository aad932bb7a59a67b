"""The schedule of a run, recorded so that it can be replayed: what entered each engine before which of its turns, and which
groups each batch was made of. Draws depend on seed, sample and position only, so this is all that chance has decided.

A tape is ``RUN/schedule/STAGE/GENERATOR.TAKE.jsonl``; every start of a generator begins a new take. Lines are lists, the turn
first: ``[turn, "begin", origin, ordinal]``, ``[turn, "submit", key of the sample]``, ``[turn, "load", version,
learner_epoch]``, ``[turn, "drop", origin]``; "forget" as "submit". ``leases.jsonl`` next to them has one object a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.core.errors import DataError
from penstock.core.files import append_to, json_lines
from penstock.core.types import Group, SampleKey, Version

LEASES = "leases.jsonl"


class Tape:
    """Notes what enters one engine, whose turns ``turn`` counts. Without a path it only counts."""

    def __init__(self, path: Path | None = None) -> None:
        self.turn = 0
        self.name = path.stem if path else ""
        self._lines: list[str] = []
        self._begun = 0
        self._file: Any = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - held until closed

    @classmethod
    def next_take(cls, folder: Path, generator: str) -> Tape:
        """A new tape of a generator in the folder of a stage."""
        taken = [int(path.stem.rpartition(".")[2]) for path in folder.glob(f"{generator}.*.jsonl")]
        return cls(folder / f"{generator}.{max(taken, default=-1) + 1}.jsonl")

    def begin(self, ordinal: int) -> str:
        """A group begins; gives its origin, a name that no other group of the run has."""
        origin, self._begun = f"{self.name}/{self._begun}", self._begun + 1
        self.note("begin", origin, ordinal)
        return origin

    def submit(self, key: SampleKey) -> None:
        """A request enters the engine."""
        self.note("submit", [*key.prompt, key.sample])

    def note(self, *what: Any) -> None:
        """Anything else that happens to the engine: ``load`` of weights, ``drop`` of a group, ``forget`` of what was kept."""
        if self._file is not None:
            self._lines.append(json.dumps([self.turn, *what]))

    def flush(self) -> None:
        """Write what was noted: called before a group is handed over, so that its tape is there if it is."""
        if self._file is not None and self._lines:
            self._file.write("\n".join(self._lines) + "\n")
            self._file.flush()
            self._lines.clear()

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


NO_TAPE = Tape()
"""For rollouts whose engine keeps no tape."""


class LeaseLog:
    """Notes which groups each batch was made of. Without a folder it notes nothing."""

    def __init__(self, folder: Path | None = None, threads: int = 0) -> None:
        """``threads`` of the process's matrix products go into the record: sums depend on them."""
        self.path = folder / LEASES if folder else None
        self.threads = threads

    def note(self, version: Version, groups: Sequence[Group]) -> None:
        """The batch that weights of ``version`` are trained on, with the samples that failed: these depend on the clock."""
        if self.path is None:
            return
        failed = [
            [place, sample.key.sample, sample.error]
            for place, group in enumerate(groups)
            for sample in group.samples
            if sample.error is not None
        ]
        line = {"version": version, "threads": self.threads, "groups": [group.origin for group in groups], "failed": failed}
        with append_to(self.path) as out:
            out.write(json.dumps(line).encode() + b"\n")


NO_LEASES = LeaseLog()


def read_lines(path: Path) -> Iterator[Any]:
    """The lines of a tape or of the leases; one that a kill cut short is passed over.

    Raises:
        DataError: the file does not exist.
    """
    if not path.exists():
        raise DataError(f"{path}: no such record; only runs of this version or later can be replayed")
    yield from json_lines(path)
