"""Environments in worker processes: the same fragments, lost workers, and errors in the worker's words."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from penstock.config.run import Run
from penstock.control.actor import Actor
from penstock.control.environments import Environments
from penstock.control.episodes import EpisodeLog
from penstock.control.stage import Control, EnvironmentsSpec, PolicyNetwork
from penstock.core.errors import EnvError, SpecError
from penstock.models.control import Shape, new_policy
from penstock.runtime import launch

BROKEN = """
import gymnasium, numpy as np

class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            raise ValueError("the wheel came off")
        return np.zeros(2, np.float32), 0.0, False, False, {}
"""


def actor_of(spec: EnvironmentsSpec, steps: int = 60, base=None, memory: int = 0) -> Actor:
    environments = Environments(spec, 3, base, acting=True)
    shape = Shape(environments.numbers, environments.choices, environments.continuous, hidden=(16,), memory=memory)
    return Actor(environments, new_policy(shape, 0, "cpu"), steps, 5)


@pytest.fixture
def actor():
    made = actor_of(EnvironmentsSpec(id="CartPole-v1", count=6, workers=3))
    yield made
    made.environments.close()


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("memory", [0, 8])
def test_three_workers_give_the_fragments_of_one_process(id, memory):
    specs = (EnvironmentsSpec(id=id, vectorization="sync", count=3, workers=workers) for workers in (0, 3))
    alone, shared = (actor_of(spec, memory=memory) for spec in specs)
    try:
        for number in range(2):
            one, other = alone.collect(0, number), shared.collect(0, number)
            for name in ("observation_TNF", "decision_TND", "reward_TN", "start_TN", "acted_TN", "logp_TN", "value_TN"):
                assert np.allclose(getattr(one, name), getattr(other, name), atol=1e-4), name
    finally:
        alone.environments.close()
        shared.environments.close()


def test_blocks_that_have_answered_are_decided_for_in_one_call(actor):
    sizes = []
    step = actor.policy.step
    actor.policy.step = lambda shown, *rest: sizes.append(len(shown)) or step(shown, *rest)
    actor.collect(0, 0)
    assert sizes[0] == 6  # all of them begin together
    assert sum(sizes) == 6 * 60


def test_a_killed_worker_is_replaced_and_its_fragment_collected_again(actor):
    log = EpisodeLog(6)
    log.ended(actor.collect(0, 0))
    lost = actor.environments.blocks[1].process.pid
    os.kill(lost, signal.SIGKILL)
    again = actor.collect(1, 1)
    log.ended(again)
    assert actor.restarts == 1
    assert again.start_TN[0].all()
    assert actor.environments.blocks[1].process.pid != lost
    # What was cut by the loss counts for nothing: an episode that has not ended began within the second fragment.
    assert (log.length_N <= again.acted_TN.sum(0)).all()


def test_workers_that_die_each_time_are_an_error_that_names_one(actor, monkeypatch):
    block = actor.environments.blocks[0]
    send = block.send
    monkeypatch.setattr(block, "send", lambda decision_ND: (block.process.kill(), block.process.wait(), send(decision_ND)))
    with pytest.raises(EnvError, match=r"CartPole-v1: the environment worker of process \d+ ended"):
        actor.collect(0, 0)


def test_an_error_of_the_environment_ends_the_run_in_its_words(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    actor = actor_of(EnvironmentsSpec(id="broken.py:Broken", count=2, workers=2), base=tmp_path)
    with pytest.raises(SpecError, match="ValueError: the wheel came off"):
        actor.collect(0, 0)
    processes = [block.process for block in actor.environments.blocks]
    actor.environments.close()
    assert all(process.poll() is not None for process in processes)


def test_workers_end_with_their_owner(actor):
    processes = [block.process for block in actor.environments.blocks]
    actor.environments.close()
    assert all(process.returncode == 0 for process in processes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vectorization": "envpool", "workers": 2}, "envpool has threads or processes of its own"),
        ({"count": 5, "workers": 2}, "count=5 does not divide among workers=2"),
        ({"workers": -1}, "0 or more"),
    ],
)
def test_workers_that_have_no_meaning_are_refused(fields, message):
    with pytest.raises(SpecError, match=message):
        EnvironmentsSpec(**({"id": "CartPole-v1", "count": 4} | fields))


def test_a_stage_learns_from_workers(tmp_path):
    environments = EnvironmentsSpec(id="CartPole-v1", count=8, workers=2)
    stage = Control(name="control", environments=environments, model=PolicyNetwork(hidden=(16,)), steps=3, evaluation=None)
    result = launch(Run(name="workers", device="cpu", threads=1, stages=(stage,)), tmp_path / "run")
    assert result.summary["stages"]["control"]["metrics"]["environment/episodes"] > 0
