"""What episodes gave: their returns and lengths, evaluation by whole episodes, and films of them for the pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.control.environments import Environments
from penstock.control.fragments import Fragment
from penstock.core.blobs import Film
from penstock.core.contracts import State
from penstock.core.errors import SpecError
from penstock.core.types import FloatArray, Group, IntArray, Metrics, Prompt, PromptKey, Sample, SampleKey
from penstock.data.blobs import BLOBS, Blobs
from penstock.data.pictures import from_film
from penstock.models.control import ControlPolicy

RECENT = 100
"""Episodes whose mean return says how well a policy does."""


class EpisodeLog:
    """Returns and lengths of episodes as they end, over fragments."""

    def __init__(self, environments: int) -> None:
        self.return_N, self.length_N = np.zeros(environments), np.zeros(environments, np.int64)
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.episodes = self.steps = 0

    def read(self, fragment: Fragment) -> Metrics:
        """Take a fragment; gives the metrics of the episodes that ended in it, where any did."""
        return self.note(self.ended(fragment), fragment.steps)

    def ended(self, fragment: Fragment) -> list[tuple[float, int]]:
        """Returns and lengths of the episodes that ended in a fragment, which follows on the one before, or begins anew. A
        reward that is not finite adds nothing here; nothing of its batch is trained on."""
        anew_N = fragment.start_TN[0]
        self.return_N[anew_N], self.length_N[anew_N] = 0, 0
        reward_TN = np.nan_to_num(fragment.reward_TN, posinf=0.0, neginf=0.0).cumsum(0, np.float64)
        acted_TN = fragment.acted_TN.cumsum(0)
        found, ends = [], fragment.ends
        over_K = ends.terminated_K | ends.truncated_K
        for step, index in zip(ends.step_K[over_K].tolist(), ends.environment_K[over_K].tolist(), strict=True):
            total, length = self.return_N[index] + reward_TN[step, index], self.length_N[index] + acted_TN[step, index]
            found.append((float(total), int(length)))
            self.return_N[index], self.length_N[index] = -reward_TN[step, index], -acted_TN[step, index]
        self.return_N += reward_TN[-1]
        self.length_N += acted_TN[-1]
        return found

    def note(self, ended: Sequence[tuple[float, int]], steps: int) -> Metrics:
        """Count steps and the returns and lengths of episodes that ended; gives their metrics."""
        returns = [total for total, _ in ended]
        self.recent.extend(returns)
        self.episodes, self.steps = self.episodes + len(returns), self.steps + steps
        found: Metrics = {"environment/steps": float(self.steps), "environment/episodes": float(self.episodes)}
        if returns:
            found |= {"reward/mean": float(np.mean(returns)), "episode/length": float(np.mean([length for _, length in ended]))}
        if self.recent:
            found["episode/return"] = float(np.mean(self.recent))
        return found

    def solved(self, level: float) -> bool:
        """Whether the mean return of the latest episodes is so high."""
        return len(self.recent) == RECENT and float(np.mean(self.recent)) >= level

    def state(self) -> State:
        return State({}, {"recent": list(self.recent), "episodes": self.episodes, "steps": self.steps})

    def load_state(self, state: State) -> None:
        self.recent = deque(state.values["recent"], maxlen=RECENT)
        self.episodes, self.steps = int(state.values["episodes"]), int(state.values["steps"])


def played(
    policy: ControlPolicy, environments: Environments, longest: int, shoot: Callable[[], None] = lambda: None
) -> tuple[FloatArray, IntArray]:
    """Returns and lengths of one episode in every environment, each decision the most likely; cut after ``longest`` steps.
    ``shoot`` is called before each step of the first."""
    import torch

    count = environments.count
    return_N, length_N, running_N = np.zeros(count, np.float32), np.zeros(count, np.int32), np.ones(count, bool)
    state_NS = policy.first_state(count)
    for _ in range(longest):
        if running_N[0]:
            shoot()
        observation_NF = torch.from_numpy(environments.observation_NF).to(policy.device)
        with torch.inference_mode():
            _, decision_ND, state_NS = policy.step(observation_NF, state_NS, None)
        stepped = environments.step(decision_ND.cpu().numpy())
        return_N += np.where(running_N, stepped.reward_N, 0)
        length_N += running_N
        running_N &= ~(stepped.terminated_N | stepped.truncated_N)
        if not running_N.any():
            break
    return return_N, length_N


RATE = 10.0
"""Frames a second."""


class Camera:
    """Takes a picture of the first environment (of a game: the first game) at each step, up to so many."""

    def __init__(self, environments: Environments, frames: int) -> None:
        self.environments, self.frames = environments, frames
        self.taken: list[Any] = []

    def shoot(self) -> None:
        """Take a picture, where one more is wanted. Raises SpecError for an environment that gives none."""
        if len(self.taken) >= self.frames:
            return
        picture = self.environments.picture()
        if picture is None:
            raise SpecError(
                f"{self.environments.name}: it draws no picture for evaluation.film; give it gymnasium's render_mode "
                '"rgb_array", or set evaluation.film=0'
            )
        self.taken.append(np.ascontiguousarray(picture, np.uint8))

    def groups(self, run: Path | None, said: str, rewards: Sequence[float]) -> tuple[Group, ...]:
        """The film as the only sample of a group, its file among the blobs of the folder of a ``run``; nothing where no picture
        was taken or there is no such folder. No action of it is trained on, and none is judged."""
        if run is None or not self.taken:
            return ()
        blob = Blobs(run / BLOBS).add(*from_film(Film(np.stack(self.taken), RATE), "evaluation.film"))
        key, none = PromptKey("evaluation", 0, 0), np.zeros(1, bool)
        sample = Sample(
            key=SampleKey(key, 0),
            columns={},
            action_T=none,
            logp_T=np.zeros(1, np.float32),
            version_T=np.full(1, -1, np.int32),
            finish="stop",
            text=said,
            reward_T=np.array(rewards, np.float32) if rewards else None,
            blobs=(blob,),
        )
        return (Group(Prompt(key, self.environments.name), (sample,)),)
