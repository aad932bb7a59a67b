"""A generator on another machine than the learner's cannot read its shared memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_recipes import tiny

from penstock.config.keeping import CheckpointSpec, RolesSpec
from penstock.core.errors import SpecError
from penstock.runtime.stopping import StopSignal
from penstock.runtime.supervise import Supervised
from penstock.runtime.supervisor import Role


class Child:
    def __init__(self, address: str) -> None:
        self.address, self.stopped = address, False

    async def stop(self) -> int:
        self.stopped = True
        return 0


class Elsewhere:
    """Starts every role on a machine of its own."""

    host = "10.0.0.1"

    def __init__(self) -> None:
        self.children: list[Child] = []

    async def spawn(self, role: Role) -> Any:
        self.children.append(Child(f"10.0.0.{2 + len(self.children)}"))
        return self.children[-1]


def spawned(channel: str, kind: str, tmp_path: Path) -> Child:
    roles = RolesSpec(channel=channel)  # type: ignore[arg-type]
    made = replace(tiny(), runtime="procs", roles=roles, checkpoint=CheckpointSpec(every=1))

    async def main() -> Child:
        supervised, elsewhere = Supervised(made, tmp_path / "run", [], tmp_path, stop=StopSignal()), Elsewhere()
        supervised.place = elsewhere  # type: ignore[assignment]
        supervised.learner = await elsewhere.spawn(Role("learner", {"role": "learner"}))
        try:
            await supervised._spawn(Role(f"{kind}-0", {"role": kind}))
        finally:
            assert elsewhere.children[1].stopped == (channel == "shared memory" and kind != "reward")
        return elsewhere.children[1]

    return asyncio.run(main())


@pytest.mark.parametrize("kind", ["generator", "evaluator"])
def test_shared_memory_does_not_reach_another_machine(kind: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=rf"{kind}-0 is on 10.0.0.3 and the learner on 10.0.0.2.*--roles.channel disk"):
        spawned("shared memory", kind, tmp_path)


@pytest.mark.parametrize(
    ("channel", "kind"), [("disk", "generator"), ("process group", "evaluator"), ("shared memory", "reward")]
)
def test_other_channels_and_other_roles_do(channel: str, kind: str, tmp_path: Path) -> None:
    assert spawned(channel, kind, tmp_path).address == "10.0.0.3"
