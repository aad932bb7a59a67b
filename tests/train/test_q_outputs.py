"""Q heads in the learner: targets follow after each step, a resume goes on exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learner_examples import (
    accumulate,
    assert_layout_changes_nothing,
    assert_resumes_bit_by_bit,
    evenly,
    learner_of,
    some_units,
)
from penstock.algos import ILQL
from penstock.core.contracts import Denominator
from penstock.core.errors import CheckpointError, TrainingError
from penstock.models.packing import lay_out

ALGORITHM = ILQL(target_rate=0.5, target_every=2, imitation_beta=0.5)
LOSS = ALGORITHM.loss()


def fields(rng, length):
    return evenly(rng, length) | {"step_reward": rng.normal(size=length).astype(np.float32)}


def units(seed=0):
    return some_units(seed, (1,) * 6, fields)


def ready(tiny, architecture="qwen2", **spec):
    model = tiny(architecture)
    model.add_heads(ALGORITHM.heads)
    return learner_of(model, learning_rate=1e-2, **spec)


def train(learner, seeds, loss=LOSS):
    for seed in seeds:
        accumulate(learner, units(seed), loss, 64)
        learner.step()


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_micro_batches_give_the_same_loss_and_gradient(architecture, tiny):
    def make():
        learner = ready(tiny, architecture)
        train(learner, [0])  # heads that start at zero would hide a wrong mask
        return learner

    assert len(lay_out(units(), 24, True)) > 1
    assert_layout_changes_nothing(make, units(), LOSS, budget=24)


def test_targets_move_after_every_second_step_by_half_the_way(tiny):
    learner = ready(tiny)
    heads = learner.policy.model.q_heads
    before = heads.target[0].outer.weight.clone()
    train(learner, [0])
    assert torch.equal(heads.target[0].outer.weight, before)
    train(learner, [1])
    moved = before.lerp(heads.online[0].outer.weight.detach(), 0.5)
    assert torch.equal(heads.target[0].outer.weight, moved)
    assert not torch.equal(moved, before)


def test_a_resume_goes_on_bit_for_bit(tiny):
    assert_resumes_bit_by_bit(lambda: ready(tiny), LOSS, train)


def test_a_checkpoint_without_target_heads_is_refused(tiny):
    learner = ready(tiny)
    state = learner.state()
    state.arrays = {name: value for name, value in state.arrays.items() if not name.startswith("slow.")}
    with pytest.raises(CheckpointError, match="target"):
        learner.load_state(state)


def test_a_loss_that_needs_heads_is_refused_without_them(tiny):
    learner = learner_of(tiny())
    with pytest.raises(TrainingError, match="Q heads"):
        accumulate(learner, units(), LOSS)


def test_training_lowers_the_error_on_one_batch(tiny):
    learner, batch = ready(tiny), units()
    (micro,) = lay_out(batch, 4096, True)
    seen = []
    for _ in range(15):
        learner.accumulate(micro, LOSS, Denominator.of(batch))
        seen.append(learner.step()["q/loss"])
    assert seen[-1] < 0.5 * seen[0]
