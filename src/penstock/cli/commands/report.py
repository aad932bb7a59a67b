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
    from penstock.cli.folder import RunFolder
    from penstock.ui.report import write_report

    RunFolder(Path(words[0])).read()

    print(write_report(Path(words[0])))
    return 0
