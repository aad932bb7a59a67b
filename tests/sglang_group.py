"""A server that answers as SGLang's documentation says, whose worker processes receive weights by a real process group."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from starlette.responses import JSONResponse, Response

from penstock.core.types import WeightUpdate
from penstock.models.language_model import LanguageModel
from sglang_answers import Answers

WORKER = """
import json, sys
from datetime import timedelta
import torch
import torch.distributed.distributed_c10d as c10d
from safetensors.torch import save_file

groups = {}


def init(said):
    rank, world, wait = said["rank_offset"] + int(sys.argv[1]), said["world_size"], timedelta(seconds=float(sys.argv[2]))
    address = f"tcp://{said['master_address']}:{said['master_port']}"
    store, rank, world = next(c10d.rendezvous(address, rank, world, timeout=wait))
    store.set_timeout(wait)
    name = said["group_name"]
    group, _ = c10d._new_process_group_helper(
        world, rank, [], c10d.Backend(said["backend"]), c10d.PrefixStore(name, store), group_name=name, timeout=wait
    )
    c10d._world.pg_group_ranks[group] = {i: i for i in range(world)}
    groups[name] = group


def update(said):
    tensors = {}
    for name, dtype, shape in zip(said["names"], said["dtypes"], said["shapes"], strict=True):
        tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        c10d.broadcast(tensors[name], src=0, group=groups[said["group_name"]])
    save_file(tensors, said["file"])


def destroy(said):
    c10d.destroy_process_group(groups.pop(said["group_name"]))


print(json.dumps(""), flush=True)
for line in sys.stdin:
    said = json.loads(line)
    try:
        {"init": init, "update": update, "destroy": destroy}[said["verb"]](said)
        print(json.dumps(""), flush=True)
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
"""
"""A worker of SGLang's as far as weights go: it enters the group by torch's rendezvous and receives every tensor by name.
Words: its number, and seconds that it waits."""


class GroupAnswers(Answers):
    """Routes that hand what they are asked to worker processes; what these received is what the server draws with."""

    def __init__(self, model: LanguageModel, folder: Path, workers: int = 1, seconds: float = 30.0) -> None:
        super().__init__(model)
        self.folder, self.information = folder, {"tp_size": workers, "dp_size": 1, "pp_size": 1}
        self.deaf = False
        """Whether the server says no to a process group."""
        words = [[sys.executable, "-c", WORKER, str(number), str(seconds)] for number in range(workers)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self.workers = [subprocess.Popen(word, stdin=pipe, stdout=pipe, text=True, env=environment) for word in words]
        for worker in self.workers:
            assert worker.stdout is not None
            assert json.loads(worker.stdout.readline()) == "", "a worker says when it is ready"

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait(timeout=60)
            for pipe in (worker.stdin, worker.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):  # what was left to say to one that is gone
                    pipe.close()

    async def _ask(self, verb: str, **said: Any) -> list[str]:
        """What goes wrong in each worker."""

        def one(number: int, worker: subprocess.Popen[str]) -> str:
            assert worker.stdin is not None
            assert worker.stdout is not None
            file = str(self.folder / f"worker-{number}.safetensors")
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.write(json.dumps({"verb": verb, "file": file, **said}) + "\n")
                worker.stdin.flush()
            answer: str = json.loads(worker.stdout.readline() or '"the worker is gone"')
            return answer

        return await asyncio.gather(*(asyncio.to_thread(one, *each) for each in enumerate(self.workers)))

    async def _told(self, verb: str, body: dict[str, Any]) -> Response:
        problems = [problem for problem in await self._ask(verb, **body) if problem]
        return JSONResponse({"success": not problems, "message": "; ".join(problems)}, 400 if problems else 200)

    async def server_info(self, body: dict[str, Any]) -> Response:
        return JSONResponse(self.information)

    async def init_weights_update_group(self, body: dict[str, Any]) -> Response:
        if self.deaf:
            return JSONResponse({"success": False, "message": "Failed to initialize custom process group"}, 400)
        return await self._told("init", body)

    async def destroy_weights_update_group(self, body: dict[str, Any]) -> Response:
        return await self._told("destroy", body)

    async def update_weights_from_distributed(self, body: dict[str, Any]) -> Response:
        response = await self._told("update", body)
        if response.status_code == 200:
            self.labels.append(body["weight_version"])
            tensors = load_file(self.folder / "worker-0.safetensors")
            await self.engine.load(WeightUpdate(len(self.labels) - 1, list(tensors.items())))
        return response
