"""What episodes of several turns cost and whether any is lost: ``python benchmarks/episodes.py WHAT``, one of


``templates``: random conversations under the template of each family. Tokens trained must be the tokens generated, each once;
of what the cache could have kept between turns, how much was read from it.
``beginnings``: tokens prefilled a turn where prompts begin alike, where the cache is too small for the conversations that wait,
and where each turn comes under another key; with what others have read, and with a conversation's own cache alone.
``faults``: episodes of which some crash, some hang, some write what is no call. None may be lost or come twice, and siblings of
those that fail must be what they are without them.
``waiting``: tools take twice as long as generating, lognormally. Samples a second through the real gate, synchronous and in
flight; the learner is a pause. A decode step takes a fixed time whatever its rows, as where reading the weights bounds it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from penstock.core.types import Group, IntArray, Prompt, PromptKey, Request, Sample, SampleKey, Sampling
from penstock.data.resolve import register
from penstock.engine import memory
from penstock.engine import turn as turn_module
from penstock.engine.generator import EmbeddedGenerator
from penstock.envs.env import Env, Said, Turn
from penstock.envs.making import conversations
from penstock.envs.spec import EnvironmentSpec
from penstock.loops.learn import sample_metrics
from penstock.loops.rollout import Rollout, rollout
from penstock.stream.rules import Rules
from penstock.stream.stream import Stream, Worker

FLAT = Sampling(max_new_tokens=12, temperature=1e6)
"""Any token at any place, marks among them: one turn in thirty closes a thought."""
WORDS = ("the quick", "brown", "fox jumps", "over 12 - 5", "lazy dog", "what is")


def stream(*words: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def models() -> dict[str, Any]:
    """A tiny random model for each family's template."""
    sys.path[:0] = [str(Path(__file__).parents[1] / place) for place in ("tests", "tests/envs")]
    from templates import FAMILIES, family

    import tiny_models

    texts = {name: family(name, tiny_models.CORPUS) for name in FAMILIES}
    return {name: tiny_models.build("qwen2", text, max_position_embeddings=256) for name, text in texts.items()}


