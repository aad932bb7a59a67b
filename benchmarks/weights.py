"""What a weight update costs: ``OMP_NUM_THREADS=1 python benchmarks/weights.py``.

*Stall*: a generator decodes 48 sequences all the time while new weights come every second, from the learner's own parameters
(alias) or from a process of their own through shared memory. For every update two numbers: the pause, by how much the longest
decode step around it (from end to end) is longer than the median step near by; and the time lost, by how much all steps from
the manifest's arrival to the end of the load are longer. ``own`` is what the decoding thread itself does for the update, as
processor time, which does not depend on what else runs. ``control`` is the same measure where there was no update. ``busy``
means that the publishing process computes matrix products between two updates, as a learner would.

*Transport*: bytes and seconds of an update through the disk, full and as a difference, and through a process group, for steps
of a real GRPO run in bfloat16.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from penstock.config.run import ModelSpec
from penstock.core.types import PromptKey, Request, SampleKey, Sampling
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.language_model import LanguageModel
from penstock.models.scratch import build_model
from penstock.recipes.quickstart import quickstart
from penstock.runtime import launch
from penstock.weights.alias import AliasChannel
from penstock.weights.channels import channel
from penstock.weights.folder import PREFIX
from penstock.weights.follow import follow
from penstock.weights.shared_memory import SharedMemoryPublisher, SharedMemorySubscriber

SEQUENCES, NEW, CONTEXT = 48, 192, 256
CORPUS = ["3 + 4 = 7", "the quick brown fox jumps over the lazy dog", "what is the sum of all numbers"] * 20
Window = tuple[float, float]


def model_of(preset: str) -> LanguageModel:
    """A preset with random weights whose samples run to their full length."""
    model = build_model(ModelSpec(preset=preset, vocabulary=300, context=CONTEXT), CORPUS, seed=0)  # type: ignore[arg-type]
    model.text.ends = frozenset()
    return model


class Clocked(EmbeddedGenerator):
    """Notes when each step begins and ends, and how much its thread has computed until then."""

    def __init__(self, model: LanguageModel, **options: Any) -> None:
        super().__init__(model, **options)
        self.begins: list[float] = []
        self.ends: list[float] = []
        self.computed: list[tuple[float, float]] = []

    def step(self) -> None:
        self.begins.append(time.perf_counter())
        before = time.thread_time()
        super().step()
        self.computed.append((before, time.thread_time()))
        self.ends.append(time.perf_counter())

    def own(self, window: Window) -> float:
        """What the decoding thread computes between steps for an update, in steps: its most between any two steps of a window.

        Both are processor time of this thread, so they do not depend on what else runs on the machine.
        """
        inside = [i for i in range(1, len(self.ends)) if self.begins[i] >= window[0] and self.ends[i - 1] <= window[1]]
        step = statistics.median(end - begin for begin, end in self.computed[-200:])
        return max((self.computed[i][0] - self.computed[i - 1][1] for i in inside), default=0.0) / step


async def decode_for_ever(generator: EmbeddedGenerator, place: int) -> None:
    """One of the sequences that are always there; their starts are spread, so that steps cost about the same all the time."""
    ordinal = 0
    while True:
        new = NEW * (place + 1) // SEQUENCES if ordinal == 0 else NEW
        key = SampleKey(PromptKey("load", place, ordinal), 0)
        prompt = np.arange(10 + place, 26 + place, dtype=np.int32)
        await generator.generate(Request(key, prompt, Sampling(max_new_tokens=new, seed=ordinal)))
        ordinal += 1


def cost(ends: list[float], window: Window) -> tuple[float, float, float]:
    """(pause in s, time lost in s, median step in s) of a window."""
    ends_S = np.asarray(ends)
    step_S = np.diff(ends_S)
    touched = (ends_S[1:] >= window[0]) & (ends_S[:-1] <= window[1])
    near = (ends_S[1:] > window[0] - 0.3) & (ends_S[1:] < window[1] + 0.3) & ~touched
    median = float(np.median(step_S[near] if near.any() else step_S))
    return float(step_S[touched].max() - median), float((step_S[touched] - median).sum()), median


def line(name: str, generator: Clocked, windows: list[Window]) -> str:
    """A row of the table: p50 and p95 of pause and time lost, in ms and in decode steps."""
    costs = [cost(generator.ends, window) for window in windows]
    own = float(np.percentile([generator.own(window) for window in windows], 95))
    step = statistics.median(median for _, _, median in costs)
    cells = []
    for column in (0, 1):
        for share in (50, 95):
            value = float(np.percentile([entry[column] for entry in costs], share))
            cells.append(f"{value * 1e3:.2f} ms = {value / step:.2f} steps")
    span = 1e3 * statistics.median(end - begin for begin, end in windows)
    return f"| {name} | {len(costs)} | {step * 1e3:.2f} | {span:.1f} | {own:.2f} | {' | '.join(cells)} |"


async def alias_windows(generator: Clocked, updates: int) -> list[Window]:
    channel, windows = AliasChannel([generator]), []
    for version in range(1, updates + 1):
        await asyncio.sleep(1.0)
        began = time.perf_counter()
        await channel.publish(version)
        windows.append((began, time.perf_counter()))
    await asyncio.sleep(0.5)
    return windows


async def shared_windows(generator: Clocked, updates: int, preset: str, busy: bool) -> list[Window]:
    """Follow a process that publishes every second; a window is from a manifest's arrival to the end of its load."""
    windows: list[Window] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        folder = Path(root) / f"{PREFIX}bench"
        words = [sys.executable, __file__, "--learner", str(folder), "--presets", preset, *(["--busy"] if busy else [])]
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, limit=1 << 24)
        arrived = [0.0]

        async def newest(learner_epoch: int, version: int) -> dict[str, Any]:
            manifest = json.loads(await process.stdout.readline())
            arrived[0] = time.perf_counter()
            return manifest

        def report(what: str, **fields: Any) -> None:
            assert what == "weights loaded", fields
            windows.append((arrived[0], time.perf_counter()))

        task = asyncio.create_task(follow(generator, newest, SharedMemorySubscriber(folder), "keep", report))
        try:
            while len(windows) < updates and not task.done():
                await asyncio.sleep(0.5)
        finally:
            task.cancel()
            process.kill()
            await process.wait()
    return windows


