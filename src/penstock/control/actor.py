"""The actor: environments and policy in one process, with one call of the network and one of environments a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.control.environments import Environments, Stepped
from penstock.control.fragments import Ends, Fragment
from penstock.core.errors import EnvError
from penstock.core.seeds import seed_of
from penstock.core.types import BoolArray, FloatArray, Version
from penstock.models.control import ControlPolicy
from penstock.models.decisions import Greedy


class Buffers:
    """Arrays of a fragment being filled; each is made once a fragment and written in place.

    Where outputs are ``judged`` they end in a value.
    """

    def __init__(self, steps: int, environments: Environments, policy: ControlPolicy, judged: bool) -> None:
        grid = (steps, environments.count)
        width, decisions = policy.decisions.width, environments.decisions
        shown_NF = environments.observation_NF
        self.observation_TNF = np.empty((steps, *shown_NF.shape), shown_NF.dtype)
        self.output_TNW = np.empty((*grid, width + judged), np.float32)
        self.decision_TND = np.empty((*grid, decisions.size), decisions.dtype)
        self.reward_TN = np.empty(grid, np.float32)
        self.start_TN, self.acted_TN = np.empty(grid, bool), np.ones(grid, bool)
        self.running_N = np.ones(environments.count, bool)
        self.ends: list[tuple[Any, ...]] = []

    def note(self, step: int, at: slice, stepped: Stepped, state_NS: Any) -> None:
        """Keep what came of a step of a block: rewards, and how episodes ended, with their last observations."""
        self.reward_TN[step, at] = stepped.reward_N
        if stepped.acted_N is not None:
            self.acted_TN[step, at] = stepped.acted_N
        if stepped.ended_E is None:
            return
        ended_E, when = stepped.ended_E, np.full(len(stepped.ended_E), step, np.int32)
        how = stepped.terminated_N[ended_E], stepped.truncated_N[ended_E] & ~stepped.terminated_N[ended_E]
        states = state_NS[at].cpu().numpy()[ended_E]
        self.ends.append((when, ended_E + np.int32(at.start), *how, stepped.last_EF, states))
        if step == len(self.reward_TN) - 1:
            self.running_N[at][ended_E] = False

    def note_running(self, observation_NF: Any, state_NS: Any) -> None:
        """Keep where episodes go on after the last step."""
        running_E = np.flatnonzero(self.running_N).astype(np.int32)
        at, neither = np.full(len(running_E), len(self.reward_TN) - 1, np.int32), np.zeros(len(running_E), bool)
        self.ends.append((at, running_E, neither, neither, observation_NF[running_E], state_NS[running_E]))


class Turn(NamedTuple):
    """A block of environments that the policy decides for: its step within the fragment, and which rows are its."""

    step: int
    at: slice
    block: Any


def whole(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of several blocks under one another."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


class Actor:
    """Acts with the policy as it is and gives one fragment after another.

    What it draws follows from the seed and the fragment's number alone, so that no two fragments of a run draw the same.
    """

    def __init__(
        self,
        environments: Environments,
        policy: ControlPolicy,
        steps: int,
        seed: int,
        explored: Callable[[Version], float] = lambda version: 0.0,
    ) -> None:
        self.environments, self.policy, self.steps, self.seed, self.explored = environments, policy, steps, seed, explored
        self.state_NS = policy.first_state(environments.count)
        self.judged = policy.network.critic is None
        """Whether values come with the decisions; a critic apart judges a whole fragment at once."""
        self.restarts = 0
        """How often workers of the environments were lost."""

    def collect(self, version: Version, number: int | None = None) -> Fragment:
        """The next fragment, by weights of ``version``. ``number`` counts the run's fragments; None: it is the version.

        Where a worker process of the environments is lost, all begin new episodes, and the fragment is collected again.

        Raises:
            EnvError: workers were lost ATTEMPTS times in one fragment.
        """
        number = version if number is None else number
        if isinstance(self.policy.decisions, Greedy):
            self.policy.decisions.explore = self.explored(version)
        for attempt in range(ATTEMPTS):
            try:
                return self._collected(version, number)
            except EnvError:
                if attempt == ATTEMPTS - 1:
                    raise
                self.restarts += 1
                self.begin_anew(seed_of(self.seed, f"environments of {number} after {self.restarts} losses"))
        raise AssertionError

    def _collected(self, version: Version, number: int) -> Fragment:
        environments, policy = self.environments, self.policy
        buffers, first_NS = Buffers(self.steps, environments, policy, self.judged), self.state_NS.cpu().numpy()
        self.state_NS = self.state_NS.clone()  # it is written in place, block by block
        generator = torch.Generator().manual_seed(seed_of(self.seed, f"decisions {number}"))
        noise_TNW = policy.decisions.noise(self.steps, environments.count, generator).to(policy.device)
        parts, waiting = environments.parts, list(range(len(environments.parts)))
        step_B = [0] * len(parts)
        while waiting:
            served = environments.ready(waiting)
            for index in served:
                waiting.remove(index)
                if step_B[index]:
                    at, block = parts[index]
                    buffers.note(step_B[index] - 1, at, block.receive(), self.state_NS)
            if deciding := [index for index in served if step_B[index] < self.steps]:
                chosen = [Turn(step_B[index], *parts[index]) for index in deciding]
                for turn, decided_ND in zip(chosen, self._decided(buffers, chosen, noise_TNW), strict=True):
                    turn.block.send(decided_ND)
            for index in deciding:
                step_B[index] += 1
                waiting.append(index)
        buffers.note_running(environments.observation_NF, self.state_NS.cpu().numpy())
        return self._fragment(buffers, first_NS, version)

    @torch.inference_mode()  # the network alone: an environment may train one of its own
    def _decided(self, buffers: Buffers, turns: Sequence[Turn], noise_TNW: torch.Tensor) -> list[Any]:
        """The decisions of each of these blocks, in one call of the network, kept with what they follow from."""
        for step, at, block in turns:
            buffers.observation_TNF[step, at], buffers.start_TN[step, at] = block.observation_NF, block.start_N
        state_NS, device = whole([self.state_NS[at] for _, at, _ in turns]), self.policy.device
        if self.policy.remembers:
            goes_on = [torch.from_numpy(~buffers.start_TN[step, at]) for step, at, _ in turns]
            state_NS = state_NS * whole(goes_on).to(device)[:, None]
        shown_NF = whole([torch.from_numpy(buffers.observation_TNF[step, at]) for step, at, _ in turns]).to(device)
        noise_NW = whole([noise_TNW[step, at] for step, at, _ in turns])
        out_NW, decision_ND, state_NS = self.policy.step(shown_NF, state_NS, noise_NW, self.judged)
        out, decided, first, found = out_NW.cpu().numpy(), decision_ND.cpu().numpy(), 0, []
        for step, at, _ in turns:
            rows = slice(first, first := first + at.stop - at.start)
            self.state_NS[at] = state_NS[rows]
            buffers.output_TNW[step, at], buffers.decision_TND[step, at] = out[rows], decided[rows]
            found.append(decided[rows])
        return found

    @torch.inference_mode()
    def _fragment(self, buffers: Buffers, first_NS: Any, version: Version) -> Fragment:
        """What follows from the numbers of all steps at once: log-probs, and the values of what episodes ended with."""
        ends = Ends(*(np.concatenate(parts) for parts in zip(*buffers.ends, strict=True)))
        goes_on_K, following_K = ~ends.terminated_K, np.zeros(len(ends.step_K), np.float32)
        if goes_on_K.any():
            following_K[goes_on_K] = self._values(ends, goes_on_K)
        logp_TN = self._logp(buffers) if self.policy.decisions.has_logp else np.zeros_like(buffers.reward_TN)
        return Fragment(
            observation_TNF=buffers.observation_TNF,
            decision_TND=buffers.decision_TND,
            logp_TN=logp_TN,
            value_TN=np.ascontiguousarray(buffers.output_TNW[..., -1]) if self.judged else self._judgement(buffers),
            version_TN=np.full(logp_TN.shape, version, np.int32),
            reward_TN=buffers.reward_TN,
            start_TN=buffers.start_TN,
            acted_TN=buffers.acted_TN,
            state_NS=first_NS,
            ends=ends,
            following_K=following_K,
        )

    def _values(self, ends: Ends, mine_K: BoolArray) -> FloatArray:
        """The critic's values of some of the ends."""
        return self.policy.values(ends.observation_KF[mine_K], ends.state_KS[mine_K])

    def _judgement(self, buffers: Buffers) -> FloatArray:
        """The values of all steps, by a critic apart."""
        shown_TNF = buffers.observation_TNF
        value_A = self.policy.values(shown_TNF.reshape(-1, shown_TNF.shape[-1]), np.empty((0, 0), np.float32))
        return value_A.reshape(buffers.reward_TN.shape)

    def _logp(self, buffers: Buffers) -> FloatArray:
        """Log-probs of all decisions."""
        numbers_AW = torch.from_numpy(buffers.output_TNW).flatten(0, 1)[:, : self.policy.decisions.width].to(self.policy.device)
        decision_AD = torch.from_numpy(buffers.decision_TND).flatten(0, 1).to(self.policy.device)
        logp_A: Any = self.policy.decisions.measured(numbers_AW, decision_AD, LOGP)["logp"].cpu().numpy()
        return logp_A.reshape(buffers.reward_TN.shape)

    def begin_anew(self, seed: int) -> None:
        """Begin new episodes everywhere, as after a resume, which brings the learner back but no living environment."""
        self.environments.reset(seed)
        self.state_NS = self.policy.first_state(self.environments.count)


LOGP = frozenset({"logp"})
ATTEMPTS = 3
"""How often a fragment is begun before its lost workers are an error."""
