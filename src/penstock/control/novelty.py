"""Exploration by novelty: a reward for what a network has not learned yet (Burda et al. 2018, arXiv 1810.12894)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.algos.moments import merged_moments, running_returns
from penstock.config import optimizers
from penstock.control.fragments import Fragment
from penstock.control.stage import Curiosity
from penstock.core.contracts import State
from penstock.core.types import FloatArray, Metrics
from penstock.models.control import PIECE
from penstock.models.control_networks import Moments, Shape, head, trunk
from penstock.train.optimizer import AdamW


class Novelty:
    """A fixed random network, one that learns what it says of observations, and the error of the latter as a reward.

    Errors are divided by the running deviation of their discounted returns, observations by that of their own. The reward of a
    step is the error of the observation that it led to, that of an episode's end included.
    """

    def __init__(self, given: Curiosity, shape: Shape, discount: float, seed: int, device: Any) -> None:
        self.given, self.discount, self.observation, self.device = given, discount, shape.observation, device
        own = replace(shape, hidden=(given.width, given.width))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.target, self.learned = (_network(own, given.width).to(device) for _ in range(2))
        group = {"params": list(self.learned.parameters()), "weight_decay": 0.0}
        self.optimizer = AdamW([group], given.learning_rate, optimizers.AdamW(betas=(0.9, 0.999)))
        self.seen = None if shape.image else Moments(shape.observation).to(device)
        self.returns = Moments(1)
        self.carried: dict[str, FloatArray] = {}
        """The discounted return of each environment's novelty so far, by actor."""

    def rewarded(self, fragment: Fragment, actor: str = "") -> Fragment:
        """The fragment with novelty in its rewards; it follows on the one before of its ``actor``."""
        grid, ends = fragment.reward_TN.shape, fragment.ends
        error_TN = self._errors(fragment.observation_TNF.reshape(-1, fragment.observation_TNF.shape[-1])).reshape(grid)
        led_TN = np.concatenate((error_TN[1:], error_TN[-1:]))
        led_TN[ends.step_K, ends.environment_K] = self._errors(ends.observation_KF)
        carried_N = self.carried.get(actor, np.zeros(grid[1]))
        return_TN = running_returns(led_TN, fragment.start_TN, carried_N, self.discount)
        self.carried[actor] = return_TN[-1]
        self.returns.become(*merged_moments(*self.returns.values(), return_TN[fragment.acted_TN][:, None]))
        more_TN = self.given.coefficient * float(self.returns.scale) * led_TN
        return replace(fragment, reward_TN=(fragment.reward_TN + more_TN).astype(np.float32))

    def learn(self, fragment: Fragment) -> Metrics:
        """One pass over the observations that were acted on; gives the mean error before each of its optimizer steps."""
        shown_AF = fragment.observation_TNF[fragment.acted_TN][:, : self.observation]
        if self.seen is not None:
            self.seen.become(*merged_moments(*self.seen.values(), shown_AF))
        losses = []
        for piece_BF in torch.from_numpy(np.ascontiguousarray(shown_AF)).split(PIECE):
            loss = self._error(piece_BF.to(self.device)).mean()
            self.learned.zero_grad()
            loss.backward()
            self.optimizer.step(self.given.learning_rate)
            losses.append(float(loss.detach()))
        return {"novelty/error": float(np.mean(losses))}

    @torch.no_grad()
    def _errors(self, observation_KF: Any) -> FloatArray:
        pieces = torch.from_numpy(np.ascontiguousarray(observation_KF[:, : self.observation])).split(PIECE)
        found: FloatArray = torch.cat([self._error(piece.to(self.device)) for piece in pieces]).cpu().numpy()
        return found

    def _error(self, observation_BF: Tensor) -> Tensor:
        """The mean squared error for each observation: ``[B]``."""
        shown_BF = observation_BF if self.seen is None else self.seen(observation_BF)
        with torch.no_grad():
            wanted_BO = self.target(shown_BF)
        error_B: Tensor = (self.learned(shown_BF) - wanted_BO).square().mean(-1)
        return error_B

    def state(self) -> State:
        arrays = {f"{part}/{name}": tensor for part, one in self._parts() for name, tensor in one.state_dict().items()}
        for name, parameter in self.learned.named_parameters():
            arrays |= {f"adam/{name}/{key}": array for key, array in self.optimizer.arrays(parameter).items()}
        return State(arrays, {"carried": {actor: carried_N.tolist() for actor, carried_N in self.carried.items()}})

    def load_state(self, state: State) -> None:
        for part, one in self._parts():
            one.load_state_dict({name: torch.as_tensor(state.arrays[f"{part}/{name}"]) for name in one.state_dict()})
        for name, parameter in self.learned.named_parameters():
            kept, place = state.arrays, f"adam/{name}/"
            held = {key.removeprefix(place): torch.as_tensor(kept[key]) for key in kept if key.startswith(place)}
            self.optimizer.load_arrays(parameter, held)
        self.carried = {actor: np.asarray(carried) for actor, carried in state.values["carried"].items()}

    def _parts(self) -> list[tuple[str, nn.Module]]:
        found: list[tuple[str, nn.Module]] = [("target", self.target), ("learned", self.learned), ("returns", self.returns)]
        return found if self.seen is None else [*found, ("seen", self.seen)]


def _network(shape: Shape, width: int) -> nn.Sequential:
    layers, hidden = trunk(shape)
    return nn.Sequential(*layers, head(hidden, width, 1.0))
