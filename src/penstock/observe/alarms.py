"""Alarms of sentinels for people: a line on the screen, rows of the report. Events are read as they are, also damaged ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.events import Event


@dataclass
class Tripped:
    """A sentinel from where it tripped to where it cleared, if it has."""

    name: str
    severity: str
    step: int
    message: str
    cleared: int | None = None

    @property
    def fatal(self) -> bool:
        return self.severity == "fatal"

    @property
    def until(self) -> str:
        """When it ended, in words."""
        return "stopped the run" if self.fatal else f"cleared at step {self.cleared:,}" if self.cleared else "not cleared"

    def __str__(self) -> str:
        return f"{self.severity}: {self.name} at step {self.step:,}, {self.until}: {self.message}"


def tripped(events: Iterable[Event]) -> list[Tripped]:
    """What tripped, in order, from the sentinel events of one stage; another alarm of one that is tripped is the same."""
    found: list[Tripped] = []
    for event in events:
        name, step = str(event.get("sentinel", "")), event.get("step")
        if event.get("kind") != "sentinel" or not name or not isinstance(step, int):
            continue
        running = next((one for one in found if one.name == name and one.cleared is None and not one.fatal), None)
        severity, message = str(event.get("severity", "")), str(event.get("message", ""))
        if event.get("state") == "cleared":
            if running is not None:
                running.cleared = step
        elif running is None or severity == "fatal":
            found.append(Tripped(name, severity, step, message))
    return found


def verdict(stages: Iterable[list[Tripped]], run: Mapping[str, Any]) -> str:
    """A run's sentinels in a few words; "" for a run that knows of none."""
    everything = [one for found in stages for one in found]
    fatal = sum(one.fatal for one in everything)
    if everything:
        return f"{len(everything)} tripped" + (f", {fatal} fatal" if fatal else "")
    return {"on": "all quiet", "warn": "all quiet", "off": "off"}.get(str(run.get("sentinels", "")), "")
