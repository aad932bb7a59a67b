"""Q heads: what they start as, how targets follow, what generation is shifted by, and that a folder keeps them."""

import pytest
import torch

from penstock.models.files import load_model, save_model
from penstock.models.language_policy import LanguagePolicy
from penstock.models.q_heads import QHeads

WIDTH, VOCABULARY = 8, 11


@torch.no_grad()
def random_heads(seed=0):
    heads = QHeads(WIDTH, VOCABULARY)
    generator = torch.Generator().manual_seed(seed)
    for parameter in heads.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return heads


HIDDEN = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))
TOKENS = torch.tensor([0, 3, 10, 3, 7])


def test_new_heads_value_everything_at_zero_and_are_the_same_every_time():
    one, other = QHeads(WIDTH, VOCABULARY), QHeads(WIDTH, VOCABULARY)
    assert not one.all_actions(HIDDEN).any()
    assert not one.values(HIDDEN).any()
    assert not one.advantage(HIDDEN).any()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_two_heads_differ_inside_so_that_they_can_disagree():
    heads = QHeads(WIDTH, VOCABULARY)
    assert not torch.equal(heads.online[0].inner.weight, heads.online[1].inner.weight)


def test_the_value_of_a_chosen_token_is_that_among_all():
    heads = random_heads()
    for head in (*heads.online, heads.value):
        tokens = TOKENS if head is not heads.value else torch.zeros_like(TOKENS)
        torch.testing.assert_close(head.chosen(HIDDEN, tokens), head(HIDDEN).gather(1, tokens[:, None])[:, 0])


def test_target_values_are_those_of_the_target_heads_without_gradient():
    heads = random_heads()
    found = heads.target_of(HIDDEN.clone().requires_grad_(), TOKENS)
    assert not found.requires_grad
    for place, head in enumerate(heads.target):
        torch.testing.assert_close(found[:, place], head(HIDDEN)[range(5), TOKENS].detach())


def test_the_advantage_is_the_smaller_target_value_less_the_state_value():
    heads = random_heads()
    smaller = torch.minimum(heads.target[0](HIDDEN), heads.target[1](HIDDEN))
    torch.testing.assert_close(heads.advantage(HIDDEN), (smaller - heads.values(HIDDEN)[:, None]).detach())


def test_targets_follow_by_the_rate_when_their_turn_has_come_and_not_before():
    heads = random_heads()
    heads.rate, heads.every = 0.25, 3
    slow = [p.clone() for p in heads.target.parameters()]
    fast = [p.clone() for p in heads.online.parameters()]
    for update in (1, 2):
        heads.follow(update)
        assert all(torch.equal(p, old) for p, old in zip(heads.target.parameters(), slow, strict=True))
    heads.follow(3)
    for now, old, aim in zip(heads.target.parameters(), slow, fast, strict=True):
        torch.testing.assert_close(now.detach(), 0.75 * old + 0.25 * aim)
    assert all(torch.equal(p, old) for p, old in zip(heads.online.parameters(), fast, strict=True))


def test_a_rate_of_one_copies_and_a_rate_of_zero_leaves_alone():
    heads = random_heads()
    heads.follow(1)
    assert not torch.equal(heads.target[0].outer.weight, heads.online[0].outer.weight)
    heads.rate = 1.0
    heads.follow(1)
    assert torch.equal(heads.target[0].outer.weight, heads.online[0].outer.weight)


def test_targets_are_never_trained():
    heads = QHeads(WIDTH, VOCABULARY)
    assert not any(parameter.requires_grad for parameter in heads.target.parameters())
    assert all(parameter.requires_grad for parameter in heads.online.parameters())


def saved_again(model, folder):
    return load_model(str(save_model(model, folder / "model")))


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_a_folder_keeps_the_heads(architecture, tiny, tmp_path):
    model = tiny(architecture)
    with torch.no_grad():
        model.add_heads({"q": {}})
        for parameter in model.q_heads.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    loaded = saved_again(model, tmp_path)
    found, expected = loaded.q_heads.state_dict(), model.q_heads.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_folder_of_a_model_without_heads_has_none(tiny, tmp_path):
    assert saved_again(tiny(), tmp_path).q_heads is None


def test_heads_that_are_there_are_kept_when_a_stage_adds_them_again(tiny):
    model = tiny()
    model.add_heads({"q": {}})
    with torch.no_grad():
        model.q_heads.value.outer.bias.fill_(7.0)
    model.add_heads({"q": {"rate": 0.5, "every": 2}})
    assert model.q_heads.value.outer.bias.tolist() == [7.0]
    assert (model.q_heads.rate, model.q_heads.every) == (0.5, 2)


def test_targets_of_loaded_heads_stand_still_until_an_algorithm_asks_for_them(tiny, tmp_path):
    model = tiny()
    model.add_heads({"q": {"rate": 1.0, "every": 1}})
    with torch.no_grad():
        model.q_heads.online[0].outer.bias.fill_(7.0)
    loaded = saved_again(model, tmp_path)
    LanguagePolicy(loaded).stepped(1)
    assert not loaded.q_heads.target[0].outer.bias.any()
    loaded.add_heads({"q": {"rate": 1.0, "every": 1}})
    LanguagePolicy(loaded).stepped(1)
    assert (loaded.q_heads.target[0].outer.bias == 7.0).all()
