"""Labelling: from scored groups to rows, for every online algorithm."""

from dataclasses import replace

import numpy as np
import pytest
from algo_examples import group, sample

from penstock import algos
from penstock.algos import GRPO, PPO, KLPenalty, LeaveOneOut, label_metrics
from penstock.algos.labels import rewards_of_actions, trajectories
from penstock.core.errors import TrainingError

GROUP = group(sample([2, 3, 6], 1.0), sample([4, 6], 0.0), sample([6], 2.0))
IN_REWARD = KLPenalty(place="reward", coefficient=0.1)
IN_LOSS = KLPenalty(place="loss", estimator="k3", coefficient=0.1)


def columns(groups, *, reference=-1.5, value=0.0):
    """Columns of one constant each."""
    shapes = [[int(item.action_T.sum()) for item in members.samples] for members in groups]
    return {
        "reference": [[np.full(length, reference, np.float32) for length in lengths] for lengths in shapes],
        "value": [[np.full(length, value, np.float32) for length in lengths] for lengths in shapes],
    }


def label(algorithm, *groups, **constants):
    return algorithm.label(groups, columns(groups, **constants), algorithm.initial_coefficients())


def field(unit, name):
    return [row.fields[name] if np.isscalar(row.fields[name]) else row.fields[name].tolist() for row in unit]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (GRPO(scale="none"), [0, -1, 1]),  # rewards 1 0 2, mean 1
        (GRPO(), [0, -1 / 1.000001, 1 / 1.000001]),  # deviation 1
        (LeaveOneOut(), [0, -1.5, 1.5]),  # 1 - (0+2)/2, 0 - (1+2)/2, 2 - (1+0)/2
    ],
)
def test_every_token_of_a_sample_shares_its_advantage(algorithm, expected):
    (unit,) = label(algorithm, GROUP)
    for row, advantage, length in zip(unit, expected, [3, 2, 1], strict=True):
        np.testing.assert_allclose(row.fields["advantage"], [advantage] * length, atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (GRPO(aggregate="token"), [1, 1, 1]),
        (GRPO(aggregate="sequence"), [1 / 3, 1 / 2, 1]),
        (GRPO(aggregate="constant", constant=8), [1 / 8, 1 / 8, 1 / 8]),
        (LeaveOneOut(aggregate="sequence"), [1 / 3, 1 / 2, 1]),
    ],
)
def test_weights_follow_the_aggregate(algorithm, expected):
    (unit,) = label(algorithm, GROUP)
    assert [weight[0] for weight in field(unit, "weight")] == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", [GRPO(), LeaveOneOut(), PPO()])
def test_rows_carry_the_tokens_and_log_probs_of_their_samples(algorithm):
    (unit,) = label(algorithm, GROUP)
    for row, drawn in zip(unit, GROUP.samples, strict=True):
        np.testing.assert_array_equal(row.tokens_T, drawn.tokens_T)
        np.testing.assert_array_equal(row.action_T, drawn.action_T)
        np.testing.assert_array_equal(row.fields["old_logp"], drawn.logp_T[drawn.action_T])


EVERY = [
    GRPO(),
    GRPO(scale="none"),
    GRPO(scale="batch"),
    GRPO(supervision="process"),
    GRPO(supervision="turn", scale="none"),
    LeaveOneOut(),
    PPO(),
    algos.REINFORCE(),
    algos.ReinforcePlusPlus(),
    algos.ReinforcePlusPlus(baseline="group"),
    algos.OPO(),
    algos.GPG(),
    algos.PassAtK(k=2, right=0.5),
    algos.PKPO(k=2),
]


@pytest.mark.parametrize("broken", [sample([5], 100.0, error="RewardError: late"), sample([5], None), sample([], 100.0)])
@pytest.mark.parametrize("algorithm", EVERY)
def test_a_failed_unscored_or_empty_sample_changes_nothing_for_its_siblings(algorithm, broken):
    members = [sample([2, 3, 6], [1.0, 0.0, 2.0]), sample([4, 6], 0.0), sample([6], 2.0)]
    (alone,), (beside,) = label(algorithm, group(*members)), label(algorithm, group(broken, *members))
    assert field(beside, "advantage") == field(alone, "advantage")


def test_a_failed_sample_does_not_shift_the_columns_of_its_siblings():
    members = group(sample([5, 5], None), sample([2, 6], 1.0))
    filled = {"value": [[np.array([9.0, 9.0]), np.array([0.25, 0.5])]]}
    ((row,),) = PPO(whiten=False).label([members], filled, {})
    assert row.fields["old_value"].tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("algorithm", "reward"),
    [(GRPO(), 1.0), (LeaveOneOut(), 1.0), (GRPO(), None), (LeaveOneOut(), None), (PPO(), None)],
)
def test_a_group_that_failures_left_too_few_samples_is_left_out(algorithm, reward):
    assert label(algorithm, group(sample([2], reward), sample([3], None))) == []


