"""Control policies over networks of ``models/control_networks.py``: their rows and batches, saving and loading.

A micro-batch is one :class:`StepsRow`: steps of several environments, time-major. What a network gives for a step is one row of
numbers: those of the decision's distribution, then the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.core.contracts import Batch, Outputs, Policy
from penstock.core.errors import ModelError, TrainingError, first_line
from penstock.core.types import FloatArray, IntArray, Row, Unit
from penstock.models.control_networks import ControlNetwork, Shape
from penstock.models.folders import replaced_folder
from penstock.models.uploads import uploaded

PIECE = 2048
"""Observations that are judged at once: more would not stay in a processor's cache between layers."""
KIND = "penstock-control"
"""``model_type`` in the ``config.json`` of a saved policy."""


@dataclass(frozen=True)
class StepsRow(Row):
    """Steps of several environments, time-major: step t of environment n is at ``t * environments + n``.

    Columns: ``observation_T``, ``decision_T`` and ``start_T``, true where an episode begins, so that nothing is remembered from
    before.
    """

    environments: int = 1
    state_NS: FloatArray | None = None
    """What was remembered before the first step, for policies with a memory."""

    def taken(self, chosen: IntArray, environments: IntArray | None = None) -> StepsRow:
        """The row's ``chosen`` steps; of a policy with a memory, all steps of the ``environments``."""
        action = self.action_T.take(chosen)
        kept = chosen
        if not self.action_T.all():
            kept = (np.cumsum(self.action_T) - 1)[chosen[action]]
        fields = {name: value.take(kept) if isinstance(value, np.ndarray) else value for name, value in self.fields.items()}
        columns = {name: column.take(chosen, 0) for name, column in self.columns.items()}  # half the time of indexing
        width = len(chosen) if environments is None else len(environments)
        state_NS = None if self.state_NS is None or environments is None else self.state_NS[environments]
        return replace(self, columns=columns, action_T=action, fields=fields, environments=width, state_NS=state_NS)


@dataclass(frozen=True, kw_only=True)
class StepsBatch(Batch):
    """A laid out row: the tensors of its steps."""

    observation_TF: Tensor
    decision_AD: Tensor
    acted: Tensor | None
    """Positions of the actions among the steps; None: every step is one."""
    start_T: Tensor
    environments: int
    state_NS: Tensor | None


