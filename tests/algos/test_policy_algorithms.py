"""Algorithms without a critic, and PPO's choices, label by label and by hand; what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from algo_examples import Table, count, group, sample

from penstock import algos
from penstock.algos import GDPO, GPG, GRPO, OPO, PPO, REINFORCE, KLPenalty, LeaveOneOut, PassAtK, ReinforcePlusPlus, ReMax
from penstock.config.run import DataSpec, ModelSpec, Online, RewardSpec
from penstock.config.spec import convert, parse
from penstock.core.contracts import Denominator
from penstock.core.errors import SpecError, TrainingError

IN_REWARD = KLPenalty(place="reward", coefficient=0.1)


def label(algorithm, *groups, columns=None):
    return algorithm.label(groups, columns or {}, algorithm.initial_coefficients())


def advantages(units):
    """Advantages of each row of all units."""
    return [row.fields["advantage"].tolist() for unit in units for row in unit]


def approx(nested):
    return [pytest.approx(part, abs=1e-5) for part in nested]


def greedy(made):
    return replace(made, extras={**made.extras, "greedy": True})


def named(reward, *, actions=(2,), **rewards):
    return replace(sample(actions, reward), extras={"rewards": rewards})


def whitened(*raw):
    return (np.array(raw) - np.mean(raw)) / np.std(raw, ddof=1)


HALF = 0.5**0.5  # rewards 1 and 0 of a group, less their mean, over their deviation
BY_HAND = {
    "reinforce credits each action with what follows": (  # 1 + 0.5 * 2, 0 + 0.5 * 4, 4
        REINFORCE(discount=0.5), [[sample([2, 3, 6], [1.0, 0.0, 4.0])]], [[2, 2, 4]],
    ),
    "the batch baseline is the mean of the other samples": (
        REINFORCE(baseline="batch"), [[sample([2], 3.0)], [sample([3, 6], 0.0), sample([4], 6.0)]],
        [[3 - 3], [0 - 4.5, 0 - 4.5], [6 - 1.5]],
    ),
    "reinforce++ with a baseline centres groups before it whitens": (
        ReinforcePlusPlus(baseline="group"),
        [[sample([2, 6], 1.0), sample([3], 0.0)], [sample([4], 5.0), sample([5], 5.0)]],
        np.split(whitened(0.5, 0.5, -0.5, 0, 0), [2, 3, 4]),
    ),
    "remax takes the greedy answer for its baseline": (
        ReMax(), [[sample([2, 6], 1.0), sample([3], 0.0), greedy(sample([4], 0.25))]], [[0.75, 0.75], [-0.25]],
    ),
    "remax may credit tokens with what follows them": (
        ReMax(to_go=True), [[sample([2, 6], [1.0, 2.0]), greedy(sample([4], 0.25))]], [[2.75, 1.75]],
    ),
    "opo weighs rewards by length": (OPO(), [[sample([2, 3, 6], 0.0), sample([6], 1.0)]], [[-0.25] * 3, [0.75]]),
    "gpg makes up for flat groups": (  # ±0.5 times 4 / 2
        GPG(), [[sample([2], 1.0), sample([3], 0.0)], [sample([2], 1.0), sample([3], 1.0)]], [[1.0], [-1.0], [0.0], [0.0]],
    ),
    "pass at k asks which answers reach a bound": (
        PassAtK(k=2, right=0.5), [[sample([2], 1.0), sample([3], 0.4), sample([4], 0.0), sample([5], 0.5)]],
        [[1.0], [-1 / 3], [-1 / 3], [-1 / 3]],
    ),
    "pass at k takes 1 for right and 0 for wrong": (
        PassAtK(k=2), [[sample([2], 1.0), sample([3], 0.0), sample([4], 0.0), sample([5], 0.0)]],
        [[1.0], [-1 / 3], [-1 / 3], [-1 / 3]],
    ),
    "gdpo normalises each reward by itself and whitens the sum": (
        GDPO(weights={"math": 1.0, "style": 0.5}),
        [
            [named(1.0, math=1.0, style=0.0), named(0.0, math=0.0, style=0.0)],
            [named(0.0, math=0.0, style=5.0), named(0.0, math=0.0, style=9.0)],
        ],
        np.split(whitened(HALF, -HALF, -0.5 * HALF, 0.5 * HALF), 4),
    ),
    "gdpo may whiten over tokens": (
        GDPO(whiten="token"), [[named(1.0, a=1.0), named(0.0, a=0.0, actions=(3, 4, 6))]],
        np.split(whitened(HALF, -HALF, -HALF, -HALF), [1]),
    ),
    "process supervision gives tokens the steps that follow": (
        GRPO(supervision="process"), [[sample([2, 3, 6], [1.0, 0.0, 3.0]), sample([4, 6], [0.0, 2.0])]], [[0, 1, 1], [0, 0]],
    ),
    "turn supervision gives what is earned from a token on less the mean sum": (  # sums 4, 2; to go [4, 3, 3], [2, 2]
        GRPO(supervision="turn", scale="none"), [[sample([2, 3, 6], [1.0, 0.0, 3.0]), sample([4, 6], [0.0, 2.0])]],
        [[1, 0, 0], [-1, -1]],
    ),
    "a batch's deviation may scale grpo": (
        GRPO(scale="batch"), [[sample([2], 1.0), sample([3], 0.0)], [sample([4], 4.0), sample([5], 4.0)]],
        [[0.5 / 4.25**0.5], [-0.5 / 4.25**0.5], [0.0], [0.0]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_advantages_by_hand(case):
    algorithm, groups, expected = BY_HAND[case]
    units = label(algorithm, *(group(*members, ordinal=ordinal) for ordinal, members in enumerate(groups)))
    assert advantages(units) == [pytest.approx(part, abs=1e-4 if isinstance(algorithm, GDPO) else 1e-5) for part in expected]


def test_a_batch_baseline_of_a_single_sample_is_refused():
    with pytest.raises(TrainingError, match="leave-one-out baseline needs two"):
        label(REINFORCE(baseline="batch"), group(sample([2], 3.0)))


def test_reinforce_plus_plus_whitens_penalised_returns_over_the_batch():
    # penalty 0.1 * 0.5 a token; rewards to go: 0.9 0.95, and -0.05
    groups = [group(sample([2, 6], 1.0)), group(sample([3], 0.0), ordinal=1)]
    reference = [[np.full(int(s.action_T.sum()), -1.5, np.float32) for s in g.samples] for g in groups]
    units = label(ReinforcePlusPlus(kl=IN_REWARD), *groups, columns={"reference": reference})
    assert advantages(units) == approx(np.split(whitened(0.9, 0.95, -0.05), [2]))


def test_a_terminal_reward_lands_on_the_last_action_also_where_that_is_the_padding_token():
    drawn = sample([2, 6, 6], 1.0)  # ends with 6 6; 6 also pads
    assert drawn.reward_T.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("lost", [sample([4], None), sample([4], 1.0, error="RewardError: late")])
def test_remax_leaves_a_group_out_whose_greedy_answer_failed(lost):
    assert label(ReMax(), group(sample([2], 1.0), greedy(lost))) == []


@pytest.mark.parametrize("algorithm", [GRPO(scale="none"), LeaveOneOut(), OPO(), GPG(), REINFORCE(), PassAtK(k=2)])
def test_a_greedy_sample_is_nobody_s_sibling(algorithm):
    members = [sample([2, 6], 1.0), sample([3], 0.0), sample([5], 0.0)]
    alone, beside = label(algorithm, group(*members)), label(algorithm, group(*members, greedy(sample([4], 9.0))))
    assert advantages(beside) == advantages(alone)


def test_pass_at_k_does_not_guess_what_is_right():
    with pytest.raises(TrainingError, match=r"got \[1.0, 0.4.*\]; set right, or use PKPO"):
        label(PassAtK(k=2), group(sample([2], 1.0), sample([3], 0.4)))


def test_pass_at_k_leaves_a_group_out_in_which_failures_left_fewer_than_k():
    assert label(PassAtK(k=3), group(sample([2], 1.0), sample([3], 0.0), sample([4], None))) == []


def test_gdpo_refuses_a_weight_for_a_reward_that_nobody_gives():
    with pytest.raises(TrainingError, match=r"weighs the rewards \['maths'\], the samples have \['math'\]"):
        label(GDPO(weights={"maths": 1.0}), group(named(1.0, math=1.0), named(0.0, math=0.0)))


def test_turn_supervision_of_a_reward_at_the_end_is_that_of_the_outcome():
    made = group(sample([2, 3, 6], 3.0), sample([4, 6], 1.0))
    expected = advantages(label(GRPO(scale="none"), made))
    assert advantages(label(GRPO(supervision="turn", scale="none"), made)) == approx(expected)


def stage(algorithm, **fields):
    data = DataSpec(source="x.jsonl")
    return Online(name="s", model=ModelSpec(), data=data, rewards=(RewardSpec(function="gym"),), algorithm=algorithm, **fields)


@pytest.mark.parametrize(
    ("algorithm", "samples", "problem"),
    [
        *((algorithm, 1, "samples=1 is undefined") for algorithm in (LeaveOneOut(), GRPO(), OPO(), GPG(), PassAtK(k=2))),
        (PassAtK(k=4), 3, "samples=4 or more"),
    ],
)
def test_too_few_samples_a_prompt_are_refused_before_anything_starts(algorithm, samples, problem):
    """The incumbent's leave-one-out of a single sample silently has an advantage of zero, or the raw reward."""
    with pytest.raises(SpecError, match=problem):
        stage(algorithm, samples=samples)


