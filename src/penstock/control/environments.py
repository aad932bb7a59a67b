"""Environments of gymnasium, stepped together: the home of the import. How an episode ended is known."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.control.stage import PLAIN, EnvironmentsSpec, Interface
from penstock.core.errors import SpecError, blame
from penstock.core.types import BoolArray, FloatArray, IntArray
from penstock.data.resolve import is_reference, resolve

try:
    import gymnasium
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
except ImportError as error:
    raise SpecError("a Control stage needs the gymnasium package; run: pip install 'penstock[control]'") from error

from penstock.control.games import Games
from penstock.control.spaces import Decisions, Observations, stacked


class Stepped(NamedTuple):
    """What came of one step of all environments."""

    reward_N: NDArray[Any]
    terminated_N: BoolArray
    truncated_N: BoolArray
    acted_N: BoolArray | None
    """False where an environment only reset itself; None: all acted."""
    ended_E: IntArray | None
    """Environments whose episode is over; None: none."""
    last_EF: FloatArray | None
    """Their true last observations."""


class Block:
    """Copies of an environment in lockstep. ``observation_NF`` is what they show, ``start_N`` where an episode begins with it.

    ``send`` gives them decisions and ``receive`` waits for what came of these: those in threads or processes of their own
    step in the meantime. gymnasium has three ways to go on after an episode, and each is followed: ``NEXT_STEP``, where the
    next step only resets and whatever was decided for it is void; ``SAME_STEP``, where the step that ends one gives the first
    observation of the next, and the last one aside; ``DISABLED``, where what ended is reset here. EnvPool's is ``NEXT_STEP``.
    """

    def __init__(self, spec: EnvironmentsSpec, seeds: list[int], base: Path | None, interface: Interface) -> None:
        self.name, self.spec, self.base, self.interface = spec.id, spec, base, interface
        with blame(SpecError, f"environments.id={spec.id}"):
            self.vector = _made(spec, len(seeds), base, seeds, interface.draws)
        self.count = self.vector.num_envs
        self.mode = self.vector.metadata.get("autoreset_mode")
        if not isinstance(self.mode, AutoresetMode):
            self.vector.close()
            raise SpecError(f'{spec.id}: its metadata lacks "autoreset_mode"; set one of gymnasium.vector.AutoresetMode there')
        self.decisions = Decisions(spec.id, self.vector.single_action_space, interface.squashed)
        self.begin(seeds)

    def reset(self, seeds: list[int]) -> None:
        """Begin everywhere anew."""
        if self.spec.vectorization == "envpool":  # which takes seeds as it is made, and never again
            self.vector.close()
            self.vector = _made(self.spec, len(seeds), self.base, seeds, self.interface.draws)
        self.begin(seeds)

    def begin(self, seeds: list[int]) -> None:
        """Show the first observations of new episodes everywhere."""
        several = isinstance(self.vector.unwrapped, SyncVectorEnv | AsyncVectorEnv | Games)
        given: Any = seeds if several else seeds[0]
        observation, infos = self.vector.reset(seed=None if self.spec.vectorization == "envpool" else given)
        space = self.vector.single_observation_space
        agents = len(getattr(self.vector, "learners", ())) if self.interface.central else 0
        if self.interface.central and not agents:
            raise SpecError(
                f"{self.name}: model.critic=central reads what all agents of a game see, and it names none; use a parallel "
                "game, or a vector environment whose learners are the names of the agents of a game"
            )
        self.seen = Observations(self.name, space, sum(self.decisions.choices), "action_mask" in infos, agents)
        self.observation_NF = self.seen.rows(observation, self._mask(infos))
        self.start_N = np.ones(self.count, bool)
        self._resetting = np.zeros(self.count, bool)
        self._check_mask(self._resetting)

    def send(self, decision_ND: NDArray[Any]) -> None:
        """Decide for every environment, one row each; what came of it is to be received before anything else is sent."""
        action = self.decisions.actions(decision_ND)
        if self.spec.vectorization == "envpool":
            self.vector.send(action)
        elif isinstance(self.vector, AsyncVectorEnv):
            self.vector.step_async(action)
        else:
            self._sent = action

    def receive(self) -> Stepped:
        """What came of the decisions that were sent last."""
        if self.spec.vectorization == "envpool":
            came = self.vector.recv()
        elif isinstance(self.vector, AsyncVectorEnv):
            came = self.vector.step_wait()
        else:
            came = self.vector.step(self._sent)
        return self._stepped(*came)

    def _stepped(self, found: Any, reward_N: Any, terminated_N: Any, truncated_N: Any, infos: Any) -> Stepped:
        observation_NF = self.seen.rows(found, self._mask(infos))
        done_N = terminated_N | truncated_N
        ended_E = np.flatnonzero(done_N).astype(np.int32) if done_N.any() else None
        acted_N = last_EF = None
        if self.mode is AutoresetMode.NEXT_STEP:
            idle_N = infos.get("idle", np.zeros(self.count, bool))  # agents that are done while their game goes on
            acted_N = ~self._resetting
            self.start_N, self._resetting = self._resetting & ~idle_N, done_N | idle_N
        else:
            self.start_N = done_N
        if ended_E is not None and self.mode is AutoresetMode.SAME_STEP:
            last_EF = self.seen.rows(stacked([infos["final_obs"][index] for index in ended_E]))
        elif ended_E is not None:
            last_EF = observation_NF[ended_E]
            if self.mode is AutoresetMode.DISABLED:
                found, infos = self.vector.reset(options={"reset_mask": done_N})
                observation_NF = self.seen.rows(found, self._mask(infos))
        self.observation_NF = observation_NF
        self._check_mask(self._resetting)
        return Stepped(reward_N, terminated_N, truncated_N, acted_N, ended_E, last_EF)

    def _mask(self, infos: Mapping[str, Any]) -> Any:
        """The mask of an info, where there is to be one."""
        if not self.seen.masked or self.seen.inside:
            return None
        if "action_mask" not in infos:
            raise SpecError(f'{self.name}: the info of a reset has "action_mask", that of a step has not; give it with each')
        return infos["action_mask"]

    def _check_mask(self, over_N: BoolArray) -> None:
        """Refuse a mask that forbids every option of a part, where an episode goes on."""
        if not self.seen.masked:
            return
        shown_NF: Any = self.observation_NF
        mask_NW, first = shown_NF[~over_N, shown_NF.shape[1] - self.seen.options :], 0
        for options in self.decisions.choices:
            if not mask_NW[:, first : first + options].any(1).all():
                raise SpecError(f"{self.name}: a mask forbids every action, and the episode goes on; end it there")
            first += options

    def picture(self) -> Any:
        """The first environment, or of a game the first game, as bytes ``[H, W, 3]``; None where it draws none."""
        vector = self.vector.unwrapped
        if hasattr(vector, "picture"):
            return vector.picture(0)
        with blame(SpecError, f"{self.name}: drawing it for evaluation.film"):
            shown = vector.games[0].render() if isinstance(vector, Games) else vector.render()
        return shown if shown is None or isinstance(vector, Games) else shown[0]

    def close(self) -> None:
        """End what the environments hold, their processes among it."""
        self.vector.close()


class Environments:
    """N copies of an environment, in one block or in several.

    Those that step in threads of their own are a ring of two blocks, of which one steps while the policy decides for the next,
    so that neither waits for the other (SRL, Mei et al. 2023, arXiv 2306.16688). They are served in turn, so that what is seen
    and decided does not depend on how fast they are. Blocks in worker processes are served as they answer. Neither is for
    evaluation: only who is ``acting`` has several blocks.

    Raises:
        SpecError: the environment cannot be made, or is none that control knows.
    """

    def __init__(
        self,
        spec: EnvironmentsSpec,
        seed: int,
        base: Path | None = None,
        count: int = 0,
        interface: Interface = PLAIN,
        acting: bool = False,
    ) -> None:
        seeds = seeds_of(seed, count or spec.count)
        self.blocks: list[Any] = []
        self.served_by_workers = acting and spec.workers > 0
        self._parts = spec.workers if self.served_by_workers else _ring(spec) if acting else 1
        if self.served_by_workers:
            self._work(spec, seeds, base, interface)
        else:
            if self._parts > 1 and spec.vectorization == "envpool":  # a thread for each core, of all blocks together
                threads = max(1, len(os.sched_getaffinity(0)) // self._parts)
                spec = replace(spec, options={"num_threads": threads, **spec.options})
            self.blocks = [Block(spec, part, base, interface) for part in self._shared(seeds)]
        self.count = sum(block.count for block in self.blocks)
        first = self.blocks[0]
        self.name, self.seen, self.decisions = first.name, first.seen, first.decisions
        self.choices, self.continuous = self.decisions.choices, self.decisions.continuous

    def _work(self, spec: EnvironmentsSpec, seeds: list[int], base: Path | None, interface: Interface) -> None:
        """Start the worker processes, all at a time; one environment here says what they look like."""
        from penstock.control.workers import WorkerBlock

        one = Block(spec, seeds[:1], base, interface)
        one.close()
        try:
            for part in self._shared(seeds):
                self.blocks.append(WorkerBlock(spec, part, base, one))
            for block in self.blocks:
                block.begun()
        except BaseException:
            self.close()
            raise

    def _shared(self, seeds: list[int]) -> list[list[int]]:
        size = len(seeds) // self._parts
        return [seeds[size * index : size * (index + 1)] for index in range(self._parts)]

    @property
    def parts(self) -> list[tuple[slice, Any]]:
        """The blocks, and which of the N environments are theirs."""
        size = self.count // len(self.blocks)
        return [(slice(size * index, size * (index + 1)), block) for index, block in enumerate(self.blocks)]

    @property
    def observation_NF(self) -> NDArray[Any]:
        """What all of them show."""
        shown = [block.observation_NF for block in self.blocks]
        return shown[0] if len(shown) == 1 else np.concatenate(shown)

    @property
    def start_N(self) -> BoolArray:
        """Where an episode begins with what is shown."""
        return np.concatenate([block.start_N for block in self.blocks])

    @property
    def numbers(self) -> int:
        """Numbers of an observation, without those of a game's other agents and of a mask."""
        shown = int(self.observation_NF.shape[1]) - (self.seen.options if self.seen.masked else 0)
        return shown // (1 + self.seen.agents)

    def step(self, decision_ND: NDArray[Any]) -> Stepped:
        """Decide for every environment of the only block, one row each."""
        (block,) = self.blocks
        block.send(decision_ND)
        return block.receive()

    def picture(self) -> Any:
        """The first environment as bytes ``[H, W, 3]``; None where it draws none."""
        return self.blocks[0].picture()

    def reset(self, seed: int) -> None:
        """Begin everywhere anew. Environments have seeds of their own, which no other seed of a run shares but by chance."""
        for block, seeds in zip(self.blocks, self._shared(seeds_of(seed, self.count)), strict=True):
            block.reset(seeds[: block.layout.seeds] if self.served_by_workers else seeds)
        if self.served_by_workers:
            for block in self.blocks:
                block.begun()

    def ready(self, waiting: list[int]) -> list[int]:
        """The blocks, of these, to be served next: the first, or of worker processes all that have answered.

        Raises WorkerLost where none answers in time.
        """
        if not self.served_by_workers:
            return waiting[:1]
        from penstock.control.workers import answered

        return [waiting[at] for at in answered([self.blocks[index] for index in waiting])]

    def close(self) -> None:
        """End what the environments hold, their processes among it."""
        for block in self.blocks:
            block.close()


