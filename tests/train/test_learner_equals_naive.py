"""The learner's packed, prefix-sharing forward and backward give what plain transformers gives on padded rows."""

import numpy as np
import pytest
import torch

import naive
import tiny_models
from learner_examples import WeightedLoss, accumulate, assert_same_gradients, gradients, learner_of, rows_of, some_units
from penstock.algos import DPO, GRPO, SFT, BradleyTerry, LeaveOneOut, OnlineDPO
from penstock.core.contracts import Denominator
from penstock.core.types import Row
from penstock.loops.learn import Trainer
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import Scoring

each_architecture = pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)


def assert_scores_are_the_naive_ones(model, units, temperature=1.0, **policy):
    found = Scoring(LanguagePolicy(model, temperature, **policy)).score(units, frozenset({"logp", "entropy"}))
    with torch.no_grad():
        logps, entropies = naive.token_outputs(naive.plain(model), rows_of(units), temperature)
    for ours, theirs in zip(found["logp"] + found["entropy"], logps + entropies, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("share_prefix", [True, False])
@each_architecture
def test_log_probs_and_entropies(architecture, share_prefix, tiny):
    assert_scores_are_the_naive_ones(tiny(architecture), some_units(), share_prefix=share_prefix)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_log_probs_at_a_temperature(temperature, tiny):
    assert_scores_are_the_naive_ones(tiny(), some_units(), temperature)


def test_actions_after_an_observation_are_predicted_from_it(tiny):
    action_T = np.array([0, 0, 1, 1, 0, 0, 1, 0, 1, 0], bool)
    assert_scores_are_the_naive_ones(tiny(), [(Row({"tokens_T": np.arange(20, 30, dtype=np.int32)}, action_T, {}),)])


@pytest.mark.parametrize("length", [8, 9])
def test_a_row_longer_than_the_sliding_window_is_read_whole(length, text):
    model = tiny_models.build("qwen2", text, use_sliding_window=True, sliding_window=8, max_window_layers=0)
    assert_scores_are_the_naive_ones(model, [(tiny_models.row(np.arange(20, 22), np.arange(30, 30 + length - 2)),)])


@pytest.mark.parametrize("share", [True, False])
@each_architecture
def test_loss_and_gradients(architecture, share, tiny):
    model, units = tiny(architecture), some_units()
    rows = rows_of(units)
    loss = accumulate(learner_of(model, temperature=0.7), units, WeightedLoss(frozenset({"logp", "entropy"})), share=share)
    network = naive.plain(model)
    network.zero_grad()
    logps, entropies = naive.token_outputs(network, rows, 0.7)
    weights = [torch.from_numpy(row.fields["weight"]) for row in rows]
    terms = [(w * (logp + entropy)).sum() for w, logp, entropy in zip(weights, logps, entropies, strict=True)]
    expected = sum(terms) / Denominator.of(units).tokens
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    assert_same_gradients(gradients(model.network), gradients(network))


def test_the_clipped_policy_loss(tiny):
    """Ratios on both sides of the clip, worked out with the padded log-probs."""
    model, rng = tiny(), np.random.default_rng(0)
    bare = rows_of(some_units())
    network = naive.plain(model)
    logps, _ = naive.token_outputs(network, bare)
    units, terms = [], []
    for row, logp_A in zip(bare, logps, strict=True):
        old_A = (logp_A.detach().numpy() + rng.normal(scale=0.3, size=len(logp_A))).astype(np.float32)
        advantage = float(rng.normal())
        fields = {"old_logp": old_A, "advantage": np.full(len(old_A), advantage, np.float32), "weight": np.ones_like(old_A)}
        units.append((Row(row.columns, row.action_T, fields),))
        ratio_A = (logp_A - torch.from_numpy(old_A)).exp()
        terms.append(torch.minimum(ratio_A * advantage, ratio_A.clamp(0.8, 1.28) * advantage).sum())
    expected = -sum(terms) / Denominator.of(units).tokens
    expected.backward()
    loss = accumulate(learner_of(model), units, LeaveOneOut(clip=(0.2, 0.28)).loss())
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    assert_same_gradients(gradients(model.network), gradients(network))


def test_the_budget_bounds_the_micro_batches_of_a_group(tiny):
    """A group of 16 rows of 24 tokens is 264 packed tokens: it was one micro-batch whatever the budget."""
    prompt = np.arange(20, 28, dtype=np.int32)
    rng = np.random.default_rng(0)
    unit = tuple(tiny_models.row(prompt, tiny_models.tokens(rng, 16), **policy_fields(rng, 16)) for _ in range(16))
    sizes, norms = [], []
    for budget in (4096, 64):
        learner = learner_of(tiny(), token_budget=budget)
        seen = learner.outputs
        learner.outputs = lambda batch, needs, seen=seen: (sizes.append(len(batch.tokens_N)), seen(batch, needs))[1]
        norms.append(Trainer(learner, GRPO().loss(), coupled=GRPO.coupled).step([unit])["gradient_norm"])
    assert sizes == [264, *[56] * 5, 24]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


@pytest.mark.parametrize(("coupled", "what"), [(True, "a unit whose rows are coupled"), (False, "a row")])
def test_what_cannot_be_split_is_warned_of(coupled, what, tiny):
    unit = tuple(tiny_models.row(np.arange(20, 40, dtype=np.int32), np.array([50, 60 + i])) for i in range(2))
    with pytest.warns(UserWarning, match=f"{what} has more tokens than learner.token_budget=16"):
        batches = LanguagePolicy(tiny()).lay_out([unit], 16, coupled)
    assert [len(batch.tokens_N) for batch in batches] == ([24] if coupled else [22, 22])


def policy_fields(rng, length):
    return {name: rng.normal(size=length).astype(np.float32) for name in ("advantage", "old_logp")} | {
        "weight": np.ones(length, np.float32)
    }


@pytest.mark.parametrize(
    ("algorithm", "coupled"), [(GRPO(), False), (SFT(), False), (DPO(), True), (OnlineDPO(), True), (BradleyTerry(), True)]
)
def test_an_algorithm_says_whether_rows_are_coupled(algorithm, coupled):
    assert algorithm.coupled is coupled


def test_a_row_scores_the_same_whoever_shares_its_micro_batch(tiny):
    units = some_units(groups=(3, 2, 2))
    scoring = Scoring(LanguagePolicy(tiny()))
    together = scoring.score(units, frozenset({"logp"}))["logp"]
    alone = [scoring.score([(row,)], frozenset({"logp"}))["logp"][0] for row in rows_of(units)]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