def test_ppo_trains_on_a_single_sample():
    assert len(label(PPO(), group(sample([2, 6], 1.0)))) == 1


@pytest.mark.parametrize("algorithm", [GRPO, LeaveOneOut])
def test_flat_groups_are_kept_unless_asked_otherwise(algorithm):
    flat = group(sample([2], 0.1), sample([3, 6], 0.1), sample([4], 0.1))
    assert len(label(algorithm(), flat, GROUP)) == 2
    assert len(label(algorithm(skip_flat=True), flat, GROUP)) == 1


@pytest.mark.parametrize(
    ("reward", "expected"),
    [(1.0, [0, 0, 1]), ([0.5, -1.0, 2.0], [0.5, -1.0, 2.0])],
    ids=["a terminal one lands on the last action token", "those of tokens stay where they are"],
)
def test_rewards_land_on_action_tokens(reward, expected):
    # discount and lambda 0 leave the reward of each step alone; the values are zero
    (unit,) = label(PPO(discount=0.0, lam=0.0, whiten=False), group(sample([2, 3, 6], reward), sample([4, 6], 2.0)))
    assert field(unit, "advantage") == [expected, [0, 2]]


def test_a_reward_on_an_observation_counts_for_the_action_before_it():
    drawn = sample([2, 3, 4, 6], 1.0)
    drawn = replace(drawn, action_T=np.array([False, True, False, False, True]))
    drawn = replace(drawn, reward_T=np.array([0, 0.5, 0.25, 2, 1], np.float32))
    assert rewards_of_actions(drawn)[0].tolist() == [2.75, 1.0]


def test_a_reward_before_the_first_action_is_refused():
    drawn = replace(sample([2], 1.0), reward_T=np.array([1, 1], np.float32))
    with pytest.raises(TrainingError, match="before the first action"):
        rewards_of_actions(drawn)


@pytest.mark.parametrize(
    ("reward", "problem"),
    [(float("nan"), "test/0/0#1: a reward is not finite"), (3e38, r"beyond ±1e\+09; scale rewards")],
    ids=["not finite", "too large for the squares of float32"],
)
def test_a_reward_that_cannot_be_computed_with_is_refused_by_name(reward, problem):
    with pytest.raises(TrainingError, match=problem):
        trajectories([group(sample([2], 1.0), sample([2], reward))], {})


def test_ppo_labels_by_hand():
    # reward 1 at the end; values 0.5 each; discount 1, lambda 0.5; penalty 0.1 * (-1 - -1.5) = 0.05 on both tokens
    # errors: -0.05 + 0.5 - 0.5 = -0.05; 0.95 + 0 - 0.5 = 0.45; advantages: 0.45; -0.05 + 0.5*0.45 = 0.175
    algorithm = PPO(lam=0.5, whiten=False, kl=IN_REWARD)
    ((row,),) = label(algorithm, group(sample([2, 6], 1.0)), value=0.5)
    np.testing.assert_allclose(row.fields["advantage"], [0.175, 0.45], atol=1e-6)
    np.testing.assert_allclose(row.fields["return"], [0.675, 0.95], atol=1e-6)


def test_ppo_whitens_over_the_batch_and_leaves_returns_alone():
    groups = group(sample([2, 6], 1.0)), group(sample([3], -1.0), ordinal=1)
    white, plain = label(PPO(), *groups), label(PPO(whiten=False), *groups)
    tokens = np.concatenate([row.fields["advantage"] for unit in white for row in unit])
    assert (tokens.mean(), tokens.std(ddof=1)) == pytest.approx((0, 1), abs=1e-6)
    assert [field(unit, "return") for unit in white] == [field(unit, "return") for unit in plain]


@pytest.mark.parametrize("algorithm", [GRPO(scale="none", kl=IN_REWARD), LeaveOneOut(kl=IN_REWARD)])
def test_a_penalty_in_the_reward_counts_once_per_token(algorithm):
    # rewards 1 and 1; penalties 3 * 0.05 and 1 * 0.05; so 0.85 and 0.95
    (unit,) = label(algorithm, group(sample([2, 3, 6], 1.0), sample([6], 1.0)))
    gap = unit[1].fields["advantage"][0] - unit[0].fields["advantage"][0]
    assert gap == pytest.approx({GRPO: 0.1, LeaveOneOut: 0.2}[type(algorithm)], abs=1e-6)


def test_the_reward_that_is_reported_is_the_one_before_penalties():
    (unit,) = label(GRPO(kl=IN_REWARD), GROUP)
    assert field(unit, "reward") == [1.0, 0.0, 2.0]


