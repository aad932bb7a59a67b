"""Q heads in the learner: targets follow after each step, a resume goes on exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_examples import assert_same_gradients, gradients, learner_of

import tiny_models
from penstock.algos import ILQL
from penstock.core.contracts import Denominator
from penstock.core.errors import CheckpointError, TrainingError
from penstock.models.packing import lay_out

ALGORITHM = ILQL(target_rate=0.5, target_every=2, imitation_beta=0.5)


def units(seed=0, size=6):
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(size):
        length = int(rng.integers(1, 9))
        fields = {"weight": np.ones(length, np.float32), "step_reward": rng.normal(size=length).astype(np.float32)}
        prompt = tiny_models.tokens(rng, int(rng.integers(1, 9)))
        made.append((tiny_models.row(prompt, tiny_models.tokens(rng, length), **fields),))
    return made


def ready(tiny, architecture="qwen2", **spec):
    model = tiny(architecture)
    model.add_heads(ALGORITHM.heads)
    return learner_of(model, learning_rate=1e-2, **spec)


def train(learner, steps, start=0):
    for step in range(start, start + steps):
        batch = units(step)
        for micro in lay_out(batch, 64, True):
            learner.accumulate(micro, ALGORITHM.loss(), Denominator.of(batch))
        learner.step()


def tensors(learner):
    return {name: tensor.clone() for name, tensor in learner.policy.model.state_dict().items()}


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_micro_batches_give_the_same_loss_and_gradient(architecture, tiny):
    found = []
    for budget in (4096, 24):
        learner, batch = ready(tiny, architecture), units()
        train(learner, 1)  # heads that start at zero would hide a wrong mask
        micros = lay_out(batch, budget, True)
        for micro in micros:
            learner.accumulate(micro, ALGORITHM.loss(), Denominator.of(batch))
        found.append((len(micros), learner.flush()["loss"], gradients(learner.policy.model)))
    assert found[0][0] < found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-5)
    assert_same_gradients(found[1][2], found[0][2])


def test_targets_move_after_every_second_step_by_half_the_way(tiny):
    learner = ready(tiny)
    heads = learner.policy.model.q_heads
    before = heads.target[0].outer.weight.clone()
    train(learner, 1)
    assert torch.equal(heads.target[0].outer.weight, before)
    train(learner, 1, start=1)
    moved = before.lerp(heads.online[0].outer.weight.detach(), 0.5)
    assert torch.equal(heads.target[0].outer.weight, moved)
    assert not torch.equal(moved, before)


def test_a_resume_goes_on_bit_for_bit(tiny):
    whole = ready(tiny)
    train(whole, 5)
    first, second = ready(tiny), ready(tiny)
    train(first, 3)
    state = first.state()
    second.load_state(type(state)({name: value.clone() for name, value in state.arrays.items()}, dict(state.values)))
    train(second, 2, start=3)
    expected = tensors(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(second).items())


def test_a_checkpoint_without_target_heads_is_refused(tiny):
    learner = ready(tiny)
    state = learner.state()
    state.arrays = {name: value for name, value in state.arrays.items() if not name.startswith("slow.")}
    with pytest.raises(CheckpointError, match="target"):
        learner.load_state(state)


def test_a_loss_that_needs_heads_is_refused_without_them(tiny):
    learner, batch = learner_of(tiny()), units()
    with pytest.raises(TrainingError, match="Q heads"):
        learner.accumulate(lay_out(batch, 4096, True)[0], ALGORITHM.loss(), Denominator.of(batch))


def test_training_lowers_the_error_on_one_batch(tiny):
    learner, batch = ready(tiny), units()
    seen = []
    for _ in range(15):
        (micro,) = lay_out(batch, 4096, True)
        learner.accumulate(micro, ALGORITHM.loss(), Denominator.of(batch))
        seen.append(learner.step()["q/loss"])
    assert seen[-1] < 0.5 * seen[0]
