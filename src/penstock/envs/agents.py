"""The environment ``agent``: a program that speaks the OpenAI or Anthropic API is an episode, and its calls are turns.

What the policy generated is never tokenized again: a call whose messages go on from an answered one is that one's tokens and
what is new. Any other call, a sub-agent's or one with an edited history, begins a branch: a part of the sample of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import math
import numbers
import os
import shlex
import signal
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.errors import EnvError, ModelError, SpecError
from penstock.core.types import IntArray, Sampling
from penstock.data.resolve import resolve
from penstock.envs.apis import AgentRequest, Reply, canonical
from penstock.envs.calls import Parsed, parsed
from penstock.envs.env import Context, Env, Said, Turn
from penstock.envs.rendering import UNLISTED, Rendering
from penstock.sandbox.threads import is_asynchronous
from penstock.web.refusals import Refusal

if TYPE_CHECKING:
    from penstock.envs.capture import Pending, Session

OUTPUT = 1 << 20
"""Bytes of a command's output that are read."""
ANSWER_SECONDS = 3600.0
"""In which an agent behind a URL answers; an episode's own limits come first."""


@dataclass(frozen=True)
class Node:
    """An answered call: the conversation with its answer, in messages and in tokens."""

    tools: tuple[Any, ...]
    turns: tuple[Any, ...]
    tokens_T: IntArray
    raw: str
    rendering: Rendering