CORRECTED = REINFORCE(importance_weights=(algos.ImportanceWeight(),))


@pytest.mark.parametrize("algorithm", [algos.sapo(), algos.topr(), algos.dppo(), algos.cispo(), algos.icepop(), CORRECTED])
def test_whatever_bounds_the_step_allows_a_lag(algorithm):
    assert stage(algorithm, max_lag=2).max_lag == 2


@pytest.mark.parametrize("algorithm", [REINFORCE(), OPO(), algos.kl_cov()])
def test_a_loss_that_nothing_bounds_allows_no_lag(algorithm):
    with pytest.raises(SpecError, match="max_lag=1 needs a clipped loss"):
        stage(algorithm, max_lag=1)


@pytest.mark.parametrize("algorithm", [OPO(), GPG(), ReMax(), REINFORCE(), CORRECTED])
@pytest.mark.parametrize("more", [{"epochs": 2}, {"minibatches": 2}])
def test_a_loss_without_a_ratio_takes_one_step_a_batch(algorithm, more):
    with pytest.raises(SpecError, match="without a probability ratio is wrong after the first optimizer step"):
        stage(algorithm, **more)
    assert stage(replace(algorithm, objective=algos.ClippedRatio(), clip=(0.2, 0.2)), **more).batch == 16


def test_an_objective_is_chosen_by_its_name_alone():
    assert parse(GRPO, {"objective": "DPPO", "clip": None}).objective == algos.DPPO()
    assert convert(algos.objectives.AnyObjective, {"kind": "SAPO", "positive": 2.0}, "x") == algos.SAPO(positive=2.0)
    with pytest.raises(SpecError):
        parse(GRPO, {"objective": "DPOO"})


