"""Memories of control policies: sequences at once are as step by step, and only what may be remembered is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tiers import CONTROL

pytest.importorskip("gymnasium")

import gymnasium
from gymnasium import spaces
from stage_examples import a_policy, a_stage, launched

from penstock.algos.ppo import PPO
from penstock.config.learner import LearnerSpec
from penstock.control.stage import EnvironmentsSpec, Episodes, PolicyNetwork, impala
from penstock.core.errors import SpecError
from penstock.models.control import ControlPolicy, load_policy, save_policy

HERE = Path(__file__).resolve()
MEMORIES: list[dict[str, Any]] = [{"memory": 6}, {"attention": 4}, {"attention": 3, "blocks": 2}]
IDS = ["lstm", "window", "two blocks"]


def policy(**memory: Any) -> ControlPolicy:
    return a_policy(3, (2,), hidden=(8,), **memory)


def by_step(own: ControlPolicy, shown_TNF: Tensor, start_TN: Tensor, state_NS: Tensor) -> tuple[Tensor, Tensor]:
    """As an actor goes: what is remembered is cleared where an episode starts."""
    found = []
    for shown_NF, start_N in zip(shown_TNF, start_TN, strict=True):
        out_NW, after = own.network(shown_NF, state_NS * ~start_N[:, None])
        assert after is not None
        state_NS = after
        found.append(out_NW)
    return torch.stack(found), state_NS


@pytest.mark.parametrize("memory", MEMORIES, ids=IDS)
@torch.no_grad()
def test_a_sequence_at_once_is_as_step_by_step(memory: dict[str, Any]) -> None:
    """Over episodes that start anywhere, twice in a row among it, and from what earlier steps left."""
    own, generator = policy(**memory), torch.Generator().manual_seed(0)
    shown_TNF = torch.randn(30, 5, 3, generator=generator)
    start_TN = torch.rand(30, 5, generator=generator) < 0.2
    start_TN[0, :2] = True
    whole, _ = by_step(own, shown_TNF, start_TN, own.first_state(5))
    _, state = by_step(own, shown_TNF[:11], start_TN[:11], own.first_state(5))
    torch.testing.assert_close(own.network.unrolled(shown_TNF, start_TN, own.first_state(5)), whole)
    torch.testing.assert_close(own.network.unrolled(shown_TNF[11:], start_TN[11:], state), whole[11:])


@pytest.mark.parametrize(("memory", "reach"), [({"attention": 4}, 4), ({"attention": 3, "blocks": 2}, 5)])
def test_a_window_reaches_so_many_steps_of_its_episode_and_no_other(memory: dict[str, Any], reach: int) -> None:
    """Two blocks of 3 steps reach 2 + 2 steps back. An episode starts at step 6."""
    own = policy(**memory)
    shown = torch.randn(10, 1, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
    start = torch.zeros(10, 1, dtype=torch.bool)
    start[6] = True
    out = own.network.unrolled(shown, start, own.first_state(1))
    for step, first in ((5, 6 - reach), (9, max(6, 10 - reach))):
        (gradient,) = torch.autograd.grad(out[step].sum(), shown, retain_graph=True)
        assert sorted(set(gradient.nonzero()[:, 0].tolist())) == list(range(first, step + 1))


def test_a_window_begins_as_if_there_were_hardly_any() -> None:
    """Each block adds a tenth of what it makes, so first decisions are nearly those of one step alone."""
    own = policy(attention=4)
    shown = torch.randn(6, 1, 3, generator=torch.Generator().manual_seed(1))
    every = torch.ones(6, 1, dtype=torch.bool)
    alone, within = (own.network.unrolled(shown, start, own.first_state(1)) for start in (every, every & False))
    assert (alone - within).abs().max() < 0.1 * alone.abs().max()
    assert not torch.equal(alone, within)


@pytest.mark.parametrize("memory", MEMORIES, ids=IDS)
def test_a_saved_one_remembers_alike(tmp_path: Path, memory: dict[str, Any]) -> None:
    own = policy(**memory)
    save_policy(own, tmp_path / "model")
    shown, start = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
    again = load_policy(tmp_path / "model")
    assert torch.equal(
        again.network.unrolled(shown, start, again.first_state(2)), own.network.unrolled(shown, start, own.first_state(2))
    )


class Recall(gymnasium.Env[Any, Any]):
    """Shows a sign, then nothing for three steps; the last decision is worth 1 if it is the sign."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.now, self.sign = 0, int(self.np_random.integers(2))
        return np.array([2.0 * self.sign - 1], np.float32), {}

    def step(self, action: Any) -> Any:
        self.now += 1
        over = self.now == 4
        return np.zeros(1, np.float32), float(over and action == self.sign), over, False, {}


def recall() -> Recall:
    return Recall()


@pytest.mark.learning(*CONTROL)
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(PPO(discount=0.9, value_clip=0.0), id="ppo"),
        pytest.param(impala(discount=0.9), id="impala"),
    ],
)
@pytest.mark.parametrize(
    ("memory", "learns"), [({}, False), ({"memory": 16}, True), ({"attention": 4}, True)], ids=["none", "lstm", "window"]
)
def test_what_was_seen_earlier_is_learned_from_with_a_memory_alone(
    tmp_path: Path, memory: dict[str, Any], learns: bool, algorithm: PPO
) -> None:
    """Without one half of the episodes are right by chance."""
    fields: dict[str, Any] = {"minibatches": 4, "epochs": 4, "steps": 25, "learner": LearnerSpec(learning_rate=1e-2)}
    if not algorithm.bounded:
        fields = {"minibatches": 1, "epochs": 1, "steps": 250}
    stage = a_stage(
        environments=EnvironmentsSpec(id=f"{HERE}:recall", count=32 if algorithm.bounded else 64),
        model=PolicyNetwork(hidden=(16,), **memory),
        algorithm=algorithm,
        fragment=16,
        evaluation=Episodes(episodes=128, longest=5),
        **fields,
    )
    score = launched(stage, tmp_path).metrics[-1]["values"]["evaluation/reward"]
    assert score > 0.95 if learns else 0.35 < score < 0.65


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"attention": 1}, "remembers nothing"),
        ({"attention": 4, "memory": 8}, "two ways"),
        ({"attention": 4, "hidden": (6,)}, "4 heads"),
        ({"attention": 4, "critic": "separate"}, "needed twice"),
    ],
)
def test_memories_that_cannot_be_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        PolicyNetwork(**wrong)