def _ring(spec: EnvironmentsSpec) -> int:
    """Blocks of a ring: two where environments step in threads or processes of their own."""
    return 2 if spec.vectorization in ("envpool", "async") and spec.count >= 4 and spec.count % 2 == 0 else 1


def seeds_of(seed: int, count: int) -> list[int]:
    """A seed for each environment."""
    return [int(word) & 0x7FFFFFFF for word in np.random.SeedSequence(seed).generate_state(count)]


def _made(spec: EnvironmentsSpec, count: int, base: Path | None, seeds: list[int], draws: bool) -> Any:
    function = resolve(spec.id, base) if is_reference(spec.id) and spec.vectorization != "envpool" else None
    if draws and (function is None or _takes(function, "render_mode")):
        spec = replace(spec, options={"render_mode": "rgb_array", **spec.options})
    if spec.vectorization == "envpool":
        from penstock.control.pool import pool

        return pool(spec.id, seeds, spec.options)
    if function is None:
        native = gymnasium.spec(spec.id).vector_entry_point is not None and spec.vectorization == "auto"
        mode = "vector_entry_point" if native else spec.vectorization.replace("auto", "sync")
        own: dict[str, Any] = {} if native else {"vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}}
        return gymnasium.make_vec(spec.id, count, vectorization_mode=mode, **own, **spec.options)
    if spec.vectorization == "parallel":
        return Games(partial(function, **spec.options), count, spec.agents, base, spec.id)
    if _takes(function, "num_envs", named=True):
        made = function(num_envs=count, **spec.options)
        if not isinstance(made, VectorEnv):
            raise SpecError(f"it returned {type(made).__name__}; a function of num_envs returns a gymnasium.vector.VectorEnv")
        return made
    copies: list[Callable[[], Any]] = [partial(function, **spec.options)] * count
    kind: Any = AsyncVectorEnv if spec.vectorization == "async" else SyncVectorEnv
    return kind(copies, autoreset_mode=AutoresetMode.SAME_STEP)


def _takes(function: Callable[..., Any], name: str, named: bool = False) -> bool:
    """Whether a function has an argument of this name, or (unless it is to be ``named``) takes any."""
    parameters = inspect.signature(function).parameters
    return name in parameters or (not named and any(one.kind is one.VAR_KEYWORD for one in parameters.values()))
