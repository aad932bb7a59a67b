"""Control policies: distributions against torch's, memory against one step at a time, rows, folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.core.errors import ModelError, TrainingError
from penstock.models.control import ControlPolicy, Shape, StepsRow, load_policy, new_policy, save_policy
from penstock.models.decisions import Categorical, Gaussian

BOTH = frozenset({"logp", "entropy"})
ALL = BOTH | {"value"}


def a_row(steps: int, environments: int, memory: int = 0, seed: int = 0) -> StepsRow:
    rng, count = np.random.default_rng(seed), steps * environments
    start = rng.random(count) < 0.3
    columns = {
        "observation_T": rng.normal(size=(count, 3)).astype(np.float32),
        "decision_T": rng.integers(0, 2, (count, 1)),
        "start_T": start,
    }
    state = rng.normal(size=(environments, 2 * memory)).astype(np.float32) if memory else None
    action = rng.random(count) < 0.8
    fields = {"advantage": rng.normal(size=int(action.sum())).astype(np.float32), "constant": 2.0}
    return StepsRow(columns, action, fields, environments=environments, state_NS=state)


def test_discrete_decisions_are_measured_as_torch_does() -> None:
    numbers, decision = torch.randn(7, 5), torch.tensor([[0, 1], [1, 2], [0, 0], [1, 1], [0, 2], [1, 0], [0, 1]])
    found = Categorical((2, 3)).measured(numbers, decision, BOTH)
    first, second = (torch.distributions.Categorical(logits=part) for part in numbers.split([2, 3], -1))
    torch.testing.assert_close(found["logp"], first.log_prob(decision[:, 0]) + second.log_prob(decision[:, 1]))
    torch.testing.assert_close(found["entropy"], first.entropy() + second.entropy())


def test_continuous_decisions_are_measured_as_torch_does() -> None:
    head, numbers, decision = Gaussian(2), torch.randn(7, 2), torch.randn(7, 2)
    with torch.no_grad():
        head.log_deviation.copy_(torch.tensor([-0.5, 0.3]))
    found, normal = head.measured(numbers, decision, BOTH), torch.distributions.Normal(numbers, head.log_deviation.exp())
    torch.testing.assert_close(found["logp"], normal.log_prob(decision).sum(-1))
    torch.testing.assert_close(found["entropy"], normal.entropy().sum(-1))


def test_sampled_decisions_have_the_distributions_frequencies() -> None:
    head, numbers = Categorical((3,)), torch.tensor([0.5, 0.2, 0.3]).log().expand(20_000, 3)
    noise = head.noise(1, 20_000, torch.Generator().manual_seed(0))[0]
    shares = torch.bincount(head.sampled(numbers, noise)[:, 0]) / 20_000
    assert torch.allclose(shares, torch.tensor([0.5, 0.2, 0.3]), atol=0.02)
    assert head.sampled(numbers, None).unique().tolist() == [0]


def test_a_memory_computes_sequences_as_it_does_one_step_at_a_time() -> None:
    policy, row = new_policy(Shape(3, (2,), hidden=(8,), memory=4), 0, "cpu"), a_row(6, 5, memory=4)
    (batch,) = policy.lay_out([(row,)], 1)
    value = policy.outputs(batch, ALL)["value"]
    state, found = torch.from_numpy(row.state_NS), []
    for step in range(6):
        here = slice(5 * step, 5 * step + 5)
        state = state * torch.from_numpy(~row.columns["start_T"][here])[:, None]
        out, _, state = policy.step(torch.from_numpy(row.columns["observation_T"][here]), state, None)
        found.append(out[:, -1])
    torch.testing.assert_close(value, torch.cat(found)[torch.from_numpy(row.action_T)])


@pytest.mark.parametrize("memory", [0, 4])
def test_outputs_of_pieces_are_those_of_the_whole(memory: int) -> None:
    policy, row = new_policy(Shape(3, (2,), hidden=(8,), memory=memory), 0, "cpu"), a_row(6, 5, memory)
    grid, environments = np.arange(30, dtype=np.int32).reshape(6, 5), np.array([3, 1], np.int32)
    chosen = grid[:, environments].ravel()
    piece = row.taken(chosen, environments)
    whole, part = (policy.outputs(policy.lay_out([(item,)], 99)[0], ALL) for item in (row, piece))
    place = np.full(30, -1)
    place[row.action_T] = np.arange(int(row.action_T.sum()))
    kept = place[chosen[row.action_T[chosen]]]
    for name in ALL:
        torch.testing.assert_close(part[name], whole[name][kept])
    assert np.array_equal(piece.fields["advantage"], row.fields["advantage"][kept])
    assert piece.fields["constant"] == 2.0


def test_unknown_outputs_and_rows_are_refused() -> None:
    policy = new_policy(Shape(3, (2,)), 0, "cpu")
    (batch,) = policy.lay_out([(a_row(2, 2),)], 99)
    with pytest.raises(TrainingError, match="not score"):
        policy.outputs(batch, frozenset({"score"}))


@pytest.mark.parametrize("shape", [Shape(3, (2, 3), hidden=(8,), memory=4), Shape(3, continuous=2, critic="separate")])
def test_a_saved_policy_is_read_back_whole(shape: Shape, tmp_path: Path) -> None:
    policy = new_policy(shape, 1, "cpu")
    save_policy(policy, tmp_path / "model")
    save_policy(policy, tmp_path / "model")
    read: ControlPolicy = load_policy(tmp_path / "model")
    assert read.network.shape == shape
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(policy.weights(), read.weights(), strict=True))
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    with pytest.raises(ModelError, match="no control policy"):
        load_policy(tmp_path)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_policy(tmp_path / "missing")
