"""Branches: a reference, a critic and reward models that share the policy's frozen blocks equal separate copies bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import tiny_models
from penstock.core.errors import ModelError
from penstock.models.attention import single_row_plan
from penstock.models.branches import critic_branch, reference_branch, share_frozen
from penstock.models.freezing import freeze_below
from penstock.models.language_model import LanguageModel

LAYERS = 3
EVERY = [(name, layers) for name in tiny_models.ARCHITECTURES for layers in range(LAYERS + 1)]
LENGTH = 11
PLACE = (torch.arange(3, 3 + LENGTH)[None] * 7 % 290, torch.arange(LENGTH)[None], single_row_plan(LENGTH))


def built(architecture, text, **changes):
    return tiny_models.build(
        architecture, text, **({"n_layer" if architecture == "gpt2" else "num_hidden_layers": LAYERS} | changes)
    )


def referred(text, architecture="qwen2"):
    """A model whose top block alone trains, its reference, and the border between."""
    model = built(architecture, text)
    border = freeze_below(model, 1)
    return model, reference_branch(model), border


def counted(block):
    """A list that grows whenever a block runs."""
    runs = []
    block.register_forward_hook(lambda module, arguments, output: runs.append(module))
    return runs


def hidden(model, trunk=None):
    return model.hidden(*PLACE, trunk)


def logits(model):
    return model.logits(hidden(model)[0])


def train(model, steps=2):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        logits(model).logsumexp(-1).mean().backward()
        optimizer.step()


@pytest.mark.parametrize(("architecture", "layers"), EVERY)
def test_the_reference_equals_a_separate_frozen_copy_before_and_after_training(architecture, layers, text):
    model = built(architecture, text)
    separate = copy.deepcopy(model)
    freeze_below(model, layers)
    reference = reference_branch(model)
    expected = logits(separate)
    assert torch.equal(logits(model), expected)
    assert torch.equal(logits(reference), expected)
    with model.once():
        assert torch.equal(logits(model), expected)
    train(model)
    with model.once():
        moved = logits(model)
        resumed = logits(reference)
    assert torch.equal(logits(reference), expected)
    assert torch.equal(resumed, expected)
    assert not torch.equal(moved, expected)
    assert not any(p.requires_grad for p in reference.parameters())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt_neox", "gpt2"])
def test_the_reference_holds_with_tied_and_untied_embeddings(architecture, tied, text):
    model = built(architecture, text, tie_word_embeddings=tied)
    expected = logits(copy.deepcopy(model))
    freeze_below(model, 1)
    reference = reference_branch(model)
    train(model)
    assert torch.equal(logits(reference), expected)
    own, kept = (each.network.get_output_embeddings().weight for each in (model, reference))
    assert (own is kept) == tied


@pytest.mark.parametrize(("architecture", "layers"), EVERY)
def test_only_what_trains_is_held_twice(architecture, layers, text):
    model = built(architecture, text)
    freeze_below(model, layers)
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert tiny_models.bytes_held([model, reference_branch(model)]) == tiny_models.bytes_held([model]) + trained


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_frozen_blocks_run_once_for_all_branches(architecture, text):
    model, reference, border = referred(text, architecture)
    critic, runs = critic_branch(model), [counted(block) for block in border.frozen]
    with model.once():
        for _ in range(2):
            hidden(reference)
            hidden(model, critic)
        hidden(model)
    assert {len(of_block) for of_block in runs} == {2}  # by the first branch, and by the policy, which cannot skip its own
    with model.once():
        hidden(model)
        hidden(reference)
        hidden(model, critic)
    assert {len(of_block) for of_block in runs} == {3}


def test_what_is_kept_at_the_border_is_forgotten_after_the_pass(text):
    model, reference, border = referred(text)
    with model.once():
        hidden(model)
        with model.once():
            assert border.value is not None
        assert border.value is not None, "a nested pass keeps what the outer one has"
    assert border.value is None
    shorter = (PLACE[0][:, :4], PLACE[1][:, :4], single_row_plan(4))
    assert reference.hidden(*shorter).shape[1] == 4


@pytest.mark.parametrize(("architecture", "layers"), EVERY)
def test_a_critic_branch_learns_like_a_separate_trunk_with_the_same_layers_frozen(architecture, layers, text):
    model = built(architecture, text)
    separate, policy = copy.deepcopy(model), logits(model)
    freeze_below(model, layers)
    freeze_below(separate, layers)
    model.add_critic("branch", critic_branch(model))
    trunks = model.critic_trunk, separate.network.base_model
    for trunk in trunks:
        optimizer = torch.optim.SGD([p for p in trunk.parameters() if p.requires_grad], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            with model.once():
                hidden(model)
                model.hidden(*PLACE, trunk).square().mean().backward()
            optimizer.step()
    assert torch.equal(*(model.hidden(*PLACE, trunk) for trunk in trunks))
    assert not torch.equal(model.hidden(*PLACE, trunks[0]), hidden(model))
    assert torch.equal(logits(model), policy)


def scorer_of(model, text):
    """A reward model whose trunk is the policy's, its top block moved."""
    config = copy.deepcopy(model.config)
    config.num_labels = 1
    made = LanguageModel(AutoModelForSequenceClassification.from_config(config), text, "score")
    made.network.base_model.load_state_dict(model.network.base_model.state_dict())
    tiny_models.randomise(list(made.network.base_model.children())[-1], seed=5)
    return made.requires_grad_(False)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_a_reward_model_shares_the_blocks_it_has_in_common(architecture, text):
    model = built(architecture, text)
    border = freeze_below(model, 1)
    scorer = scorer_of(model, text)
    expected = scorer.scores(hidden(scorer)[0])
    apart = tiny_models.bytes_held([model, scorer])
    saved = share_frozen(scorer, model)
    runs = counted(border.frozen[-1])
    with model.once():
        hidden(model)
        assert torch.equal(scorer.scores(hidden(scorer)[0]), expected)
    assert len(runs) == 1
    assert torch.equal(scorer.scores(hidden(scorer)[0]), expected)
    assert saved == apart - tiny_models.bytes_held([model, scorer]) > 0