class ControlPolicy(Policy):
    """The ``Policy`` contract over a control network."""

    def __init__(self, network: ControlNetwork) -> None:
        self.network = network
        self.decisions = network.decisions
        self.remembers = network.cell is not None

    @property
    def module(self) -> ControlNetwork:
        return self.network

    @property
    def device(self) -> torch.device:
        return self.network.decide.weight.device

    def first_state(self, environments: int) -> Tensor:
        """Nothing remembered: ``[N, S]``; S is 0 without memory."""
        cell = self.network.cell
        return torch.zeros(environments, 0 if cell is None else cell.size, device=self.device)

    def step(
        self, observation_NF: Tensor, state_NS: Tensor, noise_NW: Tensor | None, judged: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One decision for every environment: what the network gave, the decisions ``[N, D]``, and what is remembered.

        ``noise_NW`` comes from ``decisions.noise``, with that of noisy layers after it; None takes the most likely decision.
        Without ``judged`` the network gives no value.
        """
        layers_NK = None
        if noise_NW is not None and self.network.noise:
            noise_NW, layers_NK = noise_NW.tensor_split((self.decisions.width,), -1)
        with self.network.shaken(layers_NK):
            out_NW, after = self.network(observation_NF, state_NS if self.remembers else None, judged)
        decision_ND = self.decisions.sampled(out_NW[:, : self.decisions.width], noise_NW)
        return out_NW, decision_ND, state_NS if after is None else after

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All that acting needs: what is trained, and the moments by which observations are normalised."""
        yield from self.network.state_dict().items()

    def slow(self) -> Sequence[tuple[str, Tensor]]:
        return list(self.network.named_buffers())

    def lay_out(self, units: Sequence[Unit], budget: int, coupled: bool = True) -> list[StepsBatch]:
        """A micro-batch of every row: who makes rows cuts them to the budget."""
        found = []
        for number, row in enumerate(row for unit in units for row in unit):
            if not isinstance(row, StepsRow):
                raise TrainingError(f"a control policy reads rows of environment steps, not {type(row).__name__}")
            found.append(self._laid_out(row, number))
        return found

    def _laid_out(self, row: StepsRow, number: int) -> StepsBatch:
        count, device = int(row.action_T.sum()), self.device
        acted = None if count == len(row.action_T) else np.flatnonzero(row.action_T)
        decision = row.columns["decision_T"] if acted is None else row.columns["decision_T"][acted]
        fields = {name: np.atleast_1d(np.asarray(value, np.float32)) for name, value in row.fields.items()}
        return StepsBatch(
            row_A=np.zeros(count, np.int32),
            unit_B=np.zeros(1, np.int32),
            fields=fields,
            row_ids=(number,),
            observation_TF=uploaded(row.columns["observation_T"], device),
            decision_AD=uploaded(decision, device),
            acted=None if acted is None else uploaded(acted, device),
            start_T=uploaded(row.columns["start_T"], device),
            environments=row.environments,
            state_NS=None if row.state_NS is None else uploaded(row.state_NS, device, torch.float32),
        )

    def outputs(self, batch: StepsBatch, needs: frozenset[str]) -> Outputs:
        """ "logp", "value" and "entropy" of every action. Raises TrainingError for any other name."""
        if unknown := needs - {"logp", "value", "entropy"}:
            raise TrainingError(f"a control policy gives logp, value and entropy, not {', '.join(sorted(unknown))}")
        out_AW = self._passed(batch)
        numbers_AW, value_A = out_AW[:, :-1], out_AW[:, -1]
        found = {"value": value_A} if "value" in needs else {}
        return found | self.decisions.measured(numbers_AW, batch.decision_AD, needs)

    def _passed(self, batch: StepsBatch) -> Tensor:
        if self.remembers:
            assert batch.state_NS is not None
            grid = (-1, batch.environments)
            observation_TNF = batch.observation_TF.unflatten(0, grid)
            out_TW = self.network.unrolled(observation_TNF, batch.start_T.unflatten(0, grid), batch.state_NS).flatten(0, 1)
        else:
            out_TW = self.network(batch.observation_TF)[0]
        return out_TW if batch.acted is None else out_TW[batch.acted]

    @torch.inference_mode()
    def values(self, observation_KF: FloatArray, state_KS: FloatArray) -> FloatArray:
        """The value of each observation, seen with what was remembered: ``[K]``. A critic apart remembers nothing."""
        if self.network.critic is not None:
            pieces = uploaded(observation_KF, self.device).split(PIECE)
            apart_K: FloatArray = torch.cat([self.network.judgement(piece_BF) for piece_BF in pieces]).cpu().numpy()
            return apart_K
        state = uploaded(state_KS, self.device, torch.float32) if self.remembers else None
        out_KW, _ = self.network(uploaded(observation_KF, self.device), state)
        value_K: FloatArray = out_KW[:, -1].cpu().numpy()
        return value_K


def new_policy(shape: Shape, seed: int, device: Any) -> ControlPolicy:
    """A policy with first weights that are a function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = ControlNetwork(shape)
    return ControlPolicy(network.to(device))


def save_policy(policy: ControlPolicy, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors``; the folder is replaced whole or not at all."""
    config = {"model_type": KIND} | asdict(policy.network.shape)
    with replaced_folder(folder) as made:
        save_file({name: tensor.contiguous() for name, tensor in policy.weights()}, made / "model.safetensors")
        (made / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_policy(folder: Path, device: Any = "cpu") -> ControlPolicy:
    """A policy that was saved.

    Raises:
        ModelError: the folder holds none, or its files do not fit each other.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config.pop("model_type", "") != KIND:
            raise ModelError(f"{folder}: this is no control policy; name the model folder of a run whose stage is Control")
        convolutions = tuple(tuple(layer) for layer in config.pop("convolutions"))
        own = {name: tuple(config[name]) for name in ("choices", "hidden", "image")}
        shape = Shape(**config | own | {"convolutions": convolutions})
        network = ControlNetwork(shape)
        network.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ModelError(f"{folder}: the control policy cannot be loaded: {first_line(error)}") from error
    return ControlPolicy(network.to(device))
