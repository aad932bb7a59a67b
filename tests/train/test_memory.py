"""The arithmetic of memory against models that stand: bytes of weights, masters, gradients and moments."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny_models
from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.optimizers import AdamW8bit
from penstock.config.run import ModelSpec
from penstock.models.arithmetic import to_compute_type
from penstock.models.branches import reference_branch, share_frozen
from penstock.models.language_policy import LanguagePolicy
from penstock.models.presets import PRESETS, Shape
from penstock.models.restrict import restrict
from penstock.models.scratch import build_model
from penstock.plan.memory import adapter_parameters, footprint, trained_parameters
from penstock.train.learner import DeviceLearner, LearnerPlan

HAND = Shape(width=8, hidden=10, layers=3, heads=2, key_value_heads=1, vocabulary=20, tied=False)
"""A block: attention 8·4·(4+2) = 192, feed-forward 3·8·10 = 240, norms 16: 448. Norm 8, embeddings and head 160 each."""


@pytest.mark.parametrize(
    ("spec", "trained"),
    [
        (LearnerSpec(), 3 * 448 + 8 + 320),
        (LearnerSpec(unfrozen_layers=0), 8 + 160),
        (LearnerSpec(unfrozen_layers=2), 2 * 448 + 8 + 160),
        (LearnerSpec(lora=LoRA(rank=2)), 3 * 2 * ((8 + 8) + 2 * (8 + 4) + (8 + 8) + 3 * (8 + 10))),
        (LearnerSpec(lora=LoRA(rank=2, targets=("q_proj", "down_proj"))), 3 * 2 * (16 + 18)),
    ],
)
def test_trained_parameters_by_hand(spec, trained):
    assert trained_parameters(HAND, spec) == trained


def test_a_tied_head_does_not_train_with_frozen_embeddings():
    assert trained_parameters(replace(HAND, tied=True), LearnerSpec(unfrozen_layers=1)) == 448 + 8


def test_four_models_by_hand():
    """Policy 1,672 and a critic without head 1,512 + 9 train; a reference as the policy, a reward model 1,512 + 8."""
    found = footprint(HAND, LearnerSpec(critic="separate"), reference=True, reward_models=1)
    trained = 1672 + 1512 + 9
    assert found.weights == 4 * (trained + 1672 + 1512 + 8)
    assert (found.masters, found.gradients, found.moments) == (0, 4 * trained, 8 * trained)
    assert found.total == found.weights + 12 * trained


SHAPE = replace(PRESETS["1m"], vocabulary=300)
WAYS = {
    "apart": LearnerSpec(critic="separate"),
    "alone": LearnerSpec(),
    "shared head": LearnerSpec(critic="shared"),
    "bfloat16": LearnerSpec(critic="separate", dtype="bfloat16"),
    "trunk": LearnerSpec(critic="branch", unfrozen_layers=2),
    "trunk, none unfrozen": LearnerSpec(critic="branch", unfrozen_layers=0),
    "trunk, bfloat16": LearnerSpec(critic="branch", unfrozen_layers=1, dtype="bfloat16"),
    "adapters": LearnerSpec(critic="shared", lora=LoRA(rank=4)),
    "adapters, bfloat16": LearnerSpec(lora=LoRA(rank=4), dtype="bfloat16"),
    "trunk, 8 bits": LearnerSpec(critic="branch", unfrozen_layers=2, optimizer=AdamW8bit()),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_formula_gives_the_bytes_of_models_that_stand(way, text):
    spec = WAYS[way]
    if spec.lora is not None:
        pytest.importorskip("peft")
    if isinstance(spec.optimizer, AdamW8bit):
        pytest.importorskip("torchao")
    policy, scorer = (build_model(ModelSpec(preset="1m"), (), 0, head, text) for head in ("lm", "score"))
    scorer.network.base_model.load_state_dict(policy.network.base_model.state_dict())
    restrict(policy, spec)
    to_compute_type(scorer, spec.dtype)
    models = [policy, scorer]
    if spec.unfrozen_layers >= 0:
        share_frozen(scorer, policy)
        models.append(reference_branch(policy))
    elif spec.lora is None:
        models.append(build_model(ModelSpec(preset="1m"), (), 0, "lm", text))
        to_compute_type(models[-1], spec.dtype)
    masters = DeviceLearner(LanguagePolicy(policy), spec, LearnerPlan(total_steps=1)).masters
    for master in masters.masters:
        master.grad = torch.ones_like(master)
    masters.step(1e-3)
    arrays = masters.state().arrays
    found = footprint(SHAPE, spec, reference=True, reward_models=1)
    own = sum(m.nbytes for m, p in zip(masters.masters, masters.parameters.values(), strict=True) if m is not p)
    moments = sum(t.nbytes for name, t in arrays.items() if name.startswith("exp_avg"))
    assert found.weights == pytest.approx(tiny_models.bytes_held(models), rel=0.002)  # biases are left out of the formula
    assert found.masters == pytest.approx(own, rel=0.005)
    assert found.gradients == pytest.approx(sum(m.nbytes for m in masters.masters), rel=0.005)
    assert found.moments == pytest.approx(moments, rel=0.02)


def test_two_unfrozen_layers_on_a_shared_trunk_save_60_percent_of_four_models():
    for shape in (replace(PRESETS["10m"], vocabulary=1024), Shape(4096, 11008, 32, 32, 32, vocabulary=32000, tied=False)):
        apart, shared = (
            footprint(shape, spec, reference=True, reward_models=1).total
            for spec in (LearnerSpec(critic="separate"), LearnerSpec(critic="branch", unfrozen_layers=2))
        )
        assert shared < 0.4 * apart


def test_4_bits_shrink_the_frozen_matrices_alone():
    whole, four = (footprint(HAND, LearnerSpec(lora=LoRA(rank=2, quantize=kind))) for kind in ("none", "nf4"))
    assert whole.weights - four.weights == pytest.approx(3 * (192 + 240) * (4 - 0.5 - 4 / 64))


def test_adapters_grow_with_their_rank():
    assert adapter_parameters(HAND, 8) == 4 * adapter_parameters(HAND, 2)