def test_a_reward_model_takes_the_compute_type_of_the_blocks_it_shares(text):
    model = built("qwen2", text)
    scorer = scorer_of(model, text)
    freeze_below(model, 1)
    expected = copy.deepcopy(scorer)
    for parameter in (*model.network.parameters(), *expected.network.parameters()):
        parameter.data = parameter.data.to(torch.bfloat16)
    expected = expected.scores(hidden(expected)[0])
    assert share_frozen(scorer, model) > 0
    assert torch.equal(scorer.scores(hidden(scorer)[0]), expected)


def test_a_reward_model_with_other_weights_keeps_them(text):
    model = built("qwen2", text)
    freeze_below(model, 1)
    scorer = scorer_of(model, text)
    tiny_models.randomise(scorer.network, seed=9)
    expected = scorer.scores(hidden(scorer)[0])
    assert share_frozen(scorer, model) == 0
    with model.once():
        hidden(model)
        assert torch.equal(scorer.scores(hidden(scorer)[0]), expected)


def test_a_model_of_another_shape_keeps_its_weights(text):
    model, other = built("qwen2", text), built("gpt2", text)
    freeze_below(model, 1)
    assert share_frozen(other, model) == 0


def test_nothing_is_shared_where_nothing_is_frozen(text):
    with pytest.raises(ModelError, match=r"nothing to share; set learner.unfrozen_layers"):
        reference_branch(built("qwen2", text))


def test_an_architecture_that_overwrites_its_blocks_output_is_refused(text):
    model = built("qwen2", text)
    border = freeze_below(model, 1)
    top = model.network.base_model.layers[border.below]
    top.register_forward_pre_hook(lambda module, arguments: (arguments[0].add_(1.0), *arguments[1:]))
    with pytest.raises(ModelError, match=r"cannot be shared; set learner.unfrozen_layers=-1"):
        reference_branch(model)


def test_a_branch_is_given_whole_and_only_to_a_branch(text):
    with pytest.raises(ModelError, match="only there"):
        built("qwen2", text).add_critic("branch")


def test_a_copy_of_the_policy_has_branches_of_its_own(text):
    model = built("qwen2", text)
    freeze_below(model, 1)
    model.add_critic("branch", critic_branch(model))
    expected = hidden(model, model.critic_trunk)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    runs = counted(twin.border.frozen[-1])
    with twin.once():
        hidden(twin)
        assert torch.equal(hidden(twin, twin.critic_trunk), expected)
    assert len(runs) == 1


def test_a_copy_of_a_reference_still_shares_the_frozen_blocks(text):
    model, reference, _ = referred(text)
    again = copy.deepcopy(reference.network.base_model)
    assert torch.equal(model.hidden(*PLACE, again), hidden(reference))
    assert again.layers[0]._held[0] is model.network.base_model.layers[0]
