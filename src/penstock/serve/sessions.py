"""Sessions of ``penstock serve --capture``: a program calls under a key of its own, and what it was answered comes as a sample.

``POST /sessions`` opens one, ``POST /sessions/ID/finish`` ends it with a reward.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.core.types import PART, Sample
from penstock.serve.service import Service
from penstock.serve.transport import sample_to
from penstock.web.fields import Fields
from penstock.web.guard import read_json
from penstock.web.refusals import Refusal


class Session(Protocol):
    """One program's run."""

    @property
    def address(self) -> Mapping[str, str]:
        """``base_url`` (OpenAI's), ``anthropic_base_url`` and ``api_key`` for the program."""
        ...

    async def finish(self, reward: float | None) -> Sample:
        """End it, and give what was generated under it."""
        ...

    @property
    def over(self) -> bool:
        """Whether it ended by itself: nothing was called for too long, or a limit was reached."""
        ...


class SessionRoutes:
    """Handlers over sessions that ``opened`` makes of a row."""

    def __init__(self, service: Service, opened: Callable[[Mapping[str, Any]], Awaitable[Session]]) -> None:
        self.service, self.opened = service, opened
        self.sessions: dict[str, Session] = {}
        self._count = 0

    async def open(self, request: Request) -> Response:
        """A session; ``row`` is what its environment knows of the task."""
        fields = Fields(await read_json(request, self.service.limits))
        row = fields.object("row")
        fields.done()
        self.sessions = {name: session for name, session in self.sessions.items() if not session.over}
        if len(self.sessions) >= self.service.limits.room:
            raise Refusal(429, f"{len(self.sessions)} sessions are open; finish some first", headers={"Retry-After": "1"})
        session = await self.opened(row)
        self._count += 1
        name = f"session-{self._count}"
        self.sessions[name] = session
        return JSONResponse({"id": name, **session.address})

    async def finish(self, request: Request) -> Response:
        """The session's sample: tokens, which were generated, their log-probs and versions, and the turns."""
        fields = Fields(await read_json(request, self.service.limits))
        reward = fields.number("reward", 0.0) if fields.has("reward") else None
        fields.done()
        session = self.sessions.pop(request.path_params["name"], None)
        if session is None:
            raise Refusal(404, "there is no such session, or it is over", code="not_found")
        sample = await session.finish(reward)
        if sample.error is not None:
            raise Refusal(409, sample.error, code="session_failed")
        turns = sample.extras["turns"]
        truncated = bool(turns) and turns[-1][-1] == "length"  # what a limit cut has not succeeded, whatever its program says
        reward = 0.0 if truncated and reward is not None else reward
        parts = {"part": sample.columns[PART].tolist()} if PART in sample.columns else {}
        found = {"sample": sample_to(sample) | parts, "turns": turns, "reward": reward}
        return JSONResponse(found | ({"truncated": True} if truncated else {}))
