"""``penstock report RUN``: one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.cli.recipe import no_more_flags, wants_help
from penstock.core.errors import SpecError


def run(words: Sequence[str]) -> int:
    """Write the report of a run folder and print where it is."""
    if wants_help(words):
        print("usage: penstock report RUN\n\nWrites RUN/report.html: curves, evaluations and samples of a run, in one file.")
        return 0
    no_more_flags(words, "help")
    if len(words) != 1:
        raise SpecError("report takes one run folder: penstock report runs/NAME")
    from penstock.runtime.folder import RunFolder
    from penstock.ui.report import write_report

    RunFolder(Path(words[0])).read()

    print(write_report(Path(words[0])))
    for line in alarms_of(Path(words[0])):
        print(line)
    return 0


def alarms_of(folder: Path) -> list[str]:
    """A line for every sentinel that tripped, stage by stage."""
    from penstock.core.events import read_events
    from penstock.ui.progress import ALARM_LIMIT, visible
    from penstock.ui.sentinels import tripped

    log = folder / "events.jsonl"
    events = [event for event in read_events(log) if event["kind"] == "sentinel"] if log.exists() else []
    stages = dict.fromkeys(str(event.get("stage", "")) for event in events)
    found = {stage: tripped(event for event in events if str(event.get("stage", "")) == stage) for stage in stages}
    return [visible(f"{stage}: {one}", ALARM_LIMIT) for stage in stages for one in found[stage]]
