"""The environment ``tools``: the policy calls functions, is given what they return, and ends with a turn without a call."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.core.errors import EnvError, SpecError
from penstock.data.resolve import resolve
from penstock.envs.calls import Call, parsed
from penstock.envs.env import Env, Said, Turn
from penstock.envs.mcp import PREFIX, McpSession, target_of
from penstock.envs.schemas import STATE, Tool, tool_of
from penstock.envs.shown import Part, is_parts, together
from penstock.sandbox import open_sandbox, python_tool
from penstock.sandbox.threads import DeadlineError, StuckError, bounded, is_asynchronous

CALL_ID = "call00000"
"""Some templates want an id of nine letters and digits; results come in the order of the calls."""


def _function(name: str, base: Path | None) -> Any:
    """The function behind a tool's name; the sandbox of ``python`` is started by its first call and ends with this process."""
    kind, _, where = name.partition(":")
    return python_tool(open_sandbox(where or "jail")) if kind == "python" else resolve(name, base)


class ToolEnv(Env):
    """Calls are run side by side; what a tool raises, a name that is not known and arguments that do not fit are answered in
    words, counted, and the episode goes on. It ends with the policy's first turn without a call, which is the answer that
    rewards read (``sample.text``); or by a turn that was cut, which is never read for calls.

    Args:
        tools: in specs ``MODULE:NAME`` or ``FILE.py:NAME`` of typed functions, plain or ``async``; or ``mcp:COMMAND`` or
            ``mcp:URL`` of an MCP server; or ``python``, which runs code in ``penstock.sandbox``'s jail (``python:WHERE`` in
            another sandbox). A parameter ``state`` is given the episode's own dict, whose values are closed at the
            end if they have a ``close``.
        calls: format of calls: hermes (Qwen, too), llama, mistral or json.
        corrections: turns in a row whose calls cannot be read or do not fit that are answered; one more ends the episode.
        penalty: what is taken off for an episode that ends so.
        seconds: deadline of one call.
        longest: characters of a result that are given.
        world: names of tools that change something outside the episode: after a call of one it is never tried again. Of an
            MCP server all are such whose annotations say neither that they only read nor that they keep to a closed world.
    """

    role = "tool"
    rewards = False

    def __init__(
        self, columns: Mapping[str, Any], *, tools: Sequence[Tool | str], calls: str = "hermes", corrections: int = 2,
        penalty: float = 0.0, seconds: float = 10.0, longest: int = 4000, world: Collection[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(columns)
        self.known, self.world = {tool.name: tool for tool in tools if isinstance(tool, Tool)}, world
        self.calls, self.corrections, self.penalty, self.seconds, self.longest = calls, corrections, penalty, seconds, longest
        self.sessions = [McpSession(name) for name in tools if isinstance(name, str)]
        self.state: dict[str, Any] = dict(columns)
        self._mistakes = 0

    @classmethod
    def prepared(cls, options: Mapping[str, Any], base: Path | None) -> Mapping[str, Any]:
        parsed("", options.get("calls", "hermes"))
        given = options.get("tools", ())
        servers = [name for name in given if name.startswith(PREFIX)]
        found = [tool_of(_function(name, base)) for name in given if name not in servers]
        names = Counter(tool.name for tool in found)
        if not given or max(names.values(), default=1) > 1:
            raise SpecError(f"the environment tools needs tools of different names, got {', '.join(names) or 'none'}")
        if not servers and (unknown := [name for name in options.get("world", ()) if name not in names]):
            raise SpecError(f'the option world names "{unknown[0]}"; the tools are {", ".join(names)}')
        for name in servers:
            target_of(name)
        return {**options, "tools": [*found, *servers]}

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return [tool.schema for tool in self.known.values()]

    async def reset(self) -> None:
        """Open the episode's sessions with MCP servers."""
        for session in self.sessions:
            for tool in await session.open(media=self.text.store is not None):
                if self.known.setdefault(tool.name, tool) is not tool:
                    raise EnvError(f'{session.name}: there is another tool called "{tool.name}"')

    async def step(self, said: Said) -> Turn:
        if said.finish == "length":
            return Turn(truncated=True, metrics={"cut_turns": 1})
        found, counts = parsed(said.raw, self.calls, said.thinking), Counter[str]()
        if not found.calls and not found.problems:
            return Turn(terminated=True)
        counts.update(tool_calls=len(found.calls), malformed_calls=len(found.problems))
        results = await asyncio.gather(*(self._result(call, counts) for call in found.calls))
        named = [(call.name, result) for call, result in zip(found.calls, results, strict=True)]
        answers = [*named, *(("tool", problem) for problem in found.problems)]
        wrong = counts["malformed_calls"] + counts["unknown_tools"] + counts["bad_arguments"]
        self._mistakes = self._mistakes + 1 if wrong else 0
        if self._mistakes > self.corrections:
            return Turn(reward=-self.penalty if self.penalty else None, terminated=True, metrics={**counts, "gave_up": 1})
        if not self.chat:
            return Turn(together([text for _, text in answers]), metrics=counts)
        said_by = {"role": self.role, "tool_call_id": CALL_ID}
        return Turn([{**said_by, "name": name, "content": text} for name, text in answers], metrics=counts)

    async def _result(self, call: Call, counts: Counter[str]) -> str | list[Part]:
        tool = self.known.get(call.name)
        if tool is None:
            counts["unknown_tools"] += 1
            return f'error: there is no tool "{call.name[:80]}"; there are: {", ".join(self.known)}'
        if problem := tool.problem(call.arguments):
            counts["bad_arguments"] += 1
            return f"error: {problem}"
        try:
            given = await self._run(tool, call.arguments)
        except StuckError:
            raise
        except DeadlineError:
            counts["failed_calls"] += 1
            return f"error: {tool.name} took longer than {self.seconds:g} s"
        except Exception as error:
            counts["failed_calls"] += 1
            return f"error: {type(error).__name__}: {error}"[: self.longest]
        if is_parts(given):
            return [{**part, "text": str(part["text"])[: self.longest]} if part["type"] == "text" else part for part in given]
        return (given if isinstance(given, str) else json.dumps(given, default=str))[: self.longest]

    async def _run(self, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        self.repeatable = self.repeatable and not (tool.world or tool.name in self.world)
        given = {**arguments, **({STATE: self.state} if tool.stateful else {})}
        if is_asynchronous(tool.function):
            return await bounded(tool.function(**given), self.seconds)
        return await self.threads.run(lambda: tool.function(**given), self.seconds)

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self.sessions))
        for held in self.state.values():
            if hasattr(held, "close"):
                held.close()
