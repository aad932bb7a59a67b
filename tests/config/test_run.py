"""Impossible runs are refused before anything heavy starts, and the message is the fix."""

import pytest

from penstock.algos.grpo import GRPO
from penstock.algos.ppo import PPO
from penstock.algos.sft import SFT
from penstock.config.optimizers import AdamW
from penstock.config.run import (
    CheckpointSpec,
    DataSpec,
    EvaluationSpec,
    LearnerSpec,
    ModelSpec,
    Offline,
    Online,
    RewardSpec,
    Run,
)
from penstock.core.errors import SpecError
from penstock.core.types import Sampling

DATA = DataSpec(source="rows.jsonl")


def online(**changes):
    fields = {
        "name": "rl",
        "model": ModelSpec(),
        "data": DATA,
        "rewards": (RewardSpec(function="exact_match"),),
        "algorithm": GRPO(),
    }
    return Online(**(fields | changes))


def offline(**changes):
    return Offline(**({"name": "sft", "model": ModelSpec(), "data": DATA, "algorithm": SFT()} | changes))


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: online(algorithm=PPO()), "PPO needs a critic; set learner.critic=shared or separate"),
        (lambda: online(learner=LearnerSpec(critic="shared")), "GRPO has no use for a critic; set learner.critic=none"),
        (lambda: online(samples=1), "samples=1 is undefined for GRPO.*set samples=2 or more"),
        (lambda: online(max_lag=1, algorithm=GRPO(clip=None)), r"max_lag=1 needs a clipped loss; set clip=\(0.2, 0.28\) or"),
        (lambda: online(max_lag=-1), "max_lag=-1 is negative; 0 is synchronous"),
        (lambda: online(batch=16, minibatches=3), "batch=16 does not divide into minibatches=3"),
        (lambda: online(batch=0), "batch=0; at least 1"),
        (lambda: online(epochs=0), "epochs=0; at least 1"),
        (lambda: online(rewards=()), "needs at least one reward"),
        (lambda: online(algorithm=SFT()), "SFT learns from data; use an Offline stage"),
        (lambda: online(learner=LearnerSpec(dropout=0.1)), "set it to 0 in online stages"),
        (lambda: online(learner=LearnerSpec(token_dropout=0.1)), "set it to 0 in online stages"),
        (lambda: online(sampling=Sampling(temperature=0.0)), "use a positive temperature"),
        (lambda: offline(algorithm=GRPO()), "GRPO learns from generated samples; use an Online stage"),
        (lambda: offline(batch=0), "batch=0; at least one unit a step"),
        (lambda: offline(steps=0), "steps=0; at least one step"),
        (lambda: LearnerSpec(learning_rate=0.0), "give a positive rate"),
        (lambda: AdamW(epsilon=0.2), "the range of a clipped loss is algorithm.clip"),
        (lambda: LearnerSpec(clip_norm=-1.0), "use 0 to switch clipping off"),
        (lambda: LearnerSpec(dropout=1.0), r"outside \[0, 1\)"),
        (lambda: LearnerSpec(token_budget=8), "use at least 16"),
        (lambda: LearnerSpec(dropout=0.1, gradient_checkpointing=True), "gradient_checkpointing"),
        (lambda: ModelSpec(vocabulary=100), "bytes and marks alone need 259"),
        (lambda: ModelSpec(context=4), "use at least 8"),
        (lambda: DataSpec(source=""), "data.source is empty; name a file"),
        (lambda: DataSpec(source="a", size=-1), "cannot be negative"),
        (lambda: RewardSpec(function="math", deadline=0.0), "give a positive number of seconds"),
        (lambda: CheckpointSpec(keep=0), "at least one must stay"),
        (lambda: CheckpointSpec(every=-1), "0 saves at the end"),
        (lambda: Sampling(temperature=-1.0), "use 0 for greedy decoding"),
        (lambda: Sampling(stop=(".", "")), "stop has an empty text"),
        (lambda: Sampling(top_k=-1), "use 0 for no limit"),
        (lambda: Sampling(top_p=0.0), "use 1 for no limit"),
        (lambda: Sampling(min_p=1.0), "use 0 for no limit"),
        (lambda: Sampling(max_new_tokens=0), "at least one token"),
        (lambda: Run(name="r", stages=()), "at least one stage"),
        (lambda: Run(name="r", stages=(offline(), offline())), "stage names repeat: sft, sft"),
        (lambda: Run(name="r", stages=(online(model=ModelSpec(path="@sft")),)), '"@sft" names no earlier stage; earlier: none'),
        (
            lambda: Run(name="r", stages=(offline(), online(rewards=(RewardSpec(function="model:@rm"),)))),
            '"@rm" names no earlier stage; earlier: sft',
        ),
        (lambda: Run(name="r", stages=(online(model=ModelSpec(path="@sft")), offline())), '"@sft" names no earlier stage'),
    ],
)
def test_an_impossible_combination_names_its_fix(make, fix):
    with pytest.raises(SpecError, match=fix):
        make()


def test_an_earlier_stage_may_be_named():
    run = Run(name="r", stages=(offline(), online(model=ModelSpec(path="@sft"), reference=ModelSpec(path="@sft"))))
    assert run.stages[1].models() == ["@sft", "@sft"]


def test_references_include_the_models_behind_rewards_of_an_evaluation():
    held_out = EvaluationSpec(data=DATA, rewards=(RewardSpec(function="model:@rm"), RewardSpec(function="math")))
    assert online(evaluation=held_out).models() == ["", "@rm"]


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": PPO(), "learner": LearnerSpec(critic="separate"), "samples": 1},
        {"max_lag": 4, "algorithm": GRPO(clip=(0.2, 0.28))},
    ],
    ids=["PPO with a critic, of one sample", "a lag of a clipped loss"],
)
def test_what_goes_together_is_accepted(changes):
    made = online(**changes)
    assert {name: getattr(made, name) for name in changes} == changes


def test_a_spec_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        online().batch = 3


def test_own_samples_are_learned_from_at_the_field_s_rate_unless_another_is_given():
    assert online().learner.learning_rate == 1e-6
    assert offline().learner.learning_rate == 1e-5
