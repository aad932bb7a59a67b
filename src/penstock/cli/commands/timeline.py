"""``penstock timeline RUN``: where a run's time went, and a trace to look into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.cli.recipe import wants_help
from penstock.core.errors import DataError, SpecError

HELP = (
    "usage: penstock timeline RUN [--out FILE]\n\n"
    "Prints what each role of a run did for how long, how long the learner waited and the generators idled, the lag of the\n"
    "trained tokens and the stall of weight updates. Writes a trace (RUN/timeline.json) for ui.perfetto.dev or chrome://tracing."
)


def run(words: Sequence[str]) -> int:
    """Print the account of a run folder and write its trace."""
    if wants_help(words):
        print(HELP)
        return 0
    folder, out = arguments(words)
    from penstock.core.lanes import read_lanes
    from penstock.runtime.folder import RunFolder
    from penstock.ui.timeline import account, write_trace
    from penstock.ui.timeline_text import account_lines

    found = RunFolder(folder)
    found.read()
    lanes = read_lanes(found.spans)
    if not any(lane.spans for lane in lanes):
        raise DataError(
            f"{found.spans}: nothing is recorded here, so there is no timeline; was the run made by an older Penstock?"
        )
    print("\n".join(account_lines(account(lanes))))
    write_trace(lanes, out)
    print(f"wrote {out}; open it at ui.perfetto.dev or chrome://tracing")
    return 0


def arguments(words: Sequence[str]) -> tuple[Path, Path]:
    """The run's folder and the file to write.

    Raises:
        SpecError: anything but a folder and at most one --out.
    """
    left = [word for part in words for word in (part.split("=", 1) if part.startswith("--out=") else [part])]
    out = None
    if "--out" in left:
        place = left.index("--out")
        out = left[place + 1] if place + 1 < len(left) else None
        if out is None:
            raise SpecError("--out needs a file: penstock timeline runs/NAME --out FILE")
        del left[place : place + 2]
    if len(left) != 1 or left[0].startswith("-"):
        raise SpecError("timeline takes one run folder: penstock timeline runs/NAME [--out FILE]")
    return Path(left[0]), Path(out) if out else Path(left[0]) / "timeline.json"
