"""``penstock report RUN``: one self-contained page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from penstock.cli.command import Command, called


@dataclass(kw_only=True)
class Report(Command):
    """Write RUN/report.html: curves, evaluations and samples of a run, in one file."""

    folder: Positional[Annotated[Path, called("RUN")]]
    """The run's folder, such as runs/NAME."""

    def run(self) -> None:
        """Write the report and print where it is, and which sentinels tripped."""
        from penstock.runtime.folder import RunFolder
        from penstock.ui.report import write_report

        RunFolder(self.folder).read()
        print(write_report(self.folder))
        for line in alarms_of(self.folder):
            print(line)


def alarms_of(folder: Path) -> list[str]:
    """A line for every sentinel that tripped, stage by stage."""
    from penstock.core.events import read_events
    from penstock.observe.alarms import tripped
    from penstock.ui.progress import ALARM_LIMIT, visible

    log = folder / "events.jsonl"
    events = [event for event in read_events(log) if event["kind"] == "sentinel"] if log.exists() else []
    stages = dict.fromkeys(str(event.get("stage", "")) for event in events)
    found = {stage: tripped(event for event in events if str(event.get("stage", "")) == stage) for stage in stages}
    return [visible(f"{stage}: {one}", ALARM_LIMIT) for stage in stages for one in found[stage]]
