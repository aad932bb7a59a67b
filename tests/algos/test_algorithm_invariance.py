"""What must not change a loss or a gradient: micro-batches, ranks, row order, minibatch borders. And what must: the truth."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from algo_examples import (
    Letters,
    Table,
    assert_a_step_descends,
    assert_order_changes_nothing,
    assert_split_changes_nothing,
    count,
    group,
    sample,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import algos
from penstock.algos import DPO, GRPO, KTO, PPO, SFT, BradleyTerry, EntropyBonus, ImportanceWeight, KLPenalty, LeaveOneOut
from penstock.algos.dpo import MPO
from penstock.algos.pair_losses import PAIR_LOSSES
from penstock.config.spec import parse, plain
from penstock.core.contracts import Loss
from penstock.loops.columns import labelled

IN_LOSS = KLPenalty(place="loss", estimator="k3", coefficient=0.1)
IN_REWARD = KLPenalty(place="reward", coefficient=0.1)
BONUS = EntropyBonus(coefficient=0.01)
WEIGHTS = (ImportanceWeight(high=1.5), ImportanceWeight(level="geometric", outside="reject", low=0.5, high=2.0))
ONLINE = {
    "grpo token": GRPO(kl=IN_LOSS),
    "grpo sequence": GRPO(aggregate="sequence", kl=IN_LOSS),
    "grpo process": GRPO(supervision="process"),
    "grpo turn": GRPO(supervision="turn", scale="none"),
    "grpo with everything": GRPO(
        kl=KLPenalty(place="loss", estimator="k3", coefficient=0.1, reweight=True), entropy=BONUS, importance_weights=WEIGHTS
    ),
    "dr grpo": algos.dr_grpo(8),
    "leave one out": LeaveOneOut(clip=None, kl=IN_REWARD),
    "ppo": PPO(entropy=BONUS, kl=KLPenalty(place="loss", estimator="k2", coefficient=0.1)),
    "ppo dual": PPO(objective=algos.ClippedRatio(dual=1.5), bootstrap=True),
    "ppo vtrace": PPO(estimator="vtrace"),
    "reinforce": algos.REINFORCE(discount=0.9, baseline="batch"),
    "reinforce++": algos.ReinforcePlusPlus(kl=IN_REWARD),
    "reinforce++ baseline": algos.ReinforcePlusPlus(baseline="group"),
    "remax": algos.ReMax(),
    "opo": algos.OPO(),
    "gpg": algos.GPG(),
    "pass@k": algos.PassAtK(k=2, right=0.5),
    "max@k": algos.PKPO(k=2),
    "batch scale": algos.GRPO(scale="batch"),
    "whole answer": algos.GRPO(objective=algos.ClippedRatio(level="product"), aggregate="sequence"),
    "n-step": algos.PPO(estimator="n-step", n_steps=2),
    "reward to go": algos.ReMax(to_go=True),
    "gdpo": algos.GDPO(),
    "dapo": algos.dapo(),
    "gspo": algos.gspo(clip=(0.2, 0.3)),
    "gspo-token": algos.gspo("sequence-token", clip=(0.2, 0.3)),
    "cispo": algos.cispo(),
    "gmpo": algos.gmpo(),
    "sapo": algos.sapo(),
    "topr": algos.topr(),
    "dppo tv": algos.dppo(),
    "dppo kl": algos.dppo("kl"),
    "clip-cov": GRPO(objective=algos.ClipCov(share=0.2, low=0.0)),
    "kl-cov": GRPO(objective=algos.KLCov(share=0.2), clip=None),
    "pipeline rl": algos.pipeline_rl(),
    "icepop": algos.icepop(),
    "rebel": algos.REBEL(),
    "online dpo": algos.OnlineDPO(),
    "online ipo": algos.OnlineDPO(preference=DPO(objective="ipo")),
    "safe ppo": algos.SafePPO(cost="b"),
    "distillation": algos.Distillation(),
}
SMOOTHING = {"robust": 0.1, "exo": 0.01}
OFFLINE = {
    "sft token": SFT(),
    "sft sequence": SFT(aggregate="sequence"),
    "awac": algos.AWAC(temperature=0.5),
    "ilql": algos.ILQL(imitation_beta=0.5, expectile=0.8),
    "bradley terry": BradleyTerry(centring=0.1),
    "pairs with margins": BradleyTerry(margin="gap"),
    "pairs with one margin": BradleyTerry(margin=0.5),
    "pairs with soft labels": BradleyTerry(probability="share", centring=0.1),
    "binary labels": algos.BinaryRewardModel(),
    "process rewards": algos.ProcessReward(separator="e"),
    **{f"dpo {name}": DPO(beta=0.5, objective=name, smoothing=SMOOTHING.get(name, 0.0)) for name in PAIR_LOSSES},
    "dpo conservative": DPO(smoothing=0.1),
    "dpo length": DPO(length_normalised=True),
    "dpo mix": DPO(objective=MPO),
    "simpo": algos.SimPO(),
    "orpo": algos.ORPO(),
    "cpo": algos.CPO(),
    "kto": KTO(weights=(1.5, 1.0)),
    "kto pairs": KTO(weights=(1.0, 1.0), data="pairs"),
}
ALL = ONLINE | OFFLINE


def online_groups(seed):
    """Five groups of three samples and a greedy one, of random tokens, lengths, log-probs and rewards per token."""
    rng = np.random.default_rng(seed)

    def drawn(greedy):
        length = rng.integers(1, 5)
        made = sample(rng.integers(1, 7, length), rng.normal(size=length).round(1).tolist(), logp=rng.normal(-1.5, 0.5))
        return replace(made, extras={"greedy": greedy, "rewards": {"a": rng.normal(), "b": float(rng.integers(2))}})

    return [group(*[drawn(place == 3) for place in range(4)], ordinal=ordinal) for ordinal in range(5)]


def columns_of(groups, seed):
    """Every column, at random."""
    rng = np.random.default_rng(seed)
    names = ("reference", "value", "proximal")
    arrays = {
        name: [[rng.normal(-1, 0.5, int(s.action_T.sum())).astype(np.float32) for s in g.samples] for g in groups]
        for name in names
    }
    return {**arrays, "bootstrap": [[float(rng.normal()) for _ in g.samples] for g in groups]}


def online_units(algorithm, seed):
    groups = online_groups(seed)
    return algorithm.label(groups, columns_of(groups, seed), algorithm.initial_coefficients())


class Noise:
    """A scorer whose log-probs depend on a row's tokens alone."""

    def __init__(self, seed):
        self.table = np.random.default_rng(seed).normal(-1.5, 0.5, (8, 8))

    def score(self, units, needs):
        rows = [row for unit in units for row in unit]
        return {"logp": [self.table[row.tokens_T[:-1], row.tokens_T[1:]][row.action_T[1:]] for row in rows]}