async def stall(name: str, preset: str, updates_of: Callable[[Clocked], Any]) -> None:
    generator = Clocked(model_of(preset), max_running=SEQUENCES)
    load = [asyncio.create_task(decode_for_ever(generator, place)) for place in range(SEQUENCES)]
    await asyncio.sleep(2.0)  # the step is recorded, the sequences are spread
    windows = await updates_of(generator)
    for task in load:
        task.cancel()
    print(line(f"{preset} {name}", generator, windows), flush=True)
    span = min(0.4, statistics.median(end - begin for begin, end in windows))
    between = [(begin - 0.1 - span, begin - 0.1) for begin, _ in windows]
    print(line(f"{preset} {name}: control", generator, between), flush=True)


async def publish_every_second(folder: Path, preset: str, busy: bool) -> None:
    """The learner's part: new weights every second, until it is killed."""
    model = model_of(preset)
    weights = dict(model.policy_weights())

    async def post(manifest: dict[str, Any]) -> None:
        print(json.dumps(manifest), flush=True)

    publisher, version = SharedMemoryPublisher(lambda: model.policy_weights(), folder, post), 0
    factor = torch.randn(512, 512)
    while True:
        until = time.perf_counter() + 1.0
        while busy and time.perf_counter() < until:
            torch.matmul(factor, factor)
        await asyncio.sleep(max(0.0, until - time.perf_counter()))
        with torch.no_grad():
            for tensor in weights.values():
                tensor.add_(1e-6)
        version += 1
        await publisher.publish(version)


# ---- transport


def grpo_weights(folder: Path, preset: str, rate: float, steps: int) -> list[dict[str, torch.Tensor]]:
    """The policy's weights before and after each step of GRPO at a rate: the quickstart's task, after imitating its teacher."""
    recipe = quickstart(steps=steps)
    sft, grpo = recipe.stages
    model = replace(sft.model, preset=preset)
    sft = replace(sft, model=model, steps=40, learner=replace(sft.learner, learning_rate=1e-3 if preset == "1m" else 5e-4))
    learner = replace(grpo.learner, learning_rate=rate, schedule="constant", warmup=0)
    grpo = replace(grpo, learner=learner, batch=16, max_running=256, evaluation=None)
    found: list[dict[str, torch.Tensor]] = []

    class Recording(AliasChannel):
        def note(self) -> None:
            found.append({name: tensor.detach().clone() for name, tensor in self.generators[0].model.policy_weights()})

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.note()

        async def publish(self, version: int) -> None:
            await super().publish(version)
            self.note()

    imitated = folder / f"sft-{preset}" / "model"
    if not imitated.exists():
        launch(replace(recipe, stages=(sft,), headline=""), imitated.parent)
    stage = replace(grpo, model=ModelSpec(path=str(imitated)))
    with patch("penstock.runtime.stages.online.AliasChannel", Recording):
        launch(replace(recipe, stages=(stage,), headline=""), folder / f"grpo-{preset}-{rate}")
    return found