class Chatter(Env):
    """Answers a random number of turns with random words."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        super().__init__(columns)
        self.random = stream(columns["number"])
        self.left = int(self.random.integers(0, 4))

    async def step(self, said: Said) -> Turn:
        self.left -= 1
        text = " ".join(str(word) for word in self.random.choice(WORDS, 2))
        return Turn(text, terminated=self.left < 0, reward=1.0)


@dataclass
class Noting:
    """A generator that notes what was asked and drawn, by key."""

    engine: EmbeddedGenerator
    asked: dict[SampleKey, list[tuple[IntArray, IntArray]]]

    async def generate(self, request: Request) -> Sample:
        sample = await self.engine.generate(request)
        self.asked.setdefault(request.key, []).append((request.tokens_T, sample.tokens_T))
        return sample

    async def abort(self, keys: Any) -> list[Sample]:
        return await self.engine.abort(keys)


class Unscored:
    """The reward of samples that nobody scores."""

    async def __call__(self, group: Group) -> Group:
        return group

    async def close(self) -> None:
        return None


def prompts(count: int, chat: bool = True) -> list[Prompt]:
    found = []
    for number in range(count):
        text = str(stream(number, 7).choice(WORDS))
        messages = ({"role": "user", "content": text},) if chat else ()
        found.append(Prompt(PromptKey("made", 0, number), text, messages, {"number": number}))
    return found


async def rolled(roll: Rollout, wanted: list[Prompt], at_once: int) -> list[Group]:
    """All groups, so many at a time."""
    places = asyncio.Semaphore(at_once)

    async def one(prompt: Prompt) -> Group:
        async with places:
            return await roll.group(prompt)

    return list(await asyncio.gather(*map(one, wanted)))


def common(one: IntArray, other: IntArray) -> int:
    length = min(len(one), len(other))
    unlike = np.flatnonzero(one[:length] != other[:length])
    return int(unlike[0]) if len(unlike) else length


def kept_tokens(requests: list[tuple[IntArray, IntArray]]) -> int:
    """What a cache could have kept: of each later request, what it has in common with what was read before."""
    pairs = itertools.pairwise(requests)
    return sum(min(common(said_T[:-1], asked_T), len(asked_T) - 1) for (_, said_T), (asked_T, _) in pairs)


def templates(count: int, at_once: int = 256) -> None:
    """One row of the table for each family."""
    print(
        "| template | history | episodes | turns | tokens generated | trained | renderings | reuse | prefilled a later turn |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, model in models().items():
        for history in ("refuse",) if name != "qwen3" else ("split", "mask"):
            spec = EnvironmentSpec(function=register(Chatter), history=history)
            generator = Noting(EmbeddedGenerator(model, max_running=256), {})
            roll = Rollout(generator, conversations(spec, model.text, None), Unscored(), FLAT, 1)  # type: ignore[arg-type]
            groups = asyncio.run(rolled(roll, prompts(count), at_once))
            samples = [sample for group in groups for sample in group.samples]
            drawn = {key: np.concatenate([s[len(a) :] for a, s in asked]) for key, asked in generator.asked.items()}
            assert len({sample.key for sample in samples}) == len(samples) == count
            assert not any(sample.error for sample in samples)
            for sample in samples if history != "mask" else ():
                assert np.array_equal(sample.tokens_T[sample.action_T], drawn[sample.key])
            possible = sum(map(kept_tokens, generator.asked.values()))
            first = sum(len({asked[0][0].tobytes(): 0} and asked[0][0]) for asked in generator.asked.values())
            turns = sum(map(len, generator.asked.values()))
            trained = sum(int(sample.action_T.sum()) for sample in samples)
            parts = sum(int(sample.columns.get("part_T", np.zeros(1))[-1]) + 1 for sample in samples)
            later = (generator.engine.prefilled_tokens - first) / max(1, turns - count)
            print(
                f"| {name} | {history} | {count} | {turns} | {sum(map(len, drawn.values()))} | {trained} | {parts} | "
                f"{generator.engine.reused_tokens / possible:.1%} | {later:.1f} |",
                flush=True,
            )


@dataclass
class Renaming(Noting):
    """Each turn under a key of its own, as calls come that name no conversation; all are kept."""

    async def generate(self, request: Request) -> Sample:
        turn = len(self.asked.setdefault(request.key, []))
        name = request.key._replace(prompt=request.key.prompt._replace(source=f"turn {turn}"))
        sample = await self.engine.generate(replace(request, key=name, keep=True))
        self.asked[request.key].append((request.tokens_T, sample.tokens_T))
        return replace(sample, key=request.key)


class Slow(Chatter):
    """Takes a while, so that more conversations wait than run."""

    async def step(self, said: Said) -> Turn:
        await asyncio.sleep(0.01)
        return await super().step(said)


def beginnings(count: int) -> None:
    """Four samples of each prompt; a row for each case, with and without what others have read."""
    model = models()["chatml"]
    system = {"role": "system", "content": " ".join(WORDS * 4)}
    cell = 2 * sum(slot.heads * slot.key_width for slot in model.slots) * 4
    cases: dict[str, tuple[bool, float, Any]] = {
        "prompts of their own": (False, 0.0, Noting),
        "one system message": (True, 0.0, Noting),
        "one system message, cache for 3,000 tokens": (True, 3000 * cell / 1e9, Noting),
        "a key for each turn": (True, 0.0, Renaming),
    }
    print("| case | cache | turns | tokens read | prefilled a turn | seconds |\n| --- | --- | --- | --- | --- | --- |")
    for name, (alike, budget, kind) in cases.items():
        for shared in (False, True):
            wanted = [replace(one, messages=(system, *one.messages)) if alike else one for one in prompts(count // 4)]
            least = memory.LEAST if shared else 1 << 30
            with patch.object(memory, "LEAST", least), patch.object(turn_module, "LEAST", least):
                generator = kind(EmbeddedGenerator(model, max_running=16, cache_gb=budget), {})
                spec = EnvironmentSpec(function=register(Slow))
                roll = Rollout(generator, conversations(spec, model.text, None), Unscored(), FLAT, 4)
                began = time.perf_counter()
                groups = asyncio.run(rolled(roll, wanted, 16))
                took = time.perf_counter() - began
            assert not any(sample.error for group in groups for sample in group.samples)
            turns = sum(map(len, generator.asked.values()))
            read = sum(len(context_T) for asked in generator.asked.values() for context_T, _ in asked)
            whose = "anyone's" if shared else "its own"
            prefilled = generator.engine.prefilled_tokens / turns
            print(f"| {name} | {whose} | {turns} | {read / turns:.1f} | {prefilled:.1f} | {took:.1f} |", flush=True)


class Faulty(Chatter):
    """5% crash, 5% hang, 5% answer that nothing could be read; which, depends on the sample alone."""

    async def step(self, said: Said) -> Turn:
        draw = stream(self.columns["number"], said.sample.key.sample, 3).random()
        fault = "crash" if draw < 0.05 else "hang" if draw < 0.1 else "malformed" if draw < 0.15 else ""
        if fault and said.turn == 0 and not self.columns.get("healthy"):
            if fault == "crash":
                raise RuntimeError("the simulator is gone")
            if fault == "hang":
                await asyncio.Event().wait()
            return Turn("that is no call; write one", metrics={"malformed_calls": 1})
        self.left -= 1
        return Turn("go on", terminated=self.left < 0, reward=1.0)


def faults(count: int, at_once: int = 64) -> None:
    """``count`` episodes, eight of each prompt, with faults and without."""
    model = models()["chatml"]
    found: dict[bool, list[Group]] = {}
    for healthy in (False, True):
        wanted = [replace(one, columns={**one.columns, "healthy": healthy}) for one in prompts(count // 8)]
        spec = EnvironmentSpec(function=register(Faulty), deadline=1.0)
        generator = EmbeddedGenerator(model, max_running=256)
        began = time.perf_counter()
        roll = Rollout(generator, conversations(spec, model.text, None), Unscored(), Sampling(max_new_tokens=6), 8)
        found[healthy] = asyncio.run(rolled(roll, wanted, at_once))
        print(f"healthy={healthy}: {count} episodes in {time.perf_counter() - began:.0f} s")
    samples = {healthy: {s.key: s for g in groups for s in g.samples} for healthy, groups in found.items()}
    everything = [sample for group in found[False] for sample in group.samples]
    print("delivered", len(everything), "different", len(samples[False]))
    alike = [
        np.array_equal(sample.tokens_T, samples[True][key].tokens_T)
        for key, sample in samples[False].items()
        if sample.error is None and not sample.extras["episode"].get("malformed_calls")
    ]
    print("siblings that are what they are without faults:", sum(alike), "of", len(alike))
    print("finish", Counter(sample.finish if sample.error is None else "failed" for sample in everything))
    rates = {name: round(value, 4) for name, value in sample_metrics(found[False]).items() if name.startswith("episode/")}
    print(rates)


FLOOR, TOKENS, TURNS, BATCH, STEPS, LAG = 0.02, 12, 3, 8, 8, 3
"""Seconds of a decode step; mean tokens of a turn; turns; prompts of a batch, eight samples each; batches; ``max_lag``."""


class Floored(EmbeddedGenerator):
    """A decode step takes at least :data:`FLOOR` seconds; lengths of turns are lognormal, a function of sample and turn."""

    async def generate(self, request: Request, on_token: Any = None) -> Sample:
        words = (request.key.prompt.ordinal, request.key.sample, request.sampling.seed)
        length = int(np.clip(stream(*words, 5).lognormal(np.log(TOKENS) - 0.125, 0.5), 1, 4 * TOKENS))
        sampling = replace(request.sampling, max_new_tokens=length)
        return await super().generate(replace(request, sampling=sampling), on_token)

    def step(self) -> None:
        began = time.perf_counter()
        super().step()
        time.sleep(max(0.0, began + FLOOR - time.perf_counter()))


class Tool(Env):
    """Takes its time after every turn but the last: twice a turn's generation in the mean."""

    async def step(self, said: Said) -> Turn:
        if said.turn == TURNS - 1:
            return Turn(terminated=True, reward=1.0)
        draw = stream(self.columns["number"], said.sample.key.sample, said.turn, 11)
        mean = 2 * TOKENS * FLOOR * TURNS / (TURNS - 1)
        await asyncio.sleep(float(draw.lognormal(np.log(mean) - 0.5, 1.0)))
        return Turn("done")


