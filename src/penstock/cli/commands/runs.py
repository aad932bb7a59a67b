"""The commands about the folders of runs: ``penstock report``, ``timeline``, ``replay`` and ``compare``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from penstock.cli.command import Command, called
from penstock.core.errors import DataError


@dataclass(kw_only=True)
class RunCommand(Command):
    """Base of the commands about one run."""

    folder: Positional[Annotated[Path, called("RUN")]]
    """The run's folder, such as runs/NAME."""


@dataclass(kw_only=True)
class Report(RunCommand):
    """Write RUN/report.html: curves, evaluations and samples of a run, in one file."""

    def run(self) -> None:
        """Write the report and print where it is, and which sentinels tripped."""
        from penstock.observe.alarms import tripped
        from penstock.runtime.folder import RunFolder
        from penstock.ui.live.index import LogIndex
        from penstock.ui.progress import ALARM_LIMIT, visible
        from penstock.ui.report import write_report

        found = RunFolder(self.folder)
        found.read()
        print(write_report(self.folder))
        index = LogIndex(found.events)
        index.refresh()
        for name, stage in index.stages.items():
            for one in tripped(stage.alarms):
                print(visible(f"{name}: {one}", ALARM_LIMIT))


@dataclass(kw_only=True)
class Timeline(RunCommand):
    """Show where a run's time went, and write a trace.

    Prints what each role of a run did for how long, how long the learner waited and the generators idled, the lag of the
    trained tokens and the stall of weight updates. The trace is for ui.perfetto.dev or chrome://tracing.
    """

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


@dataclass(kw_only=True)
class Replay(RunCommand):
    """Train a recorded stage again, step by step, in one process, and compare.

    The stage follows the schedule that the run recorded: every engine's steps, every weight update at the step at which it
    came, every batch as it was, without regard to the clock, so that a breakpoint anywhere shows what happened. Each step's
    loss, gradient norm and reward are compared with the run's log, and the weights with its model. Nothing in the run's
    folder is changed.

    Exit code 0: all equal; 1: a step differs (it is named).
    """

    stage: Annotated[str, called("NAME")] = ""
    """An online stage (default: the last one)."""
    steps: Annotated[int, called("N")] = 0
    """Steps to replay (default: all that were recorded)."""

    def run(self) -> int:
        """Replay and compare; gives the exit code."""
        from penstock.runtime.compare import compare

        return int(compare(self.folder, self.stage, self.steps) > 0)


@dataclass(kw_only=True)
class Compare(Command):
    """Compare runs over seeds: bands, interquartile means with intervals, and whether one family of runs beats another.

    Runs that differ only in name and seed are a family. A verdict is an exact permutation test at 5%, corrected for the
    number of pairs of families; where there are too few seeds to show anything, it says how many are needed.
    """

    folders: Positional[Annotated[tuple[Path, ...], called("RUNS")]]
    """Run folders, or folders of them."""
    metric: Annotated[str, called("NAME")] = ""
    """What to compare (default: held-out reward or accuracy, else the mean reward)."""
    stage: Annotated[str, called("NAME")] = ""
    """Of which stage (default: the last one)."""
    lower_is_better: bool = False
    """For a loss or a length."""

    def run(self) -> None:
        """Print the comparison."""
        from penstock.ui.consistency_text import comparison_lines

        print("\n".join(comparison_lines(self.folders, self.metric, self.stage, self.lower_is_better)))
