"""A server that answers as SGLang's documentation says, with the embedded engine behind it instead of SGLang."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from safetensors.torch import load_file, save_file
from starlette.requests import Request as Asked
from starlette.responses import JSONResponse, Response, StreamingResponse

from penstock.core.errors import PenstockError
from penstock.core.types import PromptKey, Request, Sample, SampleKey, Sampling, WeightUpdate
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.language_model import LanguageModel
from penstock.serve.http_client import HttpClient
from penstock.serve.sglang import SGLangGenerator
from penstock.serve.sglang_weights import FromDisk
from serving import running


class Answers:
    """Routes of SGLang's native API, as its sources describe them (``io_struct.py``, ``weight_versions.py``)."""

    def __init__(self, model: LanguageModel) -> None:
        self.engine = EmbeddedGenerator(model, max_running=4)
        self.labels = ["default"]
        """By version of the engine: what the weights were called."""
        self.keys: dict[str, SampleKey] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Every request but those to generate, in order."""
        self.refuse_folders = 0
        """So many updates from disk fail from now on."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Asked(scope, receive)
        body = await request.json() if scope["method"] == "POST" else {}
        route = getattr(self, scope["path"].strip("/"))
        if scope["path"] != "/generate":
            self.asked.append((scope["path"], body))
        try:
            response = await route(body)
        except PenstockError as error:
            response = JSONResponse({"error": {"message": str(error)}}, 400)
        await response(scope, receive, send)

    async def health(self, body: dict[str, Any]) -> Response:
        return Response()

    async def generate(self, body: dict[str, Any]) -> Response:
        if not body.get("stream"):
            return JSONResponse(await self._scored(body))
        return StreamingResponse(self._events(body), media_type="text/event-stream")

    async def abort_request(self, body: dict[str, Any]) -> Response:
        if body["rid"] in self.keys:
            await self.engine.abort([self.keys[body["rid"]]])
        return Response()

    async def pause_generation(self, body: dict[str, Any]) -> Response:
        assert body["mode"] in ("abort", "retract", "in_place")
        if body["mode"] == "abort":
            await self.engine.abort(list(self.keys.values()))
        self.engine.pause()
        return JSONResponse({"status": "ok"})

    async def continue_generation(self, body: dict[str, Any]) -> Response:
        self.engine.resume()
        return JSONResponse({"status": "ok"})

    async def update_weights_from_disk(self, body: dict[str, Any]) -> Response:
        if self.refuse_folders:
            self.refuse_folders -= 1
            return JSONResponse({"success": False, "message": "Failed to load weights"}, 400)
        tensors = load_file(Path(body["model_path"]) / "model.safetensors")
        self.labels.append(body["weight_version"])
        await self.engine.load(WeightUpdate(len(self.labels) - 1, list(tensors.items())))
        return JSONResponse({"success": True, "message": "Succeeded to update model weights."})

    async def _scored(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens = np.asarray(body["input_ids"], np.int32)
        logp_T = (await self.engine.score(tokens)).tolist()
        entries = [[logp, int(token), None] for logp, token in zip([None, *logp_T[1:]], tokens, strict=True)]
        return {"text": "", "meta_info": {"id": "score", "input_token_logprobs": entries, "finish_reason": {"type": "length"}}}

    def _request(self, body: dict[str, Any]) -> Request:
        """Draws depend on the seed and on a token's position: all but the first token stand as if they were drawn."""
        asked, ids = body["sampling_params"], np.asarray(body["input_ids"], np.int32)
        key = SampleKey(PromptKey("sglang", 0, asked["sampling_seed"]), 0)
        drawn = Sampling(
            temperature=asked["temperature"],
            top_p=asked["top_p"],
            top_k=max(0, asked["top_k"]),
            min_p=asked["min_p"],
            max_new_tokens=asked["max_new_tokens"] + len(ids) - 1,
            stop=tuple(asked["stop"]),
            stop_tokens=tuple(asked["stop_token_ids"]),
            seed=asked["sampling_seed"],
        )
        columns = np.arange(len(ids)) >= 1, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32)
        return Request(key, ids[:1], drawn, Sample(key, {"tokens_T": ids}, *columns, "abort"))

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        told: list[tuple[int, float, int]] = []
        heard = asyncio.Event()

        def hear(token: int, logp: float, version: int) -> None:
            told.append((token, logp, version))
            heard.set()

        request = self._request(body)
        self.keys[body["rid"]] = request.key
        task = asyncio.create_task(self.engine.generate(request, hear))
        task.add_done_callback(lambda _: heard.set())
        try:
            while not task.done():
                await heard.wait()
                heard.clear()
                if not task.done():
                    yield self._event(body, told, None)
            yield self._event(body, told, task.result().finish)
            yield b"data: [DONE]\n\n"
        finally:
            task.cancel()
            del self.keys[body["rid"]]

    def _event(self, body: dict[str, Any], told: list[tuple[int, float, int]], finish: str | None) -> bytes:
        labels = [self.labels[version] for _, _, version in told]
        edges = [0, *(i for i in range(1, len(labels)) if labels[i] != labels[i - 1]), len(labels)]
        spans = [{"version": labels[a], "start": a, "end": b} for a, b in itertools.pairwise(edges) if a < b]
        event = {
            "text": self.engine.text.decode([token for token, _, _ in told]),
            "output_ids": [token for token, _, _ in told],
            "meta_info": {
                "id": body["rid"],
                "finish_reason": None if finish is None else {"type": finish},
                "weight_version": self.labels[-1],
                "weight_versions": spans,
                "output_token_logprobs": [[logp, token, None] for token, logp, _ in told],
            },
        }
        return f"data: {json.dumps(event)}\n\n".encode()


def write(tensors: Any, folder: Path) -> None:
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


@asynccontextmanager
async def sglang_over(answers: Answers, model: LanguageModel, folder: Path) -> AsyncIterator[SGLangGenerator]:
    """The adapter over a server with these answers; weights travel through ``folder``."""
    config = uvicorn.Config(answers, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=1)
    async with running(uvicorn.Server(config)) as url:
        client = HttpClient(url, "", 30.0)
        own = dict(model.policy_weights())
        try:
            yield SGLangGenerator(client, model.text, own, FromDisk(folder, write), context=model.context, version=0)
        finally:
            await client.close()
