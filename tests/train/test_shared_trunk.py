"""A learner with frozen layers: what it trains, keeps, scores and generates equals what separate models would."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from learner_examples import (
    LAYOUTS,
    WeightedLoss,
    accumulate,
    assert_draws_are_the_learners,
    assert_layout_changes_nothing,
    assert_ranks_add_up,
    assert_resumes_bit_by_bit,
    assert_same_gradients,
    gradients,
    learner_of,
    some_units,
    trained,
    weights_of,
)
from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.optimizers import AdamW
from penstock.core.errors import SpecError
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.loops.columns import filled
from penstock.models.branches import reference_branch
from penstock.models.language_model import ValueHead
from penstock.models.language_policy import LanguagePolicy, SharedTrunkPolicy
from penstock.models.packing import lay_out
from penstock.models.restrict import restrict
from penstock.train.learner import Scoring

BOTH = WeightedLoss(frozenset({"logp", "value"}))
LOGP, VALUE = frozenset({"logp"}), frozenset({"value"})
each_architecture = pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)


@each_architecture
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_frozen_weights_stay_bit_for_bit_and_have_no_optimizer_state(architecture, layers, tiny):
    model = tiny(architecture)
    before = weights_of(model.network)
    learner = trained(model, 3, unfrozen_layers=layers, optimizer=AdamW(weight_decay=0.1))
    frozen = {name for name, p in model.network.named_parameters() if not p.requires_grad}
    assert {name for name, tensor in weights_of(model.network).items() if torch.equal(tensor, before[name])} == frozen
    assert all(p.grad is None for p in model.network.parameters())
    held = {name.removeprefix("exp_avg.network.") for name in learner.state().arrays if name.startswith("exp_avg.")}
    assert held == set(before) - frozen


def test_with_all_layers_unfrozen_a_step_is_that_of_the_whole_model_but_for_the_embeddings(tiny):
    whole, model = tiny("llama"), tiny("llama")
    trained(whole, steps=1, clip_norm=0.0)
    trained(model, steps=1, clip_norm=0.0, unfrozen_layers=2)
    for name, tensor in weights_of(model.network).items():
        assert torch.equal(tensor, weights_of(whole.network)[name]) == ("embed_tokens" not in name), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@each_architecture
def test_the_shared_reference_scores_as_the_model_did_when_the_stage_began(architecture, dtype, tiny):
    model, spec = tiny(architecture), {"unfrozen_layers": 1, "dtype": dtype}
    restrict(model, LearnerSpec(**spec))
    start = copy.deepcopy(model)
    reference = Scoring(SharedTrunkPolicy(model, reference_branch(model)))
    trained(model, 3, **spec)
    units = some_units(7)
    for found, expected, moved in zip(
        *(
            each.score(units, LOGP)["logp"]
            for each in (reference, Scoring(LanguagePolicy(start)), Scoring(LanguagePolicy(model)))
        ),
        strict=True,
    ):
        assert np.array_equal(found, expected)
        assert not np.array_equal(found, moved)


@pytest.mark.parametrize("critic", ["shared", "branch"])
def test_reference_and_critic_in_one_pass_equal_two_passes(critic, tiny):
    model = tiny("qwen3")
    restrict(model, LearnerSpec(unfrozen_layers=1))
    reference = reference_branch(model)
    learner = trained(model, 3, BOTH, unfrozen_layers=1, critic=critic)
    units = some_units(7)
    runs, both = [], Scoring(SharedTrunkPolicy(model, reference))
    both.score(units, LOGP | VALUE)  # the first pass looks for what follows the last attention
    model.border.frozen[-1].register_forward_hook(lambda module, arguments, output: runs.append(module))
    together = both.score(units, LOGP | VALUE)
    alone, value = Scoring(LanguagePolicy(reference)).score(units, LOGP), learner.score(units, VALUE)
    assert all(map(np.array_equal, together["logp"], alone["logp"]))
    assert all(map(np.array_equal, together["value"], value["value"]))
    assert any(v.any() for v in value["value"])
    assert len(runs) == 3 * len(lay_out(units, 8192, True))  # once for both, and once for each alone


def test_the_labeller_asks_a_shared_reference_once(tiny):
    class Recorder:
        gives_values = True

        def __init__(self):
            self.asked = []

        def score(self, units, needs):
            self.asked.append(needs)
            rows = [np.ones(1, np.float32) for unit in units for _ in unit]
            return {"logp": rows, "value": [2 * row for row in rows]}

    recorder = Recorder()
    step_T = np.ones(1, np.int32)
    key = PromptKey("test", 0, 0)
    drawn = Sample(SampleKey(key, 0), {"tokens_T": step_T}, step_T > 0, np.zeros(1, np.float32), step_T, "stop")
    columns = filled(frozenset({"reference", "value"}), [Group(Prompt(key, "prompt"), (drawn,))], None, recorder)
    assert recorder.asked == [LOGP | VALUE]
    assert columns == {"reference": [[[1.0]]], "value": [[[2.0]]]}


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_a_critic_branch_gives_the_gradients_of_a_separate_trunk(layers, tiny):
    grads = []
    for critic in ("branch", "separate"):
        model = tiny("qwen2")
        restrict(model, LearnerSpec(unfrozen_layers=layers))
        learner = learner_of(model, critic=critic, unfrozen_layers=layers)
        torch.nn.init.ones_(model.value_head.linear.weight)
        accumulate(learner, some_units(), BOTH)
        grads.append(gradients(model))
    branch, separate = grads
    assert any(name.startswith("critic_trunk.layers.1") for name in branch) == (layers > 0)
    assert "critic_trunk.embed_tokens.weight" in separate.keys() - branch.keys()
    assert all(torch.equal(gradient, separate[name]) for name, gradient in branch.items())


def test_gradient_checkpointing_changes_no_gradient_with_frozen_layers_and_a_branch(tiny):
    models = tiny(), tiny()
    for each, on in zip(models, (True, False), strict=True):
        learner = learner_of(each, critic="branch", unfrozen_layers=1, gradient_checkpointing=on)
        torch.nn.init.ones_(each.value_head.linear.weight)
        accumulate(learner, some_units(), BOTH)
    assert_same_gradients(*map(gradients, models), within=1e-6)


@pytest.mark.parametrize("critic", ["none", "shared", "branch"])
def test_a_resumed_learner_goes_on_bit_for_bit_from_what_is_trained_alone(critic, tiny):
    loss = None if critic == "none" else BOTH
    state = assert_resumes_bit_by_bit(lambda: learner_of(tiny(), unfrozen_layers=1, critic=critic, learning_rate=1e-2), loss)
    assert not any("layers.0" in name or "embed_tokens" in name for name in state.arrays)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_generated_log_probs_are_the_learners_with_frozen_layers(architecture, tiny):
    """The recorded decode step reads the parameters that train, before and after steps; test_lora has all architectures."""
    assert_draws_are_the_learners(trained(tiny(architecture), 1, unfrozen_layers=1))


def test_a_critic_that_was_loaded_with_a_model_folder_is_taken_over(tiny):
    model = tiny()
    model.add_critic("shared")
    head = model.value_head
    learner_of(model, critic="shared")
    assert model.value_head is head
    learner_of(model, critic="branch", unfrozen_layers=1)
    assert isinstance(model.value_head, ValueHead)
    assert model.value_head is not head


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"unfrozen_layers": -2}, "use -1 to train all layers"),
        ({"critic": "branch"}, "set unfrozen_layers, or critic=separate"),
    ],
)
def test_what_cannot_be_is_refused_by_the_spec(fields, problem):
    with pytest.raises(SpecError, match=problem):
        LearnerSpec(**fields)


SAVERS = {
    "frozen": {"unfrozen_layers": 1, "critic": "branch"},
    "frozen, shared critic": {"unfrozen_layers": 1, "critic": "shared"},
    "none unfrozen": {"unfrozen_layers": 0, "critic": "branch"},
    "adapters": {"lora": LoRA(rank=2), "critic": "shared"},
}


def moved(model, saver):
    """A learner whose critic and adapters have left zero."""
    if saver == "adapters":
        pytest.importorskip("peft")
    learner = learner_of(model, **SAVERS[saver])
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.requires_grad and (".lora_" in name or "value_head" in name):
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    return learner


@pytest.mark.parametrize("saver", SAVERS)
@settings(max_examples=8)
@given(layout=LAYOUTS, seed=st.integers(0, 99))
def test_loss_and_gradient_do_not_depend_on_micro_batches_prefixes_or_order(saver, layout, seed, built):
    def make():
        return moved(copy.deepcopy(built["qwen2"]).double(), saver)  # so peaked that float32 would show its own rounding

    assert_layout_changes_nothing(make, some_units(seed, (2, 1, 3, 1)), BOTH, within=1e-6, **layout)


@pytest.mark.parametrize("saver", SAVERS)
def test_shares_of_two_ranks_add_up_to_the_gradient_of_all(saver, tiny):
    assert_ranks_add_up(lambda: moved(tiny(), saver), some_units(1, (2, 1, 3, 1)), BOTH)
