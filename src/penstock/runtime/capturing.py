"""Programs that somebody else started, captured: each session is an episode of the environment ``agent`` that ends when it is
finished over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.contracts import Generator
from penstock.core.types import Group, Prompt, PromptKey, Sample, Sampling
from penstock.data.resolve import register
from penstock.envs.making import conversations
from penstock.envs.spec import EnvironmentSpec, History
from penstock.loops.rollout import Rollout
from penstock.runtime.build import Unscored

TURNS = 10_000
SOURCE = "captured"


@dataclass
class CapturedSession:
    """One session, and the rollout that answers its calls."""

    address: dict[str, str] = field(default_factory=dict)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Future[float | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    rolling: asyncio.Task[Group] | None = None

    async def program(self, row: Mapping[str, Any], base_url: str, api_key: str) -> float | None:
        """What the environment takes for the program: it runs until the session is finished."""
        self.address |= {"base_url": base_url, "anthropic_base_url": base_url.removesuffix("/v1"), "api_key": api_key}
        self.opened.set()
        return await self.ended

    @property
    def over(self) -> bool:
        return self.rolling is not None and self.rolling.done()

    async def finish(self, reward: float | None) -> Sample:
        assert self.rolling is not None
        if not self.ended.done():
            self.ended.set_result(reward)
        return (await self.rolling).samples[0]


class Capturing:
    """Opens sessions over one generator.

    Args:
        text: its tokenizer.
        sampling: how all turns are sampled.
        calls: format of tool calls: hermes, llama, mistral or json.
        history: what is done where the chat template rewrites earlier turns (docs/environments.md).
        seconds: between two calls of a session at most; then it is over.
    """

    def __init__(
        self, generator: Generator, text: Any, sampling: Sampling, *, calls: str, history: History, seconds: float
    ) -> None:  # fmt: skip
        self.generator, self.sampling, self._count = generator, sampling, 0
        self._sessions: dict[int, CapturedSession] = {}
        options = {"function": register(self._program), "calls": calls}
        spec = EnvironmentSpec(function="agent", turns=TURNS, history=history, deadline=seconds, options=options)
        self._episodes = conversations(spec, text, None)

    async def _program(self, row: Mapping[str, Any], base_url: str, api_key: str) -> float | None:
        return await self._sessions[row["session"]].program(row, base_url, api_key)

    async def open(self, row: Mapping[str, Any]) -> CapturedSession:
        """A session whose calls are answered from now on."""
        self._count += 1
        number, session = self._count, CapturedSession()
        self._sessions[number] = session
        messages = ({"role": "user", "content": "?"},)  # stands for whatever the program will ask
        prompt = Prompt(PromptKey(SOURCE, 0, number), "", messages, {**row, "session": number})
        session.rolling = asyncio.ensure_future(
            Rollout(self.generator, self._episodes, Unscored(), self.sampling, 1).group(prompt)
        )
        session.rolling.add_done_callback(lambda _: self._sessions.pop(number))
        waiting = asyncio.ensure_future(session.opened.wait())
        await asyncio.wait({waiting, session.rolling}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if session.rolling.done():
            session.rolling.result()
        return session
