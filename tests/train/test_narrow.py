"""The end of the last block runs only for tokens whose hidden states are read, and what is read stays as it was."""

import numpy as np
import pytest
import torch

import tiny_models
from learner_examples import WeightedLoss, accumulate, assert_same_gradients, gradients, learner_of
from penstock.config.learner import LearnerSpec
from penstock.models.branches import reference_branch
from penstock.models.files import load_model, save_model
from penstock.models.language_policy import LanguagePolicy, SharedTrunkPolicy
from penstock.models.narrow import _ends
from penstock.models.outputs import read_tokens
from penstock.models.packing import lay_out
from penstock.train.learner import DeviceLearner, LearnerPlan, Scoring

each_architecture = pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
LOGP = frozenset({"logp"})


def units_with(prompt, answer, rows=3):
    rng = np.random.default_rng(0)
    ends = [(tiny_models.tokens(rng, prompt), tiny_models.tokens(rng, answer)) for _ in range(rows)]
    weights = rng.normal(size=(rows, answer)).astype(np.float32)
    return [(tiny_models.row(*end, weight=weight),) for end, weight in zip(ends, weights, strict=True)]


def tokens_through(model):
    """Counts the tokens that the matrices of the feed-forward part of the last block multiply."""
    counts = []
    (*_, part) = _ends(model, "policy", model.network.base_model)
    matrices = [inner for inner in part.modules() if isinstance(inner, torch.nn.Linear) or type(inner).__name__ == "Conv1D"]
    for inner in matrices:
        inner.register_forward_hook(lambda module, given, output: counts.append(given[0].shape[-2]))
    return counts


@each_architecture
def test_the_modules_after_attention_are_found(architecture, tiny):
    model = tiny(architecture)
    names = [type(part).__name__ for part in _ends(model, "policy", model.network.base_model)]
    assert len(names) >= 2, "the output projection and the feed-forward part"


@each_architecture
def test_only_what_is_read_is_computed(architecture, tiny):
    model = tiny(architecture)
    counts = tokens_through(model)
    Scoring(LanguagePolicy(model)).score(units_with(12, 4), LOGP)
    assert counts
    assert set(counts) == {3 * 4}


@each_architecture
def test_scores_and_gradients_stay_as_they_were(architecture, tiny):
    found, losses = [], []
    for narrow in (True, False):
        model = tiny(architecture)
        learner = learner_of(model)
        learner.policy.narrow = narrow
        losses.append(accumulate(learner, units_with(12, 4), WeightedLoss(frozenset({"logp", "entropy"}))))
        found.append(gradients(model.network))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert_same_gradients(*found)


def test_a_reward_model_computes_one_token_a_row(tiny, tmp_path):
    model = load_model(str(save_model(tiny(), tmp_path / "rm")), "score")
    counts = tokens_through(model)
    policy = LanguagePolicy(model)
    found = Scoring(policy).score(units_with(12, 4), frozenset({"score"}))["score"]
    assert set(counts) == {3}
    policy.narrow = False
    np.testing.assert_allclose(found, Scoring(policy).score(units_with(12, 4), frozenset({"score"}))["score"], atol=1e-6)


def test_a_critic_of_its_own_is_narrowed_too(tiny):
    found = []
    for narrow in (True, False):
        learner = learner_of(tiny(), critic="separate")
        learner.policy.model.ends.clear()  # a copy of a model that another test has looked through knows them
        torch.nn.init.normal_(learner.policy.model.value_head.linear.weight, generator=torch.Generator().manual_seed(0))
        learner.policy.narrow = narrow
        accumulate(learner, units_with(12, 4), WeightedLoss(frozenset({"logp", "value"})))
        found.append(gradients(learner.policy.model))
    assert learner.policy.model.ends.keys() == set()
    assert_same_gradients(*found)


def test_branches_over_a_shared_trunk_are_narrowed_too(tiny):
    """Policy, critic and reference have last blocks of their own; the reference is looked through while the trunk's output for
    other tokens is kept."""
    found = []
    for narrow in (True, False):
        learner = learner_of(tiny(), critic="branch", unfrozen_layers=1)
        model = learner.policy.model
        model.ends.clear()
        torch.nn.init.normal_(model.value_head.linear.weight, generator=torch.Generator().manual_seed(0))
        reference = SharedTrunkPolicy(model, reference_branch(model))
        reference.narrow = reference.owner.narrow = learner.policy.narrow = narrow
        scores = Scoring(reference).score(units_with(12, 4), frozenset({"logp", "value"}))
        accumulate(learner, units_with(12, 4), WeightedLoss(frozenset({"logp", "value"})))
        found.append((scores, gradients(model)))
        assert all(len(view.ends) == narrow * count for view, count in ((model, 2), (reference.model, 1)))
        assert all(all(names) for names in model.ends.values())
    for name, numbers in found[0][0].items():
        np.testing.assert_allclose(np.concatenate(numbers), np.concatenate(found[1][0][name]), atol=1e-5)
    assert_same_gradients(found[0][1], found[1][1])


@pytest.mark.parametrize(
    ("needs", "count"),
    [(("logp", "entropy"), 12), (("score",), 3), (("logp", "end_value"), 15)],
)
def test_places_that_are_read(needs, count):
    (batch,) = lay_out(units_with(12, 4), 4096, True)
    assert len(read_tokens(batch, frozenset(needs))) == count


def test_all_are_computed_where_most_are_read():
    (batch,) = lay_out(units_with(1, 9), 4096, True)
    assert read_tokens(batch, LOGP) is None


@pytest.mark.parametrize("spec", [{"dropout": 0.1}, {"token_dropout": 0.1}, {"gradient_checkpointing": True}], ids=str)
def test_what_needs_whole_blocks_gets_them(spec, tiny):
    learner = DeviceLearner(LanguagePolicy(tiny()), LearnerSpec(**spec), LearnerPlan(total_steps=1))
    assert not learner.policy.narrow