async def gated(model: Any, max_lag: int, seed: int) -> float:
    """Samples a second of :data:`STEPS` batches, without the first that fill the pipe."""
    generator = Floored(model, max_running=64 * (max_lag + 1))
    generator.text.ends = frozenset({-1})
    spec = EnvironmentSpec(function=register(Tool))
    roll = Rollout(generator, conversations(spec, model.text, None), Unscored(), replace(FLAT, seed=seed), 8)
    wanted = [replace(one, columns={"number": one.columns["number"] + 1000 * seed}) for one in prompts(BATCH * (STEPS + 12))]
    gate = Stream(Rules(BATCH, max_lag))
    rolling = asyncio.create_task(rollout(Worker(gate, "g"), wanted.__getitem__, roll))
    ends = []
    for step in range(STEPS + max_lag):
        lease = await gate.lease(step)
        await asyncio.sleep(TOKENS * FLOOR)
        generator.version = step + 1
        await gate.release(lease.number)
        ends.append(time.perf_counter())
    rolling.cancel()
    await asyncio.gather(rolling, return_exceptions=True)
    return 8 * BATCH * (STEPS - 1) / (ends[-1] - ends[max_lag])


def waiting(seeds: int) -> None:
    """A row of the table for each seed."""
    model = models()["chatml"]
    print("| seed | synchronous, samples/s | in flight | gain |\n| --- | --- | --- | --- |")
    for seed in range(seeds):
        slow, fast = (asyncio.run(gated(model, lag, seed)) for lag in (0, LAG))
        print(f"| {seed} | {slow:.1f} | {fast:.1f} | {fast / slow:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("templates", "beginnings", "faults", "waiting"))
    parser.add_argument("--count", type=int, default=1000)
    given = parser.parse_args()
    {"templates": templates, "beginnings": beginnings, "faults": faults, "waiting": waiting}[given.what](given.count)