class AgentEnv(Env):
    """One run of a program. Exactly one of ``function``, ``command`` and ``url`` names it.

    Args:
        function: ``MODULE:NAME`` or ``FILE.py:NAME``, called as ``function(row, base_url, api_key)``, plain or ``async``; what
            it returns is the reward, None leaves it to the run's rewards.
        command: a command line; ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``, ``ANTHROPIC_BASE_URL`` and ``ANTHROPIC_API_KEY`` are
            set, the row comes as JSON on standard input; the last line that it prints is the reward, if it is a number.
        url: is sent ``{"row", "base_url", "api_key"}`` and answers ``{"reward": number or null}`` when it is done.
        calls: format of tool calls: hermes (Qwen, too), llama, mistral or json.
    """

    rewards = repeatable = False  # what a program gives no reward for is left to others; and it may have changed anything

    def __init__(
        self, columns: Mapping[str, Any], *, function: Any = None, command: str = "", url: str = "", calls: str = "hermes"
    ) -> None:
        super().__init__(columns)
        self.function, self.command, self.url, self.calls = function, command, url, calls
        self.nodes: list[Node] = []
        self._program: asyncio.Task[Any] | None = None
        self._session: Session | None = None
        self._asked: Pending | None = None
        self._ids = 0

    @classmethod
    def prepared(cls, options: Mapping[str, Any], base: Path | None) -> Mapping[str, Any]:
        try:
            from penstock.envs import capture  # noqa: F401
        except ImportError as error:
            raise SpecError("the environment agent needs starlette and uvicorn; run: pip install 'penstock[serve]'") from error
        given = [name for name in ("function", "command", "url") if options.get(name)]
        if len(given) != 1:
            raise SpecError(
                f"the environment agent needs one of function, command and url in its options, got {given or 'none'}"
            )
        parsed("", options.get("calls", "hermes"))
        if "command" in given and not shlex.split(options["command"]):
            raise SpecError("the environment agent: its command is empty")
        return {**options, "function": resolve(options["function"], base)} if "function" in given else options

    async def reset(self) -> IntArray:
        from penstock.envs.capture import capture

        server = capture()
        self._server, self._session = server.app, server.app.open()
        self._program = asyncio.ensure_future(self._run(server.address, self._session.key))
        found = await self._next()
        if isinstance(found, Turn):
            raise EnvError("the program ended without a call; it is to call the base URL with the key that it is given")
        return found

    async def step(self, said: Said) -> Turn:
        asked, node = self._asked, self._node
        assert asked is not None
        asks = asked.asked.tools and said.finish != "length"
        found = parsed(said.raw, self.calls, said.thinking) if asks else Parsed()
        calls, text = found.calls, found.words if found.calls else said.raw
        ids = tuple(f"call{self._ids + at:05d}" for at in range(len(calls)))
        self._ids += len(ids)
        reply = Reply(text, calls, said.finish == "length", self._read, len(said.tokens_T), ids)
        self.nodes.append(replace(node, turns=(*node.turns, _turn_of(reply)), tokens_T=said.sample.tokens_T, raw=said.raw))
        if asked.clients and not asked.answer.done():
            asked.answer.set_result(reply)
        else:
            self.unheard.add(said.turn)
        metrics = {"tool_calls": float(len(calls)), "malformed_calls": float(len(found.problems))}
        if said.turn in self.unheard:
            metrics["unheard"] = 1.0
        following = await self._next()
        if isinstance(following, Turn):
            return replace(following, metrics=metrics)
        return Turn(Context(following), metrics=metrics)

    def cut(self) -> Turn:
        """What a program that is not at its end has earned: nothing, as an environment that never said so."""
        return Turn(reward=0.0, truncated=True)

    async def _next(self) -> IntArray | Turn:
        """Tokens of the next call; the last turn where the program has ended."""
        assert self._session is not None
        assert self._program is not None
        while True:
            coming = asyncio.ensure_future(self._session.calls.get())
            try:
                await asyncio.wait({coming, self._program}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    return self._ended(self._program)
                asked = coming.result()
            finally:
                coming.cancel()
            if not asked.clients:
                continue
            try:
                tokens_T = self._context(asked.asked)
            except (EnvError, ModelError) as error:
                if not asked.answer.done():
                    asked.answer.set_exception(Refusal(400, str(error)))
                continue
            self._asked, self._read = asked, len(tokens_T)
            return tokens_T

    def _context(self, asked: AgentRequest) -> IntArray:
        """Tokens of a call: those of the answered one that it goes on from and what is new, or its own rendering."""
        turns = tuple(map(canonical, asked.messages))
        before = [node for node in self.nodes if node.tools == asked.tools and _goes_on(turns, node.turns)]
        if before:
            node = max(before, key=lambda one: len(one.turns))
            rendering = copy.copy(node.rendering)
            rendering.messages = list(rendering.messages)
            tokens_T = rendering.extend(node.tokens_T, node.raw, asked.messages[len(node.turns) :])
        else:
            prompt, tools = (
                replace(self.prompt, messages=tuple(asked.messages), text=""),
                asked.tools if self.show_tools else (),
            )
            if tools and self.calls != "hermes" and not self.text.template({"tools": tools}).schemas():
                raise EnvError(UNLISTED.format(self.calls))
            rendering = Rendering(self.text, prompt, self.history, tools)
            tokens_T = rendering.open(asked.messages)
        self._node = Node(asked.tools, turns, tokens_T, "", rendering)
        return tokens_T

    def sampling(self, given: Sampling) -> Sampling:
        """As the call asks: no more tokens than it wants, and its stop strings; all else is the stage's."""
        assert self._asked is not None
        asked = self._asked.asked
        most = min(given.max_new_tokens, asked.most)
        return replace(given, max_new_tokens=most, stop=tuple(dict.fromkeys((*given.stop, *asked.stop))))

    def _ended(self, program: asyncio.Task[Any]) -> Turn:
        """The last turn, with the program's reward."""
        reward = program.result()
        if reward is not None and not isinstance(reward, numbers.Real | np.bool_):
            raise EnvError(f"the program gave {reward!r:.40} as a reward; give a number, or None")
        reward = None if reward is None else float(reward)
        if reward is not None and not math.isfinite(reward):
            raise EnvError(f"the program gave {reward!r} as a reward; give a finite number")
        return Turn(reward=reward, terminated=True)

    async def _run(self, address: str, key: str) -> Any:
        row = {name: value for name, value in self.columns.items() if value is not None}
        if self.function is not None:
            if is_asynchronous(self.function):
                return await self.function(row, f"{address}/v1", key)
            return await self.threads.run(lambda: self.function(row, f"{address}/v1", key), None)
        if self.url:
            sent = json.dumps({"row": row, "base_url": f"{address}/v1", "api_key": key}).encode()
            return await self.threads.run(lambda: _posted(self.url, sent), ANSWER_SECONDS)
        return await _commanded(self.command, row, address, key)

    async def close(self) -> None:
        if self._session is not None:
            self._server.close(self._session)
        if self._program is not None:
            self._program.cancel()
            await asyncio.gather(self._program, return_exceptions=True)


def _goes_on(turns: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    return len(before) < len(turns) and turns[: len(before)] == before


def _turn_of(reply: Reply) -> tuple[Any, ...]:
    """A reply as the turn that a client sends back."""
    calls = [{"function": {"name": call.name, "arguments": dict(call.arguments)}} for call in reply.calls]
    return canonical({"role": "assistant", "content": reply.text, "tool_calls": calls})


def _posted(url: str, sent: bytes) -> Any:
    """What an agent behind a URL says of a row."""
    request = urllib.request.Request(url, sent, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        found = json.loads(answer.read(OUTPUT))
    if not isinstance(found, dict):
        raise EnvError(f'{url} answered {found!r:.40}; answer {{"reward": number or null}}')
    return found.get("reward")


async def _commanded(command: str, row: Mapping[str, Any], address: str, key: str) -> Any:
    """The reward that a command prints last. Its process group ends with it.

    Raises:
        EnvError: it ended with another exit code than 0; with the end of what it wrote on standard error.
    """
    own = {"OPENAI_BASE_URL": f"{address}/v1", "OPENAI_API_KEY": key, "ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": key}
    process = await asyncio.create_subprocess_exec(
        *shlex.split(command), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=os.environ | own, start_new_session=True,
    )  # fmt: skip
    given: Any = process.stdin
    try:
        with contextlib.suppress(ConnectionError):  # it may not read its row
            given.write(json.dumps(row).encode())
            given.close()
        out, errors = await asyncio.gather(_last_of(process.stdout), _last_of(process.stderr))
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code:
        raise EnvError(f"the command ended with exit code {code}: {errors.decode('utf-8', 'replace').strip()[-300:]}")
    last = (out.decode("utf-8", "replace").strip().splitlines() or [""])[-1]
    try:
        return float(last)
    except ValueError:
        return None


async def _last_of(stream: Any) -> bytes:
    """The end of what a stream gives."""
    kept = b""
    while part := await stream.read(1 << 16):
        kept = (kept + part)[-OUTPUT:]
    return kept
