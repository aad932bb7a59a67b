"""Online stages with frozen layers, adapters and 8-bit moments: references share what is frozen, and a resume is exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stage_steps import assert_resumed_exactly, walk, weights
from tiny_recipes import LETTERS, MODEL, offline, online, run_of, sft

import tiny_models
from penstock.algos import PPO, BradleyTerry, KLPenalty
from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.optimizers import AdamW8bit
from penstock.config.run import ModelSpec, Online, RewardSpec
from penstock.core.types import Row
from penstock.models.files import load_model, save_model
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import AdapterOffPolicy, LanguagePolicy, SharedTrunkPolicy
from penstock.models.scratch import build_model
from penstock.runtime.build import Models
from penstock.runtime.stages import StageRuntime, prepare
from penstock.train.learner import LearnerPlan, Scoring
from penstock.train.ranks import learner_of

FROZEN = LearnerSpec(learning_rate=1e-2, unfrozen_layers=1, critic="branch")
SAVERS = {
    "frozen": FROZEN,
    "none unfrozen": replace(FROZEN, unfrozen_layers=0),
    "frozen, shared critic": replace(FROZEN, critic="shared"),
    "adapters": LearnerSpec(learning_rate=1e-2, lora=LoRA(rank=2), critic="shared"),
}
EIGHT_BITS = replace(FROZEN, optimizer=AdamW8bit())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """``@sft`` of two layers, and ``@reward``, whose top layer and head were trained on ``@sft``."""
    folder = tmp_path_factory.mktemp("models")
    start = build_model(replace(MODEL, layers=2), [LETTERS] * 9, seed=1)
    save_model(start, folder / "sft")
    made = Models(lambda name: folder / name, torch.device("cpu"), 0)
    learner = LearnerSpec(learning_rate=1e-2, unfrozen_layers=1)
    ready = ready_of(offline("reward", BradleyTerry(), model=ModelSpec(path="@sft"), steps=2, learner=learner), made)
    walk(ready)
    save_model(ready.model, folder / "reward")
    return made


def ppo(learner: LearnerSpec, **more: Any) -> Online:
    algorithm, reward = PPO(kl=KLPenalty(place="reward", coefficient=0.1)), RewardSpec(function="model:@reward")
    return online("ppo", algorithm, reward, learner=learner, samples=2, minibatches=2, steps=3, **more)


def ready_of(stage: Any, models: Models) -> StageRuntime:
    before = [sft(name) for name in ("sft", "reward") if name != stage.name]
    return prepare(stage, run_of(*before, stage), replica(models), Path())


def replica(models: Models) -> Models:
    return Models(models.stage_folder, models.device, models.seed)


def trained_bytes(model: LanguageModel) -> int:
    return sum(p.nbytes for p in model.parameters() if p.requires_grad)


def with_reference(stage: Online, models: Models) -> tuple[Models, LanguageModel, Any]:
    """What loads, a stage's model and the policy of its reference."""
    loading = replica(models)
    model = loading.load(stage.model, ())
    return loading, model, loading.reference(stage, model)


def needs(name: str) -> None:
    pytest.importorskip({"adapters": "peft", "8 bits": "torchao"}.get(name, "torch"))


@pytest.mark.parametrize("saver", SAVERS)
def test_the_policy_starts_at_no_distance_from_its_reference_and_leaves_it(saver: str, models: Models) -> None:
    needs(saver)
    ready = ready_of(ppo(SAVERS[saver]), models)
    before = weights(ready.model)
    metrics = walk(ready)
    first, last = (abs(metrics[index]["kl/reference"]) for index in (0, -1))
    assert first < 1e-5
    assert last > 1e-4
    after = weights(ready.model)
    trained = {name for name, p in ready.model.named_parameters() if p.requires_grad}
    assert {name for name in before if not torch.equal(before[name], after[name])} <= trained
    assert len(trained) < len(before)


