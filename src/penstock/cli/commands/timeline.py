"""``penstock timeline RUN``: where a run's time went, and a trace to look into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from penstock.cli.command import Command, called
from penstock.core.errors import DataError


@dataclass(kw_only=True)
class Timeline(Command):
    """Show where a run's time went, and write a trace.

    Prints what each role of a run did for how long, how long the learner waited and the generators idled, the lag of the
    trained tokens and the stall of weight updates. The trace is for ui.perfetto.dev or chrome://tracing.
    """

    folder: Positional[Annotated[Path, called("RUN")]]
    """The run's folder, such as runs/NAME."""
    out: Annotated[Path | None, called("FILE")] = None
    """Where the trace goes (default: RUN/timeline.json)."""

    def run(self) -> None:
        """Print the account and write the trace."""
        from penstock.observe.lanes import read_lanes
        from penstock.observe.timeline import account, write_trace
        from penstock.runtime.folder import RunFolder
        from penstock.ui.timeline_text import account_lines

        found = RunFolder(self.folder)
        found.read()
        lanes = read_lanes(found.spans)
        if not any(lane.spans for lane in lanes):
            raise DataError(
                f"{found.spans}: nothing is recorded here, so there is no timeline; was the run made by an older Penstock?"
            )
        print("\n".join(account_lines(account(lanes))))
        out = self.out or self.folder / "timeline.json"
        write_trace(lanes, out)
        print(f"wrote {out}; open it at ui.perfetto.dev or chrome://tracing")
