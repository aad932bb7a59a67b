"""A sweep from its folder to its end, or to Ctrl-C."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

from penstock.ckpt.lease import FolderClaims, Lease
from penstock.runtime.stopping import StopSignal
from penstock.sweep.plan import Build, Sweep, first_of, read, require_same
from penstock.sweep.population import Population
from penstock.sweep.process import POLL
from penstock.sweep.search import Search


def carry_out(path: Path, build: Build, say: Callable[[str], None], changed: Callable[[], None]) -> None:
    """Run what is left of the sweep in a folder.

    Args:
        build: makes its runs.
        say: hears a line about each thing that ends.
        changed: called when ``results.json`` was written.

    Raises:
        PenstockError: the sweep cannot go on; says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; says how to go on.
    """
    _, plan, kept = read(path)
    with contextlib.closing(Lease(FolderClaims(path), otherwise="").take()) as lease:
        sweep = Sweep(plan, path, build, require_same(kept, first_of(plan, build), path), say, changed)
        work: Search | Population = Population(sweep) if plan.population else Search(sweep)
        with StopSignal(elsewhere=True) as stop:
            stop.on_ask = lambda: say("the runs finish their steps and save; once more stops at once")
            try:
                while not stop.asked and work.advance():
                    lease.look()
                    time.sleep(POLL)
            finally:
                work.slots.end_all(at_once=(stop.asked > 1 for _ in itertools.count()))
        work.write()
        if stop.asked:
            raise KeyboardInterrupt(f"stopped; go on with: penstock sweep --resume {path}")
