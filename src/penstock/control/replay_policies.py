"""Policies that learn from replay: values of options with a slow target network, and a soft actor with two critics."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.algos.off_policy import DQN, SAC
from penstock.algos.q_learning import q_target, quantile_target, soft_target
from penstock.core.contracts import Outputs
from penstock.core.types import FloatArray
from penstock.models.control import ControlPolicy, StepsBatch
from penstock.models.control_networks import ControlNetwork, head, trunk
from penstock.models.uploads import uploaded


class Followed(ControlPolicy):
    """A policy with a module that a slow copy follows."""

    target: Any
    noise: int
    """Normal numbers that a transition is given for its target, and again for its loss."""

    def follow(self, module: nn.Module, rate: float, every: int) -> None:
        """Keep a slow copy of a module of the policy."""
        self.target = copy.deepcopy(module).requires_grad_(False)
        self.rate, self.every = rate, every
        self._slow: list[Tensor] = list(self.target.parameters())
        self._fast: list[Tensor] = list(module.parameters())

    @torch.no_grad()
    def stepped(self, updates: int) -> None:
        if updates % self.every == 0:
            torch._foreach_lerp_(self._slow, self._fast, self.rate)

    def slow(self) -> Sequence[tuple[str, Tensor]]:
        return [*super().slow(), *((f"target.{name}", tensor) for name, tensor in self.target.named_parameters())]

    def tensors(self, taken: Mapping[str, Any]) -> dict[str, Tensor]:
        """Transitions on the device."""
        return {name: uploaded(column, self.device) for name, column in taken.items()}


class ValuesOfOptions(Followed):
    """Decides for the option of the largest value, or at random (``decisions.explore``)."""

    def __init__(self, network: ControlNetwork, algorithm: DQN) -> None:
        super().__init__(network)
        self.algorithm, self.noise = algorithm, network.noise
        self.follow(network, algorithm.target_rate, algorithm.target_every)

    def outputs(self, batch: StepsBatch, needs: frozenset[str]) -> Outputs:
        with self.network.shaken(uploaded(batch.fields["noise"], self.device)):
            return {"q": self._taken(batch.observation_TF, batch.decision_AD)}

    def _taken(self, observation_AF: Tensor, decision_AD: Tensor) -> Tensor:
        """The value of each option that was taken, ``[A]``, or its quantiles, ``[A, K]``."""
        if not self.algorithm.quantiles:
            return self.network(observation_AF)[0][:, :-1].gather(-1, decision_AD)[:, 0]
        found_AWK = self.network.quantiles(observation_AF)
        return found_AWK.gather(1, decision_AD[..., None].expand(-1, -1, found_AWK.shape[-1]))[:, 0]

    @torch.no_grad()
    def targets(self, taken: Mapping[str, Any], noise_2AK: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What the value of each transition's action should be, and by how much it is wrong. The target network's layers have
        the first noise, those of the trained one the second, as in the loss."""
        found, (slow_AK, own_AK) = self.tensors(taken), uploaded(noise_2AK, self.device)
        self.target.normal = self.network.normal  # moments are not slow
        with self.target.shaken(slow_AK), self.network.shaken(own_AK):
            return self._targets(found)

    def _targets(self, found: Mapping[str, Tensor]) -> tuple[FloatArray, FloatArray]:
        chooses = self.network if self.algorithm.double else self.target
        next_AW = chooses(found["next"])[0][:, :-1]
        given = found["return"], found["discount"], next_AW
        if self.algorithm.quantiles:
            target = quantile_target(*given, self.target.quantiles(found["next"]))
        else:
            slow_AW = self.target(found["next"])[0][:, :-1] if self.algorithm.double else next_AW
            target = q_target(*given, slow_AW, double=self.algorithm.double)
        if not self.algorithm.priority:
            return target.cpu().numpy(), np.zeros(len(target), np.float32)
        gap = self._taken(found["observation"], found["decision"]) - target
        return target.cpu().numpy(), gap.reshape(len(gap), -1).mean(-1).cpu().numpy()


class Critics(nn.Module):
    """Two networks of the value of an observation and a decision: ``[A, 2]``."""

    def __init__(self, network: ControlNetwork) -> None:
        super().__init__()
        shape = replace(network.shape, observation=network.shape.observation + network.shape.continuous)
        made = [trunk(shape) for _ in range(2)]
        self.each = nn.ModuleList(nn.Sequential(layers, head(width, 1, 1.0)) for layers, width in made)

    def forward(self, observation_AF: Tensor, decision_AD: Tensor) -> Tensor:
        both = torch.cat((observation_AF, decision_AD), -1)
        return torch.cat([critic(both) for critic in self.each], -1)


class SoftActor(Followed):
    """A stochastic policy of decisions between -1 and 1, with two critics and a temperature that are not saved with it."""

    def __init__(self, network: ControlNetwork, algorithm: SAC, seed: int) -> None:
        super().__init__(network)
        device = next(network.parameters()).device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            critics = Critics(network).to(device)
        self.trained = nn.ModuleDict({"actor": network, "critics": critics})
        start = torch.full((), algorithm.temperature, device=device).log()
        self.log_temperature = nn.Parameter(start)
        self.trained.register_parameter("log_temperature", self.log_temperature)
        self.critics, self.algorithm, self.noise = critics, algorithm, network.shape.continuous
        self.follow(critics, algorithm.target_rate, algorithm.target_every)

    @property
    def module(self) -> Any:
        return self.trained

    def _acted(self, observation_AF: Tensor, noise_AD: Tensor) -> tuple[Tensor, Tensor]:
        """New decisions in a state, and their log-probs, with gradient."""
        decisions: Any = self.decisions
        acted: tuple[Tensor, Tensor] = decisions.squashed(self.network(observation_AF)[0][:, :-1], noise_AD)
        return acted

    def outputs(self, batch: StepsBatch, needs: frozenset[str]) -> Outputs:
        normal: Any = self.network.normal
        shown_AF = batch.observation_TF if normal is None else normal(batch.observation_TF)
        noise_AD = uploaded(batch.fields["noise"], self.device)
        decision_AD, logp_A = self._acted(batch.observation_TF, noise_AD)
        fixed = {name: tensor.detach() for name, tensor in self.critics.named_parameters()}
        return {
            "q": self.critics(shown_AF, batch.decision_AD),
            "policy/q": torch.func.functional_call(self.critics, fixed, (shown_AF, decision_AD)),
            "policy/logp": logp_A,
            "policy/numbers": decision_AD.shape[-1],
            "log_temperature": self.log_temperature,
        }

    @torch.no_grad()
    def targets(self, taken: Mapping[str, Any], noise_2AD: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What the critics should say of each transition, and by how much they are wrong together."""
        normal: Any = self.network.normal
        found = self.tensors(taken)
        shown = {name: found[name] if normal is None else normal(found[name]) for name in ("observation", "next")}
        decision_AD, logp_A = self._acted(found["next"], uploaded(noise_2AD[0], self.device))
        temperature = self.log_temperature.exp()
        target_A = soft_target(found["return"], found["discount"], self.target(shown["next"], decision_AD), logp_A, temperature)
        if not self.algorithm.priority:
            return target_A.cpu().numpy(), target_A.cpu().numpy()
        error_AQ = self.critics(shown["observation"], found["decision"]) - target_A[:, None]
        return target_A.cpu().numpy(), error_AQ.abs().mean(-1).cpu().numpy()