@pytest.mark.parametrize("saver", ["frozen", "none unfrozen"])
def test_training_is_that_with_a_separate_reference(saver: str, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps with a reference loaded from a folder, none of it shared; it sums in another order."""
    shared = ready_of(ppo(SAVERS[saver]), models)
    before = weights(shared.model)
    metrics = walk(shared)
    monkeypatch.setattr("penstock.runtime.build.share_frozen", lambda other, model: 0)
    apart = ready_of(ppo(SAVERS[saver], reference=ModelSpec(path=models.path("@sft"))), models)
    for ours, theirs in zip(walk(apart), metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    for (name, ours), theirs in zip(weights(apart.model).items(), weights(shared.model).values(), strict=True):
        moved = float((theirs - before[name]).norm())
        assert float((ours - theirs).norm()) <= 1e-4 * moved + 1e-7, name


@pytest.mark.parametrize("saver", [*SAVERS, "8 bits"])
def test_a_resume_is_exact(saver: str, models: Models) -> None:
    needs(saver)
    stage = ppo((SAVERS | {"8 bits": EIGHT_BITS})[saver])
    assert_resumed_exactly(lambda: ready_of(stage, models), at=1)


def test_reference_critic_and_reward_model_share_the_frozen_part(models: Models) -> None:
    alone = tiny_models.bytes_held([load_model(models.path("@sft"))])
    loading, model, reference = with_reference(ppo(FROZEN), models)
    scorer = loading.scorer("@reward").policy.model
    assert isinstance(reference, SharedTrunkPolicy)
    score_head = scorer.network.score.weight.nbytes
    assert tiny_models.bytes_held([model, reference.model, scorer]) == alone + 2 * trained_bytes(model) + score_head


def test_a_reward_model_that_shares_scores_the_same(models: Models) -> None:
    expected = replica(models).scorer("@reward")
    loading, model, _ = with_reference(ppo(FROZEN), models)
    shared = loading.scorer("@reward")
    units = [(tiny_row(length),) for length in (3, 7)]
    found, wanted = (each.score(units, frozenset({"score"}))["score"] for each in (shared, expected))
    assert found == wanted
    assert tiny_models.bytes_held([model, shared.policy.model]) < tiny_models.bytes_held([model, expected.policy.model])


def tiny_row(length: int) -> Any:
    return Row({"tokens_T": np.arange(5, 5 + length, dtype=np.int32)}, np.zeros(length, bool))


def test_with_adapters_the_reference_holds_no_weight_of_its_own(models: Models) -> None:
    pytest.importorskip("peft")
    _, model, reference = with_reference(ppo(SAVERS["adapters"]), models)
    assert isinstance(reference, AdapterOffPolicy)
    assert reference.model is model


def test_a_named_reference_is_loaded_and_shares_what_is_equal(models: Models) -> None:
    _, model, reference = with_reference(ppo(FROZEN, reference=ModelSpec(path=models.path("@sft"))), models)
    assert not isinstance(reference, SharedTrunkPolicy)
    assert tiny_models.bytes_held([model, reference.model]) == tiny_models.bytes_held([model]) + trained_bytes(model)


@pytest.mark.parametrize("saver", [None, "frozen"])
@pytest.mark.parametrize("named", [False, True])
def test_the_reference_computes_as_the_learner_does(saver: str | None, named: bool, models: Models) -> None:
    """Before any update the KL to where the policy starts is exactly 0, in bfloat16 as well."""
    frozen = LearnerSpec(dtype="bfloat16", critic="shared", unfrozen_layers=1 if saver else -1)
    stage = ppo(frozen, reference=ModelSpec(path=models.path("@sft")) if named else None)
    _, model, reference = with_reference(stage, models)
    learner = learner_of(LanguagePolicy(model, stage.sampling.temperature), stage.learner, LearnerPlan(total_steps=1))
    row = tiny_row(9)
    units = [(replace(row, action_T=np.arange(9) > 2),)]
    ours, theirs = (each.score(units, frozenset({"logp"}))["logp"][0] for each in (learner, Scoring(reference)))
    assert ours.tolist() == theirs.tolist()


def test_a_frozen_reward_model_computes_in_the_learners_type(models: Models) -> None:
    loading = replica(models)
    loading.compute = "bfloat16"
    scorer = loading.scorer("@reward").policy.model
    assert {p.dtype for p in scorer.network.base_model.parameters()} == {torch.bfloat16}
    assert scorer.network.score.weight.dtype == torch.float32