def offline_units(algorithm, seed):
    rng = np.random.default_rng(seed)

    def text():
        return "".join(rng.choice(list("abcde"), rng.integers(1, 5)))

    def example(place):
        texts = {name: text() for name in ("prompt", "completion", "chosen", "rejected")}
        numbers = {"label": bool(place % 2), "gap": place / 2, "share": rng.random(), "reward": rng.normal()}
        return texts | numbers | {"steps": [text(), text()], "labels": [place / 4, None if place % 2 else 1]}

    units = [algorithm.rows(example(place), Letters()) for place in range(5)]
    return list(labelled(algorithm, units, Noise(seed + 1), Noise(seed + 2)))


def units_of(name, seed=0):
    return (online_units if name in ONLINE else offline_units)(ALL[name], seed)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), cuts=st.sets(st.integers(1, 4)))
def test_any_split_into_micro_batches_or_ranks_gives_the_same_loss_metrics_and_gradient(name, seed, cuts):
    assert_split_changes_nothing(ALL[name].loss(), units_of(name, seed), cuts, seed)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=5)
@given(data=st.data())
def test_the_order_of_rows_does_not_matter(name, data):
    assert_order_changes_nothing(ALL[name].loss(), units_of(name), data)


@pytest.mark.parametrize("name", ALL)
def test_a_batch_doubled_has_the_same_loss_and_gradient(name):
    units, loss, model = units_of(name), ALL[name].loss(), Table()
    once, _, once_grad = model.accumulate(loss, [units], count(units))
    twice, _, twice_grad = model.accumulate(loss, [units, units], count([*units, *units]))
    assert twice == pytest.approx(once, abs=1e-9)
    torch.testing.assert_close(twice_grad, once_grad)


MOVING = {"cispo", "topr", "pipeline rl", "awac", "ilql"}
"""Losses whose weights follow the policy behind a stop-gradient: their value is no height that a step descends."""


@pytest.mark.parametrize("name", sorted(set(ALL) - MOVING))
def test_a_step_against_the_gradient_lowers_the_loss(name):
    assert_a_step_descends(ALL[name].loss(), units_of(name), 1e-4)


def exact_gradient(algorithm, policy, reward):
    """The gradient by the logits, averaged exactly over all pairs of one-token samples that the policy can draw."""
    logits = torch.tensor(np.log(policy)).requires_grad_()
    logp_V = logits.log_softmax(-1)
    expected = torch.zeros_like(logits)
    for first in range(len(policy)):
        for second in range(len(policy)):
            drawn = [first, second]
            members = group(*[sample([v], reward[v], logp=logp_V[v].item()) for v in drawn])
            units = algorithm.label([members], {}, algorithm.initial_coefficients())
            fields = {k: torch.tensor([float(r.fields[k][0]) for r in units[0]]) for k in ("advantage", "weight")}
            fields["old_logp"] = logp_V[drawn].detach()
            outputs = {"logp": logp_V[drawn]}
            loss, _ = algorithm.loss()(outputs, fields, SimpleNamespace(row_A=torch.arange(2)), count(units))
            (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
            expected += policy[first] * policy[second] * gradient
    value = (logp_V.exp() * torch.tensor(reward)).sum()
    return expected, -torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize(
    "algorithm",
    [
        LeaveOneOut(clip=None),
        LeaveOneOut(clip=None, objective=algos.PolicyGradient()),
        algos.pipeline_rl(),
        algos.REINFORCE(),
        algos.REINFORCE(baseline="batch"),
    ],
)
def test_unbiased_estimators_give_the_policy_gradient_in_expectation(algorithm):
    found, true = exact_gradient(algorithm, [0.5, 0.3, 0.2], [1.0, -2.0, 0.5])
    torch.testing.assert_close(found, true, atol=1e-6, rtol=1e-6)


def test_the_group_mean_baseline_shrinks_the_policy_gradient_by_one_sample():
    # With G samples the mean contains the sample itself, so the expectation is (G - 1) / G of the gradient.
    found, true = exact_gradient(GRPO(scale="none"), [0.5, 0.3, 0.2], [1.0, -2.0, 0.5])
    torch.testing.assert_close(found, true / 2, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_a_spec_survives_the_journey_as_plain_values(name):
    assert parse(type(ALL[name]), plain(ALL[name])) == ALL[name]


@pytest.mark.parametrize("name", ALL)
def test_a_loss_follows_the_contract_and_names_the_outputs_it_reads(name):
    loss = ALL[name].loss()
    assert isinstance(loss, Loss)
    assert loss.needs <= {"logp", "entropy", "divergence", "value", "score", "step", "q"}
