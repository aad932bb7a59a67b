"""The actor: environments and policy in one process, with one call of the network and one of the environments a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from penstock.control.environments import Environments, Stepped
from penstock.control.fragments import Ends, Fragment
from penstock.core.seeds import seed_of
from penstock.core.types import FloatArray, Version
from penstock.models.control import ControlPolicy


class Buffers:
    """Arrays of a fragment being filled; each is made once a fragment and written in place."""

    def __init__(self, steps: int, environments: Environments, policy: ControlPolicy) -> None:
        grid = (steps, environments.count)
        width, kind = policy.decisions.width, np.float32 if environments.continuous else np.int64
        shown_NF = environments.observation_NF
        self.observation_TNF = np.empty((steps, *shown_NF.shape), shown_NF.dtype)
        self.output_TNW = np.empty((*grid, width + 1), np.float32)
        self.decision_TND = np.empty((*grid, environments.continuous or len(environments.choices)), kind)
        self.reward_TN = np.empty(grid, np.float32)
        self.start_TN, self.acted_TN = np.empty(grid, bool), np.ones(grid, bool)
        self.ends: list[tuple[Any, ...]] = []

    def note_ends(self, step: int, stepped: Stepped, state_NS: Any) -> None:
        """Keep the episodes that are over after a step: how they ended, and their last observations."""
        ended_E = stepped.ended_E
        assert ended_E is not None
        at = np.full(len(ended_E), step, np.int32)
        how = stepped.terminated_N[ended_E], stepped.truncated_N[ended_E] & ~stepped.terminated_N[ended_E]
        self.ends.append((at, ended_E, *how, stepped.last_EF, state_NS[ended_E]))

    def note_running(self, done_N: Any, observation_NF: Any, state_NS: Any) -> None:
        """Keep where episodes go on after the last step."""
        running_E = np.flatnonzero(~done_N).astype(np.int32)
        at, neither = np.full(len(running_E), len(self.reward_TN) - 1, np.int32), np.zeros(len(running_E), bool)
        self.ends.append((at, running_E, neither, neither, observation_NF[running_E], state_NS[running_E]))


class Actor:
    """Acts with the policy as it is and gives one fragment after another.

    What it draws follows from the seed and the fragment's number alone, so that no two fragments of a run draw the same.
    """

    def __init__(self, environments: Environments, policy: ControlPolicy, steps: int, seed: int) -> None:
        self.environments, self.policy, self.steps, self.seed = environments, policy, steps, seed
        self.state_NS = policy.first_state(environments.count)

    @torch.inference_mode()
    def collect(self, version: Version, number: int | None = None) -> Fragment:
        """The next fragment, by weights of ``version``. ``number`` counts the run's fragments; None: it is the version."""
        environments, policy, device = self.environments, self.policy, self.policy.device
        buffers, first_NS = Buffers(self.steps, environments, policy), self.state_NS.cpu().numpy()
        generator = torch.Generator().manual_seed(seed_of(self.seed, f"decisions {version if number is None else number}"))
        noise_TNW = policy.decisions.noise(self.steps, environments.count, generator).to(device)
        observation_TNF = torch.from_numpy(buffers.observation_TNF)
        done_N: Any = None
        for step in range(self.steps):
            buffers.observation_TNF[step], buffers.start_TN[step] = environments.observation_NF, environments.start_N
            if policy.remembers:
                self.state_NS = self.state_NS * torch.from_numpy(~environments.start_N).to(device)[:, None]
            out_NW, decision_ND, self.state_NS = policy.step(observation_TNF[step].to(device), self.state_NS, noise_TNW[step])
            buffers.output_TNW[step], decided_ND = out_NW.cpu().numpy(), decision_ND.cpu().numpy()
            buffers.decision_TND[step] = decided_ND
            stepped = environments.step(decided_ND)
            buffers.reward_TN[step] = stepped.reward_N
            if stepped.acted_N is not None:
                buffers.acted_TN[step] = stepped.acted_N
            if stepped.ended_E is not None:
                buffers.note_ends(step, stepped, self.state_NS.cpu().numpy())
            done_N = stepped
        done_N = done_N.terminated_N | done_N.truncated_N
        last_NF = environments.observation_NF
        buffers.note_running(done_N, last_NF, self.state_NS.cpu().numpy())
        return self._fragment(buffers, first_NS, version)

    def _fragment(self, buffers: Buffers, first_NS: Any, version: Version) -> Fragment:
        """What follows from the numbers of all steps at once: log-probs, and the values of what episodes ended with."""
        ends = Ends(*(np.concatenate(parts) for parts in zip(*buffers.ends, strict=True)))
        goes_on_K, following_K = ~ends.terminated_K, np.zeros(len(ends.step_K), np.float32)
        if goes_on_K.any():
            following_K[goes_on_K] = self.policy.values(ends.observation_KF[goes_on_K], ends.state_KS[goes_on_K])
        logp_TN = self._logp(buffers) if self.policy.decisions.has_logp else np.zeros_like(buffers.reward_TN)
        return Fragment(
            observation_TNF=buffers.observation_TNF,
            decision_TND=buffers.decision_TND,
            logp_TN=logp_TN,
            value_TN=np.ascontiguousarray(buffers.output_TNW[..., -1]),
            version_TN=np.full(logp_TN.shape, version, np.int32),
            reward_TN=buffers.reward_TN,
            start_TN=buffers.start_TN,
            acted_TN=buffers.acted_TN,
            state_NS=first_NS,
            ends=ends,
            following_K=following_K,
        )

    def _logp(self, buffers: Buffers) -> FloatArray:
        """Log-probs of all decisions."""
        numbers_AW = torch.from_numpy(buffers.output_TNW).flatten(0, 1)[:, :-1].to(self.policy.device)
        decision_AD = torch.from_numpy(buffers.decision_TND).flatten(0, 1).to(self.policy.device)
        logp_A: Any = self.policy.decisions.measured(numbers_AW, decision_AD, LOGP)["logp"].cpu().numpy()
        return logp_A.reshape(buffers.reward_TN.shape)

    def begin_anew(self, seed: int) -> None:
        """Begin new episodes everywhere, as after a resume, which brings the learner back but no living environment."""
        self.environments.reset(seed)
        self.state_NS = self.policy.first_state(self.environments.count)


LOGP = frozenset({"logp"})
