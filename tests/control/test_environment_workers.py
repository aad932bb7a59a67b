"""Environments in worker processes: the same fragments, lost workers, and errors in the worker's words."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from stage_examples import a_stage, an_actor, launched, reported

from penstock.control.actor import Actor
from penstock.control.environments import Environments
from penstock.control.episodes import EpisodeLog
from penstock.control.stage import EnvironmentsSpec
from penstock.core.errors import EnvError, SpecError

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


def made_of(id: str, workers: int, count: int = 6, base=None) -> Environments:
    return Environments(EnvironmentsSpec(id=id, vectorization="sync", count=count, workers=workers), 3, base, acting=True)


@pytest.fixture(scope="module")
def shared() -> Iterator[Callable[[str], Environments]]:
    """Six environments in three workers, by name; tests share them, and each begins anew."""
    kept: dict[str, Environments] = {}

    def anew(id: str) -> Environments:
        if id not in kept:
            kept[id] = made_of(id, workers=3)
        kept[id].reset(3)
        return kept[id]

    yield anew
    for made in kept.values():
        made.close()


@pytest.fixture
def actor(shared: Callable[[str], Environments]) -> Actor:
    return an_actor(shared("CartPole-v1"), 60)


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("memory", [0, 8])
def test_three_workers_give_the_fragments_of_one_process(id, memory, shared):
    alone, apart = (an_actor(made, 60, memory=memory) for made in (made_of(id, workers=0), shared(id)))
    for number in range(2):
        one, other = alone.collect(0, number), apart.collect(0, number)
        for name in ("observation_TNF", "decision_TND", "reward_TN", "start_TN", "acted_TN", "logp_TN", "value_TN"):
            assert np.allclose(getattr(one, name), getattr(other, name), atol=1e-4), name


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
    made = made_of("broken.py:Broken", workers=2, count=2, base=tmp_path)
    with pytest.raises(SpecError, match="ValueError: the wheel came off"):
        an_actor(made, 60).collect(0, 0)
    processes = [block.process for block in made.blocks]
    made.close()
    assert all(process.poll() is not None for process in processes)


def test_workers_end_with_their_owner():
    made = made_of("CartPole-v1", workers=2, count=2)
    processes = [block.process for block in made.blocks]
    made.close()
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
    stage = a_stage(environments=EnvironmentsSpec(id="CartPole-v1", count=8, workers=2), fragment=32, evaluation=None)
    assert sum(reported(launched(stage, tmp_path), "environment/episodes")) > 0
