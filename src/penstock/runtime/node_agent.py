"""What starts a role on a node of a cluster and passes on how it ended; an actor of :mod:`penstock.runtime.ray`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from penstock.core.errors import RoleError
from penstock.runtime.supervisor import ProcessChild, Role, spawn


class NodeAgent:
    """Made on a node, starts one role there."""

    child: ProcessChild
    """Once it is started."""

    def address(self) -> str:
        """Of the node."""
        return "127.0.0.1"

    async def call(self, verb: str, text: str) -> str:
        """Carry a verb out. ``text`` is JSON, as is what comes back: the verb's ``value``, or its ``error``."""
        try:
            return json.dumps({"value": await getattr(self, f"_{verb}")(**json.loads(text))})
        except (OSError, RoleError) as error:
            return json.dumps({"error": str(error)})

    async def _start(
        self, name: str, command: list[str], bootstrap: dict[str, Any], log: str, environment: dict[str, str], driver: str
    ) -> str:
        """Start the role; gives the node's address. ``driver`` is the driver's Python; a node has one of its own."""
        address = self.address()
        folder, base = Path(bootstrap["folder"]), Path(bootstrap["base"])
        if not base.is_dir() or (bootstrap["stage"] and not (folder / "run.json").exists()):
            raise RoleError(
                f"{name}: node {address} does not see {folder if base.is_dir() else base}; start in a folder that all "
                "nodes share, and put the run there with --runs"
            )
        here = tuple(sys.executable if word == driver else word for word in command)
        bootstrap, environment = {**bootstrap, "die_with_parent": True}, {**environment, "PENSTOCK_HOST": address}
        role = Role(name, bootstrap, here, Path(log) if log else None, environment)
        self.child = await spawn(role, asyncio.subprocess.PIPE, base)
        return address

    async def _read(self, pipe: str) -> str:
        """What the process printed to ``stdout`` or ``stderr``, as soon as there is some. Empty: it prints no more."""
        reader: asyncio.StreamReader = getattr(self.child.process, pipe)
        return (await reader.read(1 << 16)).decode(errors="replace")

    async def _wait(self) -> int:
        """The exit code, once the process has ended; what it had started ends then."""
        code = await self.child.wait()
        self.child.signal(signal.SIGKILL)
        return code

    async def _signal(self, number: int, alone: bool) -> None:
        self.child.signal(number, alone)
