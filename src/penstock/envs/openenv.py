"""Environments behind a server of OpenEnv: ``openenv:URL``, one session of the server for each episode."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core.errors import EnvError, SpecError
from penstock.envs.env import Env, Said, Turn

PATIENCE = 86_400.0
"""Seconds that the client waits for an answer: the environment's own ``deadline`` is to end before."""
PAUSE = 0.25
"""Seconds before a server that was full is asked again."""


class OpenEnv(Env):
    """One session over a WebSocket, which ends with the episode, so that the server's place is free again.

    OpenEnv says only that an episode is ``done``: a limit of the server's own counts as the end here (``terminated``), and a
    critic does not bootstrap there. Set limits in the environment's spec, which truncate.

    Args:
        action: the field of an action that holds what the policy wrote.
        shown: the field of an observation that is shown to it.
        wait: seconds that an episode waits for one of the server's places; then it fails.
        options: what is passed to the server's ``reset``, next to the row's seed.
    """

    def __init__(
        self, columns: Mapping[str, Any], *, name: str, action: str = "message", shown: str = "message", wait: float = 30.0,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(columns)
        self.url, self.action, self.shown, self.wait, self.options = name, action, shown, wait, options
        self.client: Any = None

    @classmethod
    def prepared(cls, options: Mapping[str, Any], base: Path | None) -> Mapping[str, Any]:
        if not str(options["name"]).startswith(("http://", "https://", "ws://", "wss://")):
            raise SpecError(f"openenv:{options['name']}: name the server's address, such as openenv:http://127.0.0.1:8000")
        _client_class()
        return options

    async def reset(self) -> str:
        for _ in range(max(1, round(self.wait / PAUSE))):
            self.client = _client_class()(self.url, message_timeout_s=PATIENCE)
            try:
                return self._text((await self.client.reset(seed=self.seed, **self.options)).observation)
            except Exception as error:
                if not _full(error):
                    raise
            await self.client.disconnect()
            await asyncio.sleep(PAUSE)
        raise EnvError(f"{self.url} had no free place for {self.wait:g} s; raise max_concurrent_envs of the server")

    async def step(self, said: Said) -> Turn:
        found = await self.client.step({self.action: said.text})
        shown = None if found.done else self._text(found.observation)
        return Turn(shown, None if found.reward is None else float(found.reward), terminated=bool(found.done))

    def _text(self, observation: Mapping[str, Any]) -> str:
        if self.shown not in observation:
            known = ", ".join(observation)
            raise EnvError(f'an observation has no field "{self.shown}"; set the option shown to one of {known}')
        if not isinstance(shown := observation[self.shown], str | int | float):
            raise EnvError(f'the field "{self.shown}" of an observation is no text but {shown!r:.60}; name another by shown')
        return str(shown)

    async def close(self) -> None:
        if self.client is not None:
            await self.client.disconnect()


def _full(error: Exception) -> bool:
    """Whether a server has refused a session for want of a place: it says so, and hangs up, which may be seen first."""
    return "CAPACITY_REACHED" in str(error) or type(error).__name__ == "ConnectionClosedOK"


def _client_class() -> Any:
    try:
        from openenv.core.generic_client import GenericEnvClient
    except ImportError as error:
        raise SpecError("OpenEnv servers need the openenv-core package; run: pip install 'penstock[openenv]'") from error
    return GenericEnvClient
