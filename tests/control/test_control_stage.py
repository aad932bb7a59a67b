"""The spec of a control stage: refused in one line where it cannot be carried out; read back as it was written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.algos.entropy import EntropyBonus
from penstock.algos.grpo import GRPO
from penstock.algos.kl import KLPenalty
from penstock.algos.objectives import PolicyGradient
from penstock.algos.ppo import PPO
from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.run import Run
from penstock.config.spec import parse, plain
from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork, impala
from penstock.core.errors import SpecError

GRADIENT = PPO(discount=0.99, value_clip=0.0, clip=None, objective=PolicyGradient())


def a_stage(**fields: Any) -> Control:
    return Control(name="play", **({"environments": EnvironmentsSpec(id="CartPole-v1", count=8)} | fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_lag": -1}, "max_lag=-1 is negative"),
        ({"max_lag": 1, "algorithm": GRADIENT, "epochs": 1, "minibatches": 1}, "max_lag=1 needs a clipped loss or V-trace"),
        ({"max_lag": 1, "actors": 3}, r"actors=3, and \(max_lag \+ 1\) × batch = 2 fragments may be under way"),
        ({"algorithm": GRPO()}, "GRPO compares samples"),
        ({"algorithm": PPO(discount=1.0)}, "discount=1"),
        ({"algorithm": PPO(discount=0.9, estimator="n-step")}, "n-step"),
        ({"algorithm": PPO(discount=0.9, bootstrap=True)}, "algorithm.bootstrap"),
        ({"algorithm": PPO(discount=0.9, kl=KLPenalty(place="reward", coefficient=0.1))}, "algorithm.kl"),
        ({"algorithm": PPO(discount=0.9, entropy=EntropyBonus(target=1.0))}, "entropy.target"),
        ({"algorithm": PPO(discount=0.9, estimator="vtrace")}, "whiten=false"),
        ({"algorithm": PPO(discount=0.9, objective=PolicyGradient(), clip=None)}, "without a ratio"),
        ({"algorithm": impala(), "minibatches": 3}, "V-trace needs whole sequences"),
        ({"model": PolicyNetwork(memory=8), "minibatches": 3}, "a memory needs whole sequences"),
        ({"fragment": 1, "minibatches": 8}, "fewer than two steps"),
        ({"learner": LearnerSpec(critic="shared")}, "learner.critic"),
        ({"learner": LearnerSpec(lora=LoRA())}, "learner.lora"),
        ({"learner": LearnerSpec(dtype="bfloat16")}, "learner.dtype"),
    ],
)
def test_impossible_combinations_are_refused_in_one_line(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        a_stage(**fields)
    assert "\n" not in str(caught.value)


def test_networks_and_evaluations_that_cannot_be_are_refused() -> None:
    with pytest.raises(SpecError, match="needed twice"):
        PolicyNetwork(memory=8, critic="separate")
    with pytest.raises(SpecError, match="widths"):
        PolicyNetwork(hidden=(0,))
    with pytest.raises(SpecError, match="negative"):
        Episodes(every=-1)
    with pytest.raises(SpecError, match="name an environment"):
        EnvironmentsSpec(id="")


def test_a_run_with_a_control_stage_is_read_back_from_plain_values() -> None:
    run = Run(name="run", stages=(a_stage(algorithm=impala(discount=0.9), model=PolicyNetwork(memory=8)),))
    assert parse(Run, json.loads(json.dumps(plain(run)))) == run
