"""The embedded generator of diffusion policies: trajectories at different steps share a pass; weights change between two."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.config.denoising import Denoising
from penstock.core.errors import GenerationError
from penstock.core.types import (
    BoolArray,
    CachePolicy,
    FinishReason,
    FloatArray,
    GeneratorStats,
    IntArray,
    OnToken,
    Request,
    Sample,
    SampleKey,
    Version,
)
from penstock.engine.driver import Driver
from penstock.models.diffusion import kernels
from penstock.models.diffusion.model import DenoisingModel
from penstock.models.diffusion.policy import PICTURE, PROMPTS, STATES, TIMES, transition
from penstock.models.text import Text

AHEAD = 1 << 10
"""Numbers of noise that a trajectory samples at once; one transition's at least."""


@dataclass(eq=False)
class Trajectory:
    """One that is under way: its states so far, with log-prob and version of each."""

    request: Request
    future: asyncio.Future[Sample]
    times: list[float]
    stream: np.random.Generator
    states: list[FloatArray]
    noisy: range = range(0)
    """The transitions that add noise, of those counted from 0."""
    action_T: BoolArray = field(default_factory=lambda: np.zeros(0, bool))
    """The states that are trained on once they are there."""
    ahead: list[FloatArray] = field(default_factory=list)
    """Noise of the next transitions, the first one last."""
    logp: list[float] = field(default_factory=lambda: [0.0])
    versions: list[int] = field(default_factory=lambda: [-1])

    @property
    def step(self) -> int:
        """Transitions so far."""
        return len(self.states) - 1

    def noise(self) -> FloatArray:
        """That of the next transition. It is the stream's, however many are sampled ahead."""
        if not self.ahead:
            shape = self.states[0].shape
            self.ahead = [*self.stream.standard_normal((max(1, AHEAD // self.states[0].size), *shape), np.float32)][::-1]
        return self.ahead.pop()

    def finish_reason(self, text: Text) -> FinishReason | None:
        """None: what begins has transitions to go."""
        return None

    def sample(self, finish: FinishReason, picture: NDArray[np.uint8] | None = None) -> Sample:
        """What there is of it."""
        count = len(self.states)
        prompt_TC = np.broadcast_to(self.request.tokens_T.astype(np.int32), (count, len(self.request.tokens_T)))
        columns = {STATES: np.array(self.states), TIMES: np.array(self.times[:count], np.float32), PROMPTS: prompt_TC}
        action_T = self.action_T[:count]
        version_T = np.where(action_T, np.array(self.versions, np.int32), -1).astype(np.int32)
        logp_T = np.where(action_T, np.array(self.logp, np.float32), 0).astype(np.float32)
        extras = {} if picture is None else {PICTURE: picture}
        return Sample(self.request.key, columns, action_T, logp_T, version_T, finish, extras=extras)


class DenoisingGenerator(Driver):
    """Implements the ``Generator`` contract for denoisers in this process, over parameters that it may share with a learner.

    At most ``max_running`` trajectories are denoised at once; ``queue`` more may wait. The noise of a transition depends on
    seed, sample and step alone.
    """

    def __init__(self, model: DenoisingModel, *, max_running: int = 128, queue: int = 1 << 16, version: Version = 0) -> None:
        super().__init__(model, version)
        self.max_running, self.queue = max_running, queue
        self.running: list[Trajectory] = []
        self.waiting: deque[Trajectory] = deque()
        self._moved: list[Trajectory] = []
        """Those of the last turn, with their states and prompts."""
        self._reached_RD = self._prompt_RC = torch.zeros(0)

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Sample:
        """Draw one trajectory, of at least two transitions. Raises what :meth:`sequence` raises."""
        trajectory = self.sequence(request)
        self.enter(trajectory)
        self._drive()
        return await trajectory.future

    def enter(self, trajectory: Trajectory) -> None:
        """Let a trajectory take part from the next turn on; where its noise is, the weights' version decides if it slides."""
        request, denoising = trajectory.request, self.model.denoising
        if request.sampling.temperature:
            trajectory.noisy = window_of(denoising, f"{request.sampling.seed}|{request.key.prompt}", self.version)
        trained = f"trained|{request.sampling.seed}|{request.key}"
        trajectory.action_T = actions_of(len(trajectory.times), trajectory.noisy, denoising.trained, trained)
        if request.resume is not None:
            trajectory.action_T[: trajectory.step + 1] = request.resume.action_T
        self.tape.submit(trajectory.request.key)
        self.waiting.append(trajectory)

    def sequence(self, request: Request) -> Trajectory:
        """A trajectory at its first noise, or where it was aborted.

        Raises:
            GenerationError: the prompt is longer than the denoiser reads, its temperature is neither 0 nor 1, or too many
                requests wait.
        """
        if not 0 < len(request.tokens_T) < self.model.context:
            raise GenerationError(
                f"{request.key}: a prompt of {len(request.tokens_T)} tokens; this denoiser reads 1 to {self.model.context - 1}"
            )
        if request.sampling.temperature not in (0, 1):
            raise GenerationError(
                f"{request.key}: temperature={request.sampling.temperature}; a denoiser adds its noise (1) or none (0): set "
                "denoising.noise for less"
            )
        if len(self.waiting) >= self.queue:
            raise GenerationError(f"{request.key}: {self.queue} requests are waiting already")
        stream = stream_of(f"{request.sampling.seed}|{request.key}")
        denoising, quiet, prompt = self.model.denoising, request.sampling.temperature == 0, request.key.prompt
        first = stream.standard_normal(self.model.shape, np.float32)
        if denoising.same_start:
            first = stream_of(f"{request.sampling.seed}|{prompt}").standard_normal(self.model.shape, np.float32)
        future = asyncio.get_running_loop().create_future()
        made = Trajectory(request, future, self.model.times(quiet), stream, [first])
        if (before := request.resume) is not None:
            made.states = list(before.columns[STATES])
            made.logp, made.versions = before.logp_T.tolist(), before.version_T.tolist()
            for _ in range(made.step):
                made.noise()
        return made

    async def score(self, tokens_T: IntArray, temperature: float = 1.0, prompt: int | None = None) -> FloatArray:
        """Raises GenerationError: the steps of a diffusion policy are no tokens; a learner scores its trajectories."""
        raise GenerationError("the steps of a diffusion policy are no tokens; its learner scores whole trajectories")

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def _all(self) -> list[Trajectory]:
        return [*self.running, *self.waiting]

    def _clear(self) -> None:
        self.running, self.waiting = [], deque()

    def _renew_cache(self, policy: CachePolicy) -> None:
        """Nothing is cached, so only what is to be aborted changes."""
        if policy == "abort":
            self._stop(self._all())

    async def abort(self, keys: Collection[SampleKey]) -> list[Sample]:
        """Stop the named samples; gives what there is of them, fit to resume from."""
        wanted = set(keys)
        return self._stop([one for one in self._all() if one.request.key in wanted])

    def _stop(self, found: list[Trajectory]) -> list[Sample]:
        self.running = [one for one in self.running if one not in found]
        self.waiting = deque(one for one in self.waiting if one not in found)
        samples = [one.sample("abort") for one in found]
        for one, sample in zip(found, samples, strict=True):
            if not one.future.done():
                one.future.set_result(sample)
        return samples

    def forget(self, key: SampleKey) -> None:
        """Nothing is kept between two requests."""

    def release(self) -> None:
        """Nothing is kept between two requests."""

    def stats(self) -> GeneratorStats:
        return GeneratorStats(
            self.version, len(self.running), len(self.waiting), len(self.running) / self.max_running, self.generated_tokens,
            self.busy_seconds,
        )  # fmt: skip

    @torch.no_grad()
    def step(self) -> None:
        """One transition of every trajectory that is under way."""
        started = self.spans.clock()
        self.running = [one for one in self.running if not one.future.done()]  # who was cancelled waits no more
        while self.waiting and len(self.running) < self.max_running:
            if not (one := self.waiting.popleft()).future.done():
                self.running.append(one)
        if self.running:
            self._move(self.running)
        done = [one for one in self.running if one.step == len(one.times) - 1]
        self.running = [one for one in self.running if one not in done]
        for one, picture in zip(done, self.model.pictures([one.states[-1] for one in done]), strict=True):
            one.future.set_result(one.sample("stop", picture))
        self._moved = [] if done else self._moved
        self.tape.turn += 1
        ended = self.spans.clock()
        self.busy_seconds += ended - started
        self.spans.extend("generate", started, ended, tokens=len(self.running), in_flight=len(self.running) + len(self.waiting))

    def _move(self, moved: list[Trajectory]) -> None:
        device = self.model.device
        if self._moved != moved:  # or states and prompts are those of the last turn
            self._reached_RD = torch.from_numpy(np.stack([one.states[-1] for one in moved])).to(device)
            self._moved, self._prompt_RC = list(moved), torch.from_numpy(self._prompts(moved)).to(device)
        steps = [one.step for one in moved]
        both = [one.times[step : step + 2] for one, step in zip(moved, steps, strict=True)]
        time_R, next_R = torch.tensor(both, dtype=torch.float32, device=device).unbind(1)
        quiet_R = torch.tensor([step not in one.noisy for one, step in zip(moved, steps, strict=True)], device=device)
        mean_RD, deviation_R = transition(self.model, self._reached_RD, time_R, next_R, self._prompt_RC, quiet_R)
        noise = np.stack([one.noise() for one in moved])
        reached_RD = mean_RD + kernels.like(deviation_R, mean_RD) * torch.from_numpy(noise).to(device)
        logp = kernels.log_prob(reached_RD, mean_RD, deviation_R).tolist()
        self._reached_RD = reached_RD.float()
        reached = self._reached_RD.cpu().numpy()
        for place, one in enumerate(moved):
            one.states.append(reached[place])
            one.logp.append(logp[place])
            one.versions.append(self.version)
        self.generated_tokens += len(moved)

    def _prompts(self, moved: list[Trajectory]) -> NDArray[np.int64]:
        found = np.full((len(moved), max(len(one.request.tokens_T) for one in moved)), self.text.pad, np.int64)
        for place, one in enumerate(moved):
            found[place, : len(one.request.tokens_T)] = one.request.tokens_T
        return found


def stream_of(name: str) -> np.random.Generator:
    """The random stream of a name."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def window_of(denoising: Denoising, seed: str, version: Version) -> range:
    """The transitions that add noise: all but the last, or as many in a row as the window has, at a place that follows from the
    seed or, where the window slides, from the version of the weights."""
    noisy = denoising.steps - 1
    if not denoising.window:
        return range(noisy)
    places = noisy - denoising.window + 1
    random = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "little")
    first = (version // denoising.slide if denoising.slide else random) % places
    return range(first, first + denoising.window)


def actions_of(states: int, noisy: range, share: float, seed: str) -> BoolArray:
    """The states that are trained on: those that a transition with noise led to, or a share of them that follows from the seed;
    of a trajectory without any noise all but the first."""
    reached = np.arange(states)[1:] if not noisy else np.arange(noisy.start, noisy.stop) + 1
    if noisy and share < 1:
        reached = stream_of(seed).permutation(reached)[: max(1, round(share * len(reached)))]
    action_T = np.zeros(states, bool)
    action_T[reached] = True
    return action_T