class Follower:
    """A process that opens the manifests it is told of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def start(self) -> None:
        words = [sys.executable, __file__, "--follower", str(self.folder)]
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=1 << 24)
        await self.process.stdout.readline()

    async def open(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.process.stdin.write((json.dumps(manifest) + "\n").encode())
        return json.loads(await self.process.stdout.readline())


def follow_manifests(folder: Path) -> None:
    """The process of :class:`Follower`."""
    subscribers: dict[str, Any] = {}
    print("ready", flush=True)
    for told in sys.stdin:
        manifest = json.loads(told)
        kind = manifest["kind"]
        subscriber = subscribers[kind] = subscribers.get(kind) or channel(kind).subscriber(folder, "a")
        began = time.perf_counter()
        subscriber.open(manifest)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "bytes": getattr(subscriber, "bytes_read", manifest["bytes"])}), flush=True)


async def carry(kind: str, dtype: str, steps: list[dict[str, torch.Tensor]]) -> list[dict[str, Any]]:
    """Publish weights after weights to a process; gives bytes, seconds to publish and seconds to open of each."""
    found = []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if kind == "shared memory" else None) as root:
        follower, now, posted = Follower(Path(root) / f"{PREFIX}bench"), [steps[0]], asyncio.Queue()
        await follower.start()
        publisher = channel(kind).publisher(lambda: now[0].items(), follower.folder, posted.put, 0, dtype=dtype)
        for version, now[0] in enumerate(steps):
            began = time.perf_counter()
            await publisher.publish(version)
            published = time.perf_counter() - began
            found.append({"published": published, **await follower.open(await posted.get())})
        publisher.close()
        follower.process.kill()
        await follower.process.wait()
    return found


def transport(presets: list[str], rates: list[float], steps: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        for preset in presets:
            for rate in rates:
                weights = grpo_weights(Path(root), preset, rate, steps)
                for kind, dtype in [("disk", "bfloat16"), ("disk", ""), ("shared memory", ""), ("process group", "")]:
                    costs = asyncio.run(carry(kind, dtype, weights))
                    first, later = costs[0], costs[1:]
                    middle = {key: statistics.median(cost[key] for cost in later) for key in first}
                    size, cells = first["bytes"] / middle["bytes"], [preset, f"{rate:g}", kind, dtype or "float32"]
                    cells += [f"{first['bytes'] / 1e6:.2f}", f"{middle['bytes'] / 1e6:.3f}", f"{size:.1f}"]
                    cells += [f"{cost[key] * 1e3:.1f}" for key in ("published", "seconds") for cost in (first, middle)]
                    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--presets", nargs="+", default=["3m", "10m"])
    options.add_argument("--updates", type=int, default=40, help="updates measured in each arm")
    options.add_argument("--rates", type=float, nargs="+", default=[1e-6, 1e-5], help="learning rates of the transport table")
    options.add_argument("--steps", type=int, default=4, help="GRPO steps of the transport table")
    options.add_argument("--part", choices=["stall", "transport", "both"], default="both")
    options.add_argument("--busy", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--follower", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--learner", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    if chosen.learner:
        asyncio.run(publish_every_second(chosen.learner, chosen.presets[0], chosen.busy))
        return
    if chosen.follower:
        follow_manifests(chosen.follower)
        return
    if chosen.part != "transport":
        print("| arm | updates | median step, ms | window, ms | own p95, steps | pause p50 | pause p95 | lost p50 | lost p95 |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for preset in chosen.presets:
            asyncio.run(stall("alias", preset, lambda g: alias_windows(g, chosen.updates)))
            for busy in (False, True):
                name = f"shared memory{', busy' if busy else ''}"
                asyncio.run(stall(name, preset, lambda g, p=preset, b=busy: shared_windows(g, chosen.updates, p, b)))
    if chosen.part != "stall":
        print("| preset | rate | channel | type | first, MB | later, MB | ratio | publish, ms | later | open, ms | later |")
        print("| --- " * 11 + "|")
        transport(chosen.presets, chosen.rates, chosen.steps)


if __name__ == "__main__":
    main()
