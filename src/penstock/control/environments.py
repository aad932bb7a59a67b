"""Environments of gymnasium, stepped together: the home of the import. How an episode ended is known."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.control.stage import EnvironmentsSpec
from penstock.core.errors import SpecError, blame
from penstock.core.types import BoolArray, FloatArray, IntArray
from penstock.data.resolve import is_reference, resolve

try:
    import gymnasium
    from gymnasium.spaces import Box, Discrete, MultiDiscrete
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
except ImportError as error:
    raise SpecError("a Control stage needs the gymnasium package; run: pip install 'penstock[control]'") from error

FLATTEN = "wrap it in gymnasium.wrappers.FlattenObservation, in a function that makes it (environments.id=FILE.py:FUNCTION)"


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


class Environments:
    """N copies of an environment. ``observation_NF`` is what they show, ``start_N`` where an episode begins with it.

    gymnasium has three ways to go on after an episode, and each is followed: ``NEXT_STEP``, where the next step only resets
    and whatever was decided for it is void; ``SAME_STEP``, where the step that ends one gives the first observation of the
    next, and the last one aside; ``DISABLED``, where what ended is reset here.
    """

    def __init__(self, spec: EnvironmentsSpec, seed: int, base: Path | None = None, count: int = 0) -> None:
        self.name, self.count = spec.id, count or spec.count
        with blame(SpecError, f"environments.id={spec.id}"):
            self.vector = _made(spec, self.count, base)
        self.mode = self.vector.metadata.get("autoreset_mode")
        if not isinstance(self.mode, AutoresetMode):
            self.vector.close()
            raise SpecError(f'{spec.id}: its metadata lacks "autoreset_mode"; set one of gymnasium.vector.AutoresetMode there')
        self.one_hot = _one_hot(spec.id, self.vector.single_observation_space)
        self.choices, self.continuous = _decisions(spec.id, self.vector.single_action_space)
        self.reset(seed)

    @property
    def numbers(self) -> int:
        """Numbers of an observation."""
        return int(self.observation_NF.shape[1])

    def reset(self, seed: int) -> None:
        """Begin everywhere anew. Environments have seeds of their own, which no other seed of a run shares but by chance."""
        seeds = [int(word) & 0x7FFFFFFF for word in np.random.SeedSequence(seed).generate_state(self.count)]
        alone = isinstance(self.vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)  # others sample for all from one stream
        observation, infos = self.vector.reset(seed=seeds if alone else seeds[0])  # type: ignore[arg-type]
        if "action_mask" in infos:
            raise SpecError(f"{self.name}: it masks actions, which control does not know yet; use an environment without masks")
        self.observation_NF = self._seen(observation)
        self.start_N = np.ones(self.count, bool)
        self._resetting = np.zeros(self.count, bool)

    def step(self, decision_ND: NDArray[Any]) -> Stepped:
        """Decide for every environment, one row each."""
        found, reward_N, terminated_N, truncated_N, infos = self.vector.step(self._action(decision_ND))
        observation_NF = self._seen(found)
        done_N = terminated_N | truncated_N
        ended_E = np.flatnonzero(done_N).astype(np.int32) if done_N.any() else None
        acted_N = last_EF = None
        if self.mode is AutoresetMode.NEXT_STEP:
            acted_N = ~self._resetting
            self.start_N, self._resetting = self._resetting, done_N
        else:
            self.start_N = done_N
        if ended_E is not None and self.mode is AutoresetMode.SAME_STEP:
            last_EF = self._seen(np.stack([infos["final_obs"][index] for index in ended_E]))
        elif ended_E is not None:
            last_EF = observation_NF[ended_E]
            if self.mode is AutoresetMode.DISABLED:
                observation_NF = self._seen(self.vector.reset(options={"reset_mask": done_N})[0])
        self.observation_NF = observation_NF
        return Stepped(reward_N, terminated_N, truncated_N, acted_N, ended_E, last_EF)

    def _seen(self, observation: Any) -> FloatArray:
        if self.one_hot:
            return np.eye(self.one_hot, dtype=np.float32)[observation - self.vector.single_observation_space.start]  # type: ignore[attr-defined]
        return np.asarray(observation, np.float32)

    def _action(self, decision_ND: NDArray[Any]) -> NDArray[Any]:
        space = self.vector.single_action_space
        if isinstance(space, Discrete):
            return decision_ND[:, 0] + space.start if space.start else decision_ND[:, 0]
        if isinstance(space, MultiDiscrete):
            return decision_ND + space.start
        assert isinstance(space, Box)
        cut_NX: NDArray[Any] = np.clip(decision_ND.reshape(self.count, *space.shape), space.low, space.high)
        return cut_NX.astype(space.dtype)

    def close(self) -> None:
        """End what the environments hold, their processes among it."""
        self.vector.close()


def _made(spec: EnvironmentsSpec, count: int, base: Path | None) -> Any:
    if not is_reference(spec.id):
        native = gymnasium.spec(spec.id).vector_entry_point is not None and spec.vectorization == "auto"
        mode = "vector_entry_point" if native else spec.vectorization.replace("auto", "sync")
        own: dict[str, Any] = {} if native else {"vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}}
        return gymnasium.make_vec(spec.id, count, vectorization_mode=mode, **own, **spec.options)
    function = resolve(spec.id, base)
    if "num_envs" in inspect.signature(function).parameters:
        made = function(num_envs=count, **spec.options)
        if not isinstance(made, VectorEnv):
            raise SpecError(f"it returned {type(made).__name__}; a function of num_envs returns a gymnasium.vector.VectorEnv")
        return made
    copies: list[Callable[[], Any]] = [partial(function, **spec.options)] * count
    kind: Any = AsyncVectorEnv if spec.vectorization == "async" else SyncVectorEnv
    return kind(copies, autoreset_mode=AutoresetMode.SAME_STEP)


def _one_hot(name: str, space: Any) -> int:
    """The values of a discrete observation, which is shown as so many numbers; 0 for a vector. Raises SpecError for others."""
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, Box) and len(space.shape) == 1:
        return 0
    raise SpecError(f"{name}: observations of {space} need a policy that is not there yet; {FLATTEN}")


def _decisions(name: str, space: Any) -> tuple[tuple[int, ...], int]:
    """Options of each discrete part, and numbers of a continuous decision. Raises SpecError for mixed and other actions."""
    if isinstance(space, Discrete):
        return (int(space.n),), 0
    if isinstance(space, MultiDiscrete) and space.nvec.ndim == 1:
        return tuple(int(count) for count in space.nvec), 0
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        return (), int(np.prod(space.shape))
    raise SpecError(f"{name}: actions of {space} are not known to control; it has Discrete, MultiDiscrete and Box of floats")
