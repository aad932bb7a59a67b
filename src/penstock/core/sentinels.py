"""What sentinels say (``observe/sentinels.py``): an alarm, and the error of a fatal one.

A sentinel looks at numbers of a training step and trips where they mean that something is wrong. ``fatal``: training would
be wrong from here on, so the run stops. ``warning``: it may be right, and someone should look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from penstock.core.errors import TrainingError

Severity = Literal["warning", "fatal"]
SentinelMode = Literal["on", "warn", "off"]


@dataclass(frozen=True)
class Alarm:
    """A sentinel tripped or cleared at a step (counted from 1). ``value`` crossed ``bound``; the message names the fix."""

    sentinel: str
    severity: Severity
    step: int
    message: str
    value: float
    bound: float
    cleared: bool = False
    action: str = ""
    """What is done about it ("skip", "roll back", "stop", …); "" for one that is only said."""

    def fields(self) -> dict[str, Any]:
        """Fields of its event."""
        known = asdict(self)
        del known["step"], known["cleared"]
        return {"sentinel": known.pop("sentinel"), "state": "cleared" if self.cleared else "tripped", **known}


class SentinelError(TrainingError):
    """A fatal sentinel tripped; ``alarms`` are all of that batch, the fatal one last."""

    def __init__(self, message: str, alarms: Sequence[Alarm] = ()) -> None:
        super().__init__(message)
        self.alarms = tuple(alarms)

    @classmethod
    def of(cls, alarms: Sequence[Alarm]) -> SentinelError:
        """The error of a batch's alarms, of which the last is fatal."""
        last = alarms[-1]
        return cls(f"sentinel {last.sentinel}, step {last.step}: {last.message}", alarms)
