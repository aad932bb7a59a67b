"""What must not change a loss or a gradient: micro-batches, row order, minibatch borders. And what must: the truth."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from algo_examples import Letters, Table, count, group, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.algos import GRPO, PPO, SFT, BradleyTerry, KLPenalty, LeaveOneOut
from penstock.core.contracts import Columns, Loss
from penstock.core.spec import parse, plain

IN_LOSS = KLPenalty(place="loss", estimator="k3", coefficient=0.1)
ONLINE = {
    "grpo token": GRPO(kl=IN_LOSS),
    "grpo sequence": GRPO(aggregate="sequence", kl=IN_LOSS),
    "dr grpo": GRPO(scale="none", aggregate="constant", constant=8),
    "leave one out": LeaveOneOut(clip=None, kl=KLPenalty(place="reward", coefficient=0.1)),
    "ppo": PPO(entropy_bonus=0.01, kl=KLPenalty(place="loss", estimator="k2", coefficient=0.1)),
}
OFFLINE = {"sft token": SFT(), "sft sequence": SFT(aggregate="sequence"), "bradley terry": BradleyTerry(centring=0.1)}
ALL = ONLINE | OFFLINE


def online_units(algorithm, seed):
    """Five groups of three samples of random tokens, lengths, log-probs, rewards, reference log-probs and values."""
    rng = np.random.default_rng(seed)
    groups = [
        group(*[
            sample(rng.integers(1, 7, rng.integers(1, 5)), float(rng.normal()), logp=rng.normal(-1.5, 0.5))
            for _ in range(3)
        ], ordinal=ordinal)
        for ordinal in range(5)
    ]  # fmt: skip
    random = [[rng.normal(-1, 0.5, int(s.action_T.sum())).astype(np.float32) for s in g.samples] for g in groups]
    return algorithm.label(groups, Columns(reference_logp=random, value=random), algorithm.initial_control())


def offline_units(algorithm, seed):
    rng = np.random.default_rng(seed)

    def text():
        return "".join(rng.choice(list("abcde"), rng.integers(1, 5)))

    examples = [{name: text() for name in ("prompt", "completion", "chosen", "rejected")} for _ in range(5)]
    return [algorithm.rows(example, Letters()) for example in examples]


def units_of(name, seed=0):
    return (online_units if name in ONLINE else offline_units)(ALL[name], seed)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), cuts=st.sets(st.integers(1, 4)))
def test_any_split_into_micro_batches_gives_the_same_loss_metrics_and_gradient(name, seed, cuts):
    units, loss, model = units_of(name, seed), ALL[name].loss(), Table(seed)
    borders = [0, *sorted(cuts), len(units)]
    pieces = [units[a:b] for a, b in pairwise(borders)]
    whole, whole_metrics, whole_grad = model.accumulate(loss, [units], count(units))
    total, metrics, grad = model.accumulate(loss, pieces, count(units))
    assert total == pytest.approx(whole, abs=1e-6)
    assert metrics == pytest.approx(whole_metrics, abs=1e-6)
    torch.testing.assert_close(grad, whole_grad, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_the_order_of_rows_does_not_matter(name, data):
    units, loss, model = units_of(name), ALL[name].loss(), Table()
    order = data.draw(st.permutations(range(sum(len(unit) for unit in units))))
    whole, _, whole_grad = model.accumulate(loss, [units], count(units))
    total, _, grad = model.accumulate(loss, [units], count(units), order)
    assert total == pytest.approx(whole, abs=1e-9)
    torch.testing.assert_close(grad, whole_grad, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_a_batch_doubled_has_the_same_loss_and_gradient(name):
    units, loss, model = units_of(name), ALL[name].loss(), Table()
    once, _, once_grad = model.accumulate(loss, [units], count(units))
    twice, _, twice_grad = model.accumulate(loss, [units, units], count([*units, *units]))
    assert twice == pytest.approx(once, abs=1e-9)
    torch.testing.assert_close(twice_grad, once_grad)


@pytest.mark.parametrize("name", ALL)
def test_a_step_against_the_gradient_lowers_the_loss(name):
    units, loss, model = units_of(name), ALL[name].loss(), Table()
    before, _, grad = model.accumulate(loss, [units], count(units))
    with torch.no_grad():
        for part in (model.logits, model.values, model.scores):
            part -= 1e-3 * part.grad if part.grad is not None else 0
    after, _, _ = model.accumulate(loss, [units], count(units))
    assert grad.abs().max() > 0
    assert after < before


def exact_gradient(algorithm, policy, reward):
    """The gradient by the logits, averaged exactly over all pairs of one-token samples that the policy can draw."""
    logits = torch.tensor(np.log(policy)).requires_grad_()
    logp_V = logits.log_softmax(-1)
    expected = torch.zeros_like(logits)
    for first in range(len(policy)):
        for second in range(len(policy)):
            drawn = [first, second]
            members = group(*[sample([v], reward[v], logp=logp_V[v].item()) for v in drawn])
            units = algorithm.label([members], Columns(), algorithm.initial_control())
            fields = {k: torch.tensor([float(r.fields[k][0]) for r in units[0]]) for k in ("advantage", "weight")}
            fields["old_logp"] = logp_V[drawn].detach()
            outputs = type("Outputs", (), {"logp_A": logp_V[drawn]})
            loss, _ = algorithm.loss()(outputs, fields, None, count(units))
            (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
            expected += policy[first] * policy[second] * gradient
    value = (logp_V.exp() * torch.tensor(reward)).sum()
    return expected, -torch.autograd.grad(value, logits)[0]


def test_leave_one_out_is_the_unbiased_policy_gradient():
    found, true = exact_gradient(LeaveOneOut(clip=None), [0.5, 0.3, 0.2], [1.0, -2.0, 0.5])
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
    assert loss.needs <= {"logp", "entropy", "value", "score"}


def test_importing_and_building_algorithms_imports_no_torch():
    code = (
        "import sys, penstock.algos as a; [getattr(a, n)() for n in ('GRPO', 'PPO', 'SFT', 'LeaveOneOut', 'BradleyTerry')];"
        "a.GRPO().loss(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
