"""What a weight update to a real vLLM costs: ``OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/weights_to_vllm.py``.

The learner's end of a channel and a generator with a vLLM are in this process, the vLLM's worker in its own, while answers are
drawn all the time. Two ways by turns: through shared memory, as a run does by default, and by a process group. Both end in the
generator's process, which passes the snapshot on in a file of shared memory that the workers map.

Prints, for each way, the snapshot's bytes, how often it is written into memory between the learner's weights and those that
vLLM loads, and the medians (and largest) of three times: from publishing to the end of the load; of this the part in which
requests wait at the door (stall); and the processor time of this process, which is the learner's and the generator's together.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.config.engines import VLLM
from penstock.config.run import ModelSpec
from penstock.core.spans import Spans
from penstock.core.types import PromptKey, Request, SampleKey, Sampling
from penstock.models.files import save_model
from penstock.models.scratch import build_model
from penstock.runtime.engines import EngineStart, opened
from penstock.weights.channels import channel
from penstock.weights.folder import shared_folder

CORPUS = ["3 + 4 = 7", "the quick brown fox jumps over the lazy dog", "what is the sum of all numbers"] * 20
WAYS: Mapping[str, tuple[str, int]] = {
    "shared memory": ("shared memory", 3),
    "process group": ("process group", 3),
}
"""Channel, and how often a snapshot is written: into the channel's or the learner's own buffer, into the generator's memory,
and into the file that the workers map."""
CLIENTS = 4


class Stalls(Spans):
    """Notes how long requests wait while weights change."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def add(self, name: Any, start: float, end: float, **fields: Any) -> None:
        if name == "update":
            self.seconds.append(end - start)


async def draw(engine: Any, client: int) -> None:
    """Answers one after the other, for ever."""
    sampling, tokens = Sampling(max_new_tokens=64, seed=client), np.arange(20, 26, dtype=np.int32)
    for ordinal in range(10**9):
        await engine.generate(Request(SampleKey(PromptKey("q", client, ordinal), 0), tokens, sampling))


class Way:
    """One way from the learner's weights to those in use."""

    def __init__(self, name: str, model: Any, folder: Path) -> None:
        self.channel, self.copies = WAYS[name]
        self.manifests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.publisher = channel(self.channel).publisher(model.policy_weights, folder, self.manifests.put, 0)
        self.subscriber = channel(self.channel).subscriber(folder, "generator-0")
        self.bytes = 0
        self.whole: list[float] = []
        self.own: list[float] = []
        self.stalls: list[float] = []

    async def update(self, engine: Any, version: int) -> None:
        began, computed, count = time.perf_counter(), time.process_time(), len(engine.spans.seconds)
        await self.publisher.publish(version)
        manifest = await asyncio.wait_for(self.manifests.get(), 60)
        await engine.load(await asyncio.to_thread(self.subscriber.open, manifest))
        self.bytes = manifest["bytes"]
        self.whole.append(time.perf_counter() - began)
        self.own.append(time.process_time() - computed)
        self.stalls.extend(engine.spans.seconds[count:])


async def measure(model: Any, rounds: int) -> dict[str, Way]:
    with tempfile.TemporaryDirectory() as place:
        save_model(model, Path(place) / "model")
        spec, shared = VLLM(cache_bytes=1 << 27), shared_folder("measured-engine")
        async with opened(spec, EngineStart(Path(place) / "model", None, CLIENTS, shared)) as found:
            found.engine.spans = Stalls()
            made = {name: Way(name, model, shared_folder(f"measured-{index}")) for index, name in enumerate(WAYS)}
            drawing = [asyncio.create_task(draw(found.engine, client)) for client in range(CLIENTS)]
            try:
                for turn in range(rounds * len(WAYS)):
                    await list(made.values())[turn % len(WAYS)].update(found.engine, turn)
            finally:
                for task in drawing:
                    task.cancel()
                await asyncio.gather(*drawing, return_exceptions=True)
                for way in made.values():
                    way.publisher.close()
    return made


def told(seconds: list[float]) -> str:
    """Median and largest, without the first, which connects."""
    return f"{statistics.median(seconds[1:]) * 1e3:8.1f} ms ({max(seconds[1:]) * 1e3:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="1m", help="shape of the model; the quickstart's by default")
    parser.add_argument("--rounds", type=int, default=20, help="updates by each way")
    options = parser.parse_args()
    model = build_model(ModelSpec(preset=options.preset, vocabulary=300, context=256), CORPUS, seed=0)
    for name, way in asyncio.run(measure(model, options.rounds)).items():
        print(
            f"{name:<32}{way.bytes / 1e6:6.1f} MB × {way.copies}   whole {told(way.whole)}   stall {told(way.stalls)}   "
            f"own {told(way.own)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