@pytest.mark.parametrize("algorithm", [GRPO(kl=IN_LOSS), LeaveOneOut(kl=IN_LOSS), PPO(kl=IN_LOSS)])
def test_a_penalty_in_the_loss_travels_with_the_coefficient_in_force(algorithm):
    (unit,) = algorithm.label([GROUP], columns([GROUP]), {"kl": 0.3})
    assert field(unit, "kl_coefficient") == [0.3, 0.3, 0.3]
    assert field(unit, "reference_logp")[1] == [-1.5, -1.5]


@pytest.mark.parametrize(
    ("algorithm", "groups", "filled", "problem"),
    [
        (GRPO(kl=IN_LOSS), 1, {}, '"reference" column, which was not filled'),
        (LeaveOneOut(kl=IN_REWARD), 1, {}, '"reference" column, which was not filled'),
        (PPO(), 1, {}, '"value" column, which was not filled'),
        (PPO(), 1, {"value": [[np.zeros(3), np.zeros(3), np.zeros(1)]]}, r"test/0/0#1.*\(3,\).*\(2,\)"),
        (PPO(), 2, columns([GROUP]), "1 groups, the batch 2"),
    ],
    ids=["reference missing", "reference missing in the reward", "value missing", "of the wrong length", "of too few groups"],
)
def test_a_column_that_does_not_fit_is_refused_by_name(algorithm, groups, filled, problem):
    with pytest.raises(TrainingError, match=problem):
        algorithm.label([GROUP] * groups, filled, algorithm.initial_coefficients())


@pytest.mark.parametrize(
    ("algorithm", "needs"),
    [
        (GRPO(), set()),
        (GRPO(kl=IN_LOSS), {"reference"}),
        (PPO(), {"value"}),
        (PPO(kl=IN_REWARD), {"value", "reference"}),
    ],
)
def test_needs_follow_the_penalty(algorithm, needs):
    assert algorithm.needs == needs


def test_label_metrics_by_hand():
    # three rows of 3, 2 and 1 tokens; old - reference is 0.5 a token: 3.0 over 3 rows
    algorithm = GRPO(scale="none", kl=IN_LOSS)
    metrics = label_metrics(label(algorithm, GROUP, group(sample([2], 4.0), sample([3], 4.0), ordinal=1)))
    assert metrics["batch/units"] == 2
    assert metrics["batch/rows"] == 5
    assert metrics["batch/tokens"] == 8
    assert metrics["batch/flat"] == 0.5
    assert metrics["reward/mean"] == pytest.approx((1 + 0 + 2 + 4 + 4) / 5)
    assert metrics["advantage/mean"] == pytest.approx((3 * 0 + 2 * -1 + 1 * 1) / 8)
    assert metrics["entropy/sampled"] == pytest.approx(1.0)
    assert metrics["kl/reference"] == pytest.approx(8 * 0.5 / 5)
    assert metrics["kl/coefficient"] == pytest.approx(0.1)


def test_label_metrics_tell_how_well_the_critic_predicts():
    # returns of both rows equal their rewards 1 and 3; values 1 and 2: residual variance of (0, 1) over variance of (1, 3)
    groups = [group(sample([2], 1.0), sample([3], 3.0))]
    units = PPO(lam=1.0).label(groups, {"value": [[np.array([1.0]), np.array([2.0])]]}, {})
    metrics = label_metrics(units)
    assert (metrics["return/mean"], metrics["value/mean"]) == pytest.approx((2.0, 1.5))
    assert metrics["value/explained_variance"] == pytest.approx(1 - 0.25 / 1)


def test_label_metrics_of_nothing_count_zero():
    assert label_metrics([]) == {"batch/units": 0, "batch/rows": 0, "batch/tokens": 0}


AIMED = KLPenalty(place="reward", coefficient=0.1, target=1.0, horizon=100)


@pytest.mark.parametrize(
    ("penalty", "measured", "expected"),
    [
        (AIMED, label_metrics(label(PPO(kl=AIMED), GROUP)), 0.1),  # 6 * 0.5 / 3 = 1.0, the target exactly
        (AIMED, {"kl/reference": 1.1, "batch/rows": 10}, 0.1 * (1 + 0.1 * 10 / 100)),
        (AIMED, label_metrics([]), 0.1),
        (IN_REWARD, {"kl/reference": 99.0, "batch/rows": 8}, 0.1),
    ],
    ids=["on target", "above it", "a batch without rows", "no target"],
)
def test_the_control_moves_by_what_was_measured(penalty, measured, expected):
    algorithm = PPO(kl=penalty)
    start = algorithm.initial_coefficients()
    assert algorithm.adapt(start, measured)["kl"] == pytest.approx(expected)
    assert start["kl"] == 0.1


def test_a_steered_coefficient_without_a_measurement_is_refused():
    algorithm = PPO(kl=KLPenalty(place="reward", coefficient=0.1, target=1.0))
    with pytest.raises(TrainingError, match="kl/reference"):
        algorithm.adapt({"kl": 0.1}, {"batch/rows": 8})
