"""A remote executor over HTTP: ``POST /run_code`` as SandboxFusion answers it. It isolates; this side trusts what it says."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx

from penstock.sandbox.program import Limits, Outcome, Program, SandboxError, Stopped

_GRACE_SECONDS = 30.0
"""What an answer may take beyond the program's own time: a queue, a container's start."""
_MOST_ANSWER_BYTES = 2**28


class Remote:
    """Sends Python programs to a server, which has the limits of processes and files; ``argv`` cannot be sent."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/run_code"
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self, limits: Limits, size: int) -> None:
        """Open the client of this event loop; the first program shows whether the server answers."""
        if self._client is None or self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            self._client = httpx.AsyncClient(limits=httpx.Limits(max_connections=size), trust_env=False)

    async def run(self, program: Program, limits: Limits, place: int) -> Outcome:
        if program.argv:
            raise SandboxError("a remote sandbox runs Python code; a Program with an argv needs the jail or docker")
        assert self._client is not None
        asked = {
            "language": "python", "code": program.code, "stdin": program.stdin, "fetch_files": list(program.collect),
            "compile_timeout": limits.seconds, "run_timeout": limits.seconds, "memory_limit_MB": limits.memory_bytes >> 20,
            "files": {name: base64.b64encode(content).decode() for name, content in program.files.items()},
        }  # fmt: skip
        try:
            async with asyncio.timeout(limits.seconds + _GRACE_SECONDS):
                answer = await self._ask(asked)
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            raise SandboxError(f"the sandbox at {self._url} failed: {type(error).__name__} {error}") from None
        return _outcome(answer, limits, self._url)

    async def _ask(self, asked: dict[str, Any]) -> Any:
        """Its answer, of bounded length: a program may print without end, and a server may pass all of it on."""
        assert self._client is not None
        async with self._client.stream("POST", self._url, json=asked, timeout=None) as response:
            response.raise_for_status()
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > _MOST_ANSWER_BYTES:
                    raise ValueError(f"an answer of more than {_MOST_ANSWER_BYTES} bytes")
        return httpx.Response(200, content=bytes(body)).json()

    def close(self) -> None:
        """Forget the client; its connections end with its loop."""
        self._client = None


def _outcome(answer: Any, limits: Limits, url: str) -> Outcome:
    """An answer as an outcome; one that does not say how the program ended is a failure of the sandbox."""
    result = answer.get("run_result") if isinstance(answer, dict) else None
    if not isinstance(result, dict) or answer.get("status") not in ("Success", "Failed"):
        said = str(answer.get("message", "") if isinstance(answer, dict) else answer)[:200]
        raise SandboxError(f"the sandbox at {url} did not run the program: {said or 'no run_result in its answer'}")
    late = result.get("status") == "TimeLimitExceeded"
    code = result.get("return_code")
    if not late and not (result.get("status") == "Finished" and isinstance(code, int)):
        raise SandboxError(f"the sandbox at {url} lost the program: {result.get('status')}")
    texts = [str(result.get(name) or "") for name in ("stdout", "stderr")]
    over = any(len(text.encode()) > limits.output_bytes for text in texts)
    stopped: Stopped = "seconds" if late else "output" if over else ""
    stdout, stderr = (text.encode()[: limits.output_bytes].decode(errors="replace") for text in texts)
    files = {name: base64.b64decode(content) for name, content in (answer.get("files") or {}).items()}
    return Outcome(-9 if late else int(code or 0), stdout, stderr, stopped, float(result.get("execution_time") or 0), files)
