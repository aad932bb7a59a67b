"""Tools of MCP servers: one session for each episode, so that what a server remembers of one no other sees."""

from __future__ import annotations

import asyncio
import base64
import shlex
from functools import partial
from typing import Any

from penstock.config.media import MARKS
from penstock.core.errors import EnvError, SpecError, blame
from penstock.envs.schemas import Tool
from penstock.envs.shown import Part

PREFIX = "mcp:"
CLOSING = 5.0
"""Seconds that a session may take to end before it is cancelled."""


def target_of(name: str) -> Any:
    """What ``mcp:http://HOST/mcp`` or ``mcp:COMMAND ARGUMENTS`` names, as the client takes it. Raises SpecError."""
    with blame(SpecError, f"{name} needs the package mcp: pip install 'penstock[mcp]'"):
        from mcp import StdioServerParameters
    target = name.removeprefix(PREFIX)
    if target.startswith(("http://", "https://")):
        return target
    words = shlex.split(target)
    if not words:
        raise SpecError(f'"{name}": name a command or a URL after {PREFIX}')
    return StdioServerParameters(command=words[0], args=words[1:])


class McpSession:
    """A session with one server. It lives in a task of its own, because it must end where it began."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self, media: bool = False) -> list[Tool]:
        """Connect; gives the server's tools. Waits for the server, bounded by the caller. Raises EnvError.

        Args:
            media: give the images and sounds in a result as parts; else a word stands for each.
        """
        self._media = media
        ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(ready))
        return await ready

    async def _run(self, ready: asyncio.Future[list[Tool]]) -> None:
        from mcp import Client

        try:
            async with Client(target_of(self.name)) as client:
                found, cursor = [], None
                while True:
                    page = await client.list_tools(cursor=cursor)
                    found += [self._tool(client, tool) for tool in page.tools]
                    if (cursor := page.next_cursor) is None:
                        break
                if not ready.done():
                    ready.set_result(found)
                await self._over.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(EnvError(f"{self.name}: {type(error).__name__}: {error}"))

    def _tool(self, client: Any, tool: Any) -> Tool:
        function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
        known = tool.annotations
        harmless = known is not None and (known.read_only_hint or known.open_world_hint is False)
        call, schema = partial(_called, client, tool.name, self._media), {"type": "function", "function": function}
        return Tool(tool.name, call, schema, world=not harmless)

    async def close(self) -> None:
        """End the session, and the process that it started."""
        self._over.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSING)
            self._task.cancel()


async def _called(client: Any, name: str, media: bool, /, **arguments: Any) -> str | list[Part]:
    result = await client.call_tool(name, arguments)
    text = "\n".join(getattr(block, "text", f"[{block.type}]") for block in result.content)
    if result.is_error:
        raise EnvError(text)
    if not media or not any(block.type in MARKS for block in result.content):
        return text
    return [
        {"type": block.type, block.type: base64.b64decode(block.data)}
        if block.type in MARKS
        else {"type": "text", "text": getattr(block, "text", f"[{block.type}]")}
        for block in result.content
    ]
