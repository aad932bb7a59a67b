"""The learner over encoder-decoders: gradients are those of plain transformers; test_learner_in_double has its layouts."""

import numpy as np
import pytest
import torch

import naive
import tiny_models
import tiny_t5
from learner_examples import (
    WeightedLoss,
    accumulate,
    assert_resumes_bit_by_bit,
    assert_same_gradients,
    gradients,
    learner_of,
    rows_of,
    some_units,
)
from penstock.algos.bradley_terry import BradleyTerry
from penstock.core.contracts import Denominator
from penstock.core.types import Row
from penstock.models.language_policy import dropped

LOGP, VALUE, SCORE = frozenset({"logp"}), frozenset({"logp", "value"}), frozenset({"score"})
each_architecture = pytest.mark.parametrize("architecture", tiny_t5.ARCHITECTURES)


@pytest.fixture
def t5(text):
    """A model of the test's own, which it may train."""
    return tiny_t5.build(text)


def plain_loss(network, rows, start, units, temperature=1.0):
    logps, entropies = tiny_t5.outputs_of(network, rows, start, temperature)
    terms = [
        (torch.from_numpy(row.fields["weight"]) * (logp + entropy)).sum()
        for row, logp, entropy in zip(rows, logps, entropies, strict=True)
    ]
    return sum(terms) / Denominator.of(units).tokens


@each_architecture
def test_loss_and_gradients_are_those_of_transformers(architecture, text):
    model, units = tiny_t5.build(text, architecture), some_units()
    learner = learner_of(model, temperature=0.7)
    loss = accumulate(learner, units, WeightedLoss(frozenset({"logp", "entropy"})))
    network = naive.plain(model)
    network.zero_grad()
    expected = plain_loss(network, rows_of(units), model.start, units, 0.7)
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    assert_same_gradients(gradients(model.network), gradients(network))


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_the_value_gradient_reaches_encoder_and_decoder(critic, t5):
    learner = learner_of(t5, critic=critic)
    torch.nn.init.normal_(t5.value_head.linear.weight, generator=torch.Generator().manual_seed(0))
    units = some_units()
    accumulate(learner, units, WeightedLoss(frozenset({"value"})))
    trunk = t5.network if critic == "shared" else t5.critic_trunk
    found = gradients(trunk)
    network = naive.plain(t5)
    network.zero_grad()
    total = 0.0
    for row in rows_of(units):
        value_A = t5.value_head(tiny_t5.decoder_hidden(network, row, t5.start)[:-1])
        total = total + (torch.from_numpy(row.fields["weight"]) * (value_A - 1).square()).sum() / Denominator.of(units).tokens
    total.backward()
    expected = {name: gradient for name, gradient in gradients(network).items() if name in found}
    assert any("encoder" in name for name in found)
    assert_same_gradients({name: found[name] for name in expected}, expected)


def test_checkpointed_layers_give_the_same_gradient(text):
    plain, saving, units = tiny_t5.build(text), tiny_t5.build(text), some_units()
    accumulate(learner_of(plain), units, WeightedLoss(LOGP))
    learner = learner_of(saving, gradient_checkpointing=True)
    assert any(getattr(block, "gradient_checkpointing", False) for block in saving.network.decoder.block)
    accumulate(learner, units, WeightedLoss(LOGP))
    assert_same_gradients(gradients(saving), gradients(plain))


def test_bfloat16_compute_stays_near(text):
    exact, rounded, units = tiny_t5.build(text), tiny_t5.build(text), some_units()
    expected = learner_of(exact).score(units, LOGP)["logp"]
    found = learner_of(rounded, dtype="bfloat16").score(units, LOGP)["logp"]
    gaps = np.concatenate([np.abs(ours - theirs) for ours, theirs in zip(found, expected, strict=True)])
    assert np.median(gaps) < 0.2


@pytest.mark.parametrize("kind", [{"tokens": 0.4, "branches": 0.0}, {"tokens": 0.0, "branches": 0.4}])
def test_dropout_reaches_encoder_and_decoder_and_leaves_no_trace(kind, t5):
    learner, units = learner_of(t5), some_units()
    before = learner.score(units, LOGP)["logp"]
    with dropped(t5, noise=torch.Generator().manual_seed(0), **kind):
        within = learner.score(units, LOGP)["logp"]
    after = learner.score(units, LOGP)["logp"]
    assert max(np.abs(one - other).max() for one, other in zip(before, within, strict=True)) > 1e-2
    assert all((one == other).all() for one, other in zip(before, after, strict=True))


def test_a_reward_model_learns_to_rank(text):
    """Preferred texts end in one token, others in another: the encoder reads both whole."""
    model, rng = tiny_t5.build(text, head="score"), np.random.default_rng(0)
    tiny_models.randomise(model.network, scale=0.5)
    learner = learner_of(model, learning_rate=3e-3)

    def pair():
        common = tiny_models.tokens(rng, 6)
        ends = ((30, 1.0), (40, 0.0))
        return tuple(
            Row({"tokens_T": np.append(common, end).astype(np.int32)}, np.zeros(7, bool), {"preferred": p}) for end, p in ends
        )

    for _ in range(30):
        accumulate(learner, [pair() for _ in range(8)], BradleyTerry().loss())
        learner.step()
    held_out = [pair() for _ in range(40)]
    assert BradleyTerry().assess(held_out, learner.score(held_out, SCORE))["pair/accuracy"] > 0.95


def test_a_resume_goes_on_bit_by_bit(text):
    assert_resumes_bit_by_bit(
        lambda: learner_of(tiny_t5.build(text), critic="separate", learning_rate=1e-3), WeightedLoss(VALUE)
    )