def test_a_composition_takes_any_field():
    made = algos.gspo(clip=(0.1, 0.2), skip_flat=True)
    assert (made.clip, made.skip_flat, made.aggregate) == ((0.1, 0.2), True, "sequence")


def members(**fields):
    """An answer, an observation, and another answer; the reward comes at the end."""
    made = sample([2, 3, 4, 6], 1.0)
    made = replace(made, action_T=np.array([False, True, True, False, True]), **fields)
    return group(replace(made, logp_T=np.where(made.action_T, -1.0, 0.0).astype(np.float32)))


EVEN, CUT = [0.5, 0.5, 0.5], {"finish": "length"}
PPO_BY_HAND = {
    "errors 0, 0 and 0.5 are carried across observations": (PPO(lam=0.5), {}, EVEN, {}, [0.125, 0.25, 0.5], None),
    "a cut ends the episode": (PPO(lam=0.0), CUT, EVEN, {}, [0, 0, 0.5], None),
    "a cut may end it in the critic's mind too": (
        PPO(lam=0.0, bootstrap=True), CUT, EVEN, {"bootstrap": [[0.0]]}, [0, 0, 0.5], [0.5, 0.5, 1.0],
    ),
    "a cut sample may go on in the critic's mind": (
        PPO(lam=0.0, bootstrap=True), CUT, EVEN, {"bootstrap": [[0.75]]}, [0, 0, 1.25], [0.5, 0.5, 1.75],
    ),
    "n-step returns look so many rewards ahead": (
        PPO(estimator="n-step", n_steps=2), {}, [0.5, 0.25, 0.75], {}, [0.25, 0.75, 0.25], [0.75, 1.0, 1.0],
    ),
    "v-trace corrects for the policy that drew the sample": (  # last: weight 1/2: v = 0.5 + 0.5 * (1 - 0.5) = 0.75
        PPO(estimator="vtrace", lam=1.0), {}, EVEN, {"proximal": [[np.array([-1.0, -1.0, -1.0 - np.log(2)])]]},
        [0.25, 0.25, 0.25], [0.75, 0.75, 0.75],
    ),
    "v-trace has the algorithm's bounds": (  # the last ratio is 4: v = 0.5 + 2 * 0.5; its advantage counts three times
        PPO(estimator="vtrace", lam=1.0, vtrace_bounds=(2.0, 1.0, 3.0)), {}, EVEN,
        {"proximal": [[np.array([-1.0, -1.0, -1.0 + np.log(4)])]]}, [1.0, 1.0, 1.5], [1.5, 1.5, 1.5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PPO_BY_HAND)
def test_advantages_and_returns_of_ppo_by_hand(case):
    algorithm, changes, value, columns, advantage, returns = PPO_BY_HAND[case]
    columns = {"value": [[np.array(value)]], **columns}
    ((row,),) = label(replace(algorithm, whiten=False), members(**changes), columns=columns)
    np.testing.assert_allclose(row.fields["advantage"], advantage, rtol=1e-6)
    if returns is not None:
        np.testing.assert_allclose(row.fields["return"], returns, rtol=1e-6)


def test_by_default_a_cut_needs_no_more_values():
    assert "bootstrap" not in PPO().needs


@pytest.mark.parametrize(
    ("algorithm", "rewards", "expected"),
    [
        (GRPO(), (1.0, 1.0), False),
        (GRPO(), (1.0, 0.0), True),
        (GRPO(), (1.0, None), False),
        (LeaveOneOut(), (None, None), False),
        (PassAtK(k=2), (1.0, 0.0), False),  # every pair holds the right one
        (PassAtK(k=2), (1.0, 0.0, 0.0), True),
        (PassAtK(k=2, right=0.5), (0.6, 0.9), False),
        (PassAtK(k=2), (1.0, 1.0), False),
        (algos.PKPO(k=2), (0.3, 0.3), False),
        (GRPO(scale="batch"), (0.3, 0.3), False),
        (ReinforcePlusPlus(baseline="group"), (1.0, 1.0), False),
        (ReinforcePlusPlus(baseline="group"), (1.0, 0.0), True),
        (ReinforcePlusPlus(), (1.0, 1.0), True),
        (REINFORCE(), (1.0, 1.0), True),
        (REINFORCE(), (None, None), False),
    ],
)
def test_a_group_tells_something_if_its_valid_rewards_differ(algorithm, rewards, expected):
    made = group(*[sample([2], reward) for reward in rewards])
    assert algorithm.has_signal(made) is expected


STEPS, RIGHT, FIRST = sample([2, 6], [1.0, 2.0]), [sample([2], 1.0), sample([3], 1.0)], named(1.0, a=1.0, b=0.0)


@pytest.mark.parametrize(
    ("algorithm", "samples", "expected"),
    [
        (GRPO(supervision="process"), [STEPS, sample([3, 6], [2.0, 1.0])], True),  # steps differ though sums agree
        (GRPO(supervision="process"), [STEPS, sample([3, 6], [1.0, 2.0])], True),
        (GRPO(supervision="process"), [STEPS, sample([3, 6], [0.0, 0.0])], True),
        (GRPO(supervision="process"), [sample([2], 1.0), sample([3, 6], [1.0, 1.0])], False),
        (ReMax(), [*RIGHT, greedy(sample([4], 1.0))], False),
        (ReMax(), [*RIGHT, greedy(sample([4], 0.0))], True),  # both differ from the greedy answer
        (ReMax(), [*RIGHT, greedy(sample([4], None))], False),
        (GDPO(), [FIRST, named(1.0, a=0.0, b=1.0)], True),  # one reward differs though their sums agree
        (GDPO(), [FIRST, named(1.0, a=1.0, b=0.0)], False),
        (GDPO(weights={"a": 1.0, "b": 0.0}), [FIRST, named(1.0, a=1.0, b=1.0)], False),
    ],
)
def test_a_group_tells_something_by_what_the_algorithm_compares(algorithm, samples, expected):
    assert algorithm.has_signal(group(*samples)) is expected


@pytest.mark.parametrize(
    "algorithm", [GRPO(scale="none"), REINFORCE(), ReinforcePlusPlus(), algos.gspo(), algos.gmpo(), algos.topr(), OPO()]
)
def test_the_end_token_gets_a_gradient(algorithm):
    """With pad = end token, masks made from token ids drop the very token that ends an answer."""
    units = label(algorithm, group(sample([2, 6], 1.0), sample([3, 6, 6], 0.0)))
    model = Table()
    model.accumulate(algorithm.loss(), [units], count(units))
    after_2 = model.logits.grad[2]  # only the end token follows token 2
    assert after_2[6].abs() > 1e-4


def test_a_reward_after_the_end_token_counts_for_the_last_action():
    """Text after the end is no action; a reward that was put there must not vanish or train what follows."""
    drawn = sample([2, 6, 5, 5], 0.0)
    action_T = np.array([False, True, True, False, False])
    drawn = replace(drawn, action_T=action_T, reward_T=np.array([0, 0, 0, 0, 2.0], np.float32))
    ((row,),) = label(REINFORCE(), group(drawn))
    assert row.fields["advantage"].tolist() == [2.0, 2.0]
    assert row.fields["reward"] == 2.0


def test_decoupled_ratios_start_at_the_learner_and_weights_scale_the_gradient():
    algorithm = GRPO(scale="none", clip=None, importance_weights=(algos.ImportanceWeight(high=9.0),))
    made = group(sample([2], 1.0), sample([3], 0.0))
    proximal = [[np.array([-1 + np.log(2)], np.float32), np.array([-1.0], np.float32)]]
    units = algorithm.label([made], {"proximal": proximal}, {})
    fields = {name: torch.tensor([float(np.ravel(r.fields[name])[0]) for r in units[0]]) for name in units[0][0].fields}
    logp = torch.tensor([-1 + np.log(2), -1.0], dtype=torch.float32).requires_grad_()
    outputs = {"logp": logp}
    batch = type("Batch", (), {"row_A": torch.arange(2)})
    loss, metrics = algorithm.loss()(outputs, fields, batch, count(units))
    loss.backward()
    assert metrics["max/ratio_deviation"] < 1e-6
    torch.testing.assert_close(logp.grad, torch.tensor([-2 * 0.5 / 2, 0.5 / 2]))


STALE = {"left_out_T": np.array([False, True, True, False, False])}


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (GRPO(scale="none"), [0.75, 0.75]),  # sums 1.5 and 0: what was left out for its age still belongs to the sample
        (REINFORCE(), [1.0, 1.0]),  # what follows the tokens that are left
        (ReMax(), [1.5, 1.5]),
    ],
)
def test_rewards_of_actions_left_out_for_their_age_credit_no_other_action(algorithm, expected):
    whole = sample([2, 3, 4, 6], [0.5, 0.0, 0.0, 1.0])
    left = replace(whole, action_T=whole.action_T & ~STALE["left_out_T"], extras=STALE)
    units = label(algorithm, group(left, sample([5, 6], 0.0), greedy(sample([4], 0.0))))
    assert advantages(units)[0] == pytest.approx(expected)
    assert units[0][0].fields["reward"] == 1.5
    assert label(ReinforcePlusPlus(), group(left, sample([5, 6], 0.0)))


