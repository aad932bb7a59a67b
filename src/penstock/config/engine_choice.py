"""Which engine generates, said in one flag, and how weights reach it. No torch in here: help and plans answer at once."""

from __future__ import annotations

from dataclasses import replace

from penstock.config.engines import Embedded, Engine
from penstock.config.run import Run
from penstock.config.spec import suggestion
from penstock.config.stage import Stage
from penstock.core.errors import SpecError


def with_engine(run: Run, name: str) -> Run:
    """The run with the engine that ``--generator`` names, in processes if it was in one.

    Raises:
        SpecError: there is no such engine.
    """
    known = {kind.__name__.lower(): kind for kind in Engine.__subclasses__()}
    if name.lower() not in known:
        raise SpecError(f'--generator: there is no engine "{name}"{suggestion(name.lower(), sorted(known))}')
    kind = known[name.lower()]
    runtime = "procs" if run.runtime == "local" and kind is not Embedded else run.runtime
    return replace(run, runtime=runtime, roles=replace(run.roles, engine=kind.usual()))


def sends_adapters(run: Run, stage: Stage) -> bool:
    """Whether weights travel to the generators as low-rank adapters alone, without the matrices that never change."""
    return stage.trains_adapters and run.roles.engine.takes_adapters()


def weights_way(run: Run) -> str:
    """How weights get from the learner to what generates, in a line of ``penstock explain``."""
    channel, engine = run.roles.channel, run.roles.engine
    last = engine.last_leg()
    return f"to the generators by {channel}" + (f", then by {last}" if last else "")