def test_steps_end_where_a_reward_said_so():
    ends = {"step_ends_T": np.array([False, True, False, True])}, {"step_ends_T": np.array([False, True, True])}
    members = [replace(s, extras=e) for s, e in zip((sample([2, 3, 6], 0.0), sample([4, 6], [1.0, 1.0])), ends, strict=True)]
    members[0] = replace(members[0], reward_T=np.array([0, 1.0, 0, 0], np.float32))
    units = label(GRPO(supervision="process"), group(*members))
    assert advantages(units) == approx([[0.5 - 1.5, -1.5, -1.5], [1.0, 0.5]])  # steps 1, 0 and 1, 1


def test_a_penalty_in_the_reward_reads_the_learner_s_log_probs_where_it_has_scored_them():
    algorithm = REINFORCE(kl=IN_REWARD, importance_weights=(algos.ImportanceWeight(),))
    columns = {"proximal": [[np.array([-1.5], np.float32)]], "reference": [[np.array([-1.5], np.float32)]]}
    assert advantages(label(algorithm, group(sample([2], 1.0, logp=-1.0)), columns=columns)) == [[1.0]]


def test_reweighted_k3_beside_a_correction_has_the_gradient_of_the_kl_to_the_reference():
    """Tokens of a behaviour policy, weighed by its probabilities: the ratio is that of the trained policy to it."""
    chances = [0.4, 0.1, 0.2, 0.2, 0.1], [0.3, 0.2, 0.2, 0.2, 0.1], [0.2, 0.3, 0.1, 0.3, 0.1], [0.2] * 5
    behaviour, proximal, current, reference = (torch.tensor(chance).double() for chance in chances)
    penalty = KLPenalty(place="loss", estimator="k3", coefficient=1.0, reweight=True)
    algorithm = GRPO(clip=None, kl=penalty, importance_weights=(algos.ImportanceWeight(high=1e9),))
    logits = current.log().requires_grad_()
    logp = logits.log_softmax(-1)
    fields = {
        "advantage": torch.zeros(5).double(),
        "old_logp": behaviour.log(),
        "proximal_logp": proximal.log(),
        "reference_logp": reference.log(),
        "importance_weight": proximal / behaviour,
        "weight": behaviour,
        "kl_coefficient": torch.ones(5).double(),
    }
    batch = type("Batch", (), {"row_A": torch.arange(5)})
    loss, _ = algorithm.loss()({"logp": logp}, fields, batch, Denominator(tokens=1, rows=1, units=1))
    (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (true,) = torch.autograd.grad((logp.exp() * (logp - reference.log())).sum(), logits)
    torch.testing.assert_close(found, true)


def test_gmpo_reads_no_cell_of_weight_0():
    gap = torch.tensor([0.1, 0.3]).double()
    weight, rows = torch.tensor([1.0, 0.0]).double(), torch.zeros(2, dtype=torch.int64)
    given = algos.objectives.SurrogateInputs(gap, gap, torch.tensor([2.0, 0.0]).double(), weight, rows, {}, 0.5, 0.5)
    gain, _ = algos.GMPO().surrogate(given)
    assert gain[0].item() == pytest.approx(2 * np.exp(0.1))
