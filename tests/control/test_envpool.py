"""EnvPool behind the same environments: nothing is off by one where an episode is over."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("envpool")

from stage_examples import collected

from penstock.control.environments import Environments
from penstock.control.episodes import EpisodeLog
from penstock.control.stage import EnvironmentsSpec
from penstock.core.errors import SpecError


def environments(name: str, count: int = 3, seed: int = 0, **options: int) -> Environments:
    return Environments(EnvironmentsSpec(id=name, count=count, vectorization="envpool", options=options), seed)


def test_a_pole_that_falls_ends_an_episode_with_what_was_seen_last_and_the_next_step_only_resets() -> None:
    """CartPole gives 1 a step, and a last observation is beyond a limit that no other reaches."""
    found = collected(environments("CartPole-v1"), 200)
    over = found.ends.terminated_K
    assert over.sum() > 6
    last = np.abs(found.ends.observation_KF[over])
    assert ((last[:, 0] > 2.4) | (last[:, 2] > 12 * np.pi / 180)).all()
    shown = np.abs(found.observation_TNF[found.acted_TN])
    assert not ((shown[:, 0] > 2.4) | (shown[:, 2] > 12 * np.pi / 180)).any()
    assert (found.reward_TN == found.acted_TN).all()
    resets = ~found.acted_TN
    after = found.ends.step_K[over] + 1
    at = found.ends.environment_K[over][after < 200]
    assert resets.sum() == len(at)
    assert resets[after[after < 200], at].all()
    assert np.array_equal(found.start_TN[1:], resets[:-1])
    assert (np.abs(found.observation_TNF[found.start_TN]) <= 0.05).all()


def test_an_episode_that_is_out_of_time_is_truncated_after_exactly_so_many_steps() -> None:
    made = environments("HalfCheetah-v4", count=2, max_episode_steps=7)
    found, log = collected(made, 20), EpisodeLog(2)
    log.read(found)
    assert found.ends.step_K[found.ends.truncated_K].tolist() == [6, 6, 14, 14]
    assert not found.ends.terminated_K.any()
    assert log.episodes == 4
    assert (found.following_K != 0).all()


def test_environments_have_seeds_of_their_own_and_the_same_ones_after_a_reset() -> None:
    made = environments("HalfCheetah-v4", count=4)
    first = made.observation_NF.copy()
    assert len(np.unique(first[:, 0])) == 4
    made.reset(1)
    assert not np.array_equal(made.observation_NF, first)
    made.reset(0)
    assert np.array_equal(made.observation_NF, first)


def test_frames_of_a_game_are_bytes_of_four_pictures() -> None:
    made = environments("Pong-v5", count=2)
    assert made.seen.image == (4, 84, 84)
    assert made.observation_NF.dtype == np.uint8


def test_a_name_that_envpool_does_not_know_is_refused() -> None:
    with pytest.raises(SpecError, match="EnvPool has no ALE/Pong-v5"):
        environments("ALE/Pong-v5")


def test_a_ring_of_two_blocks_sees_and_decides_what_one_block_does() -> None:
    spec = EnvironmentsSpec(id="CartPole-v1", count=6, vectorization="envpool")
    one, two = (collected(Environments(spec, 3, acting=acting), 80) for acting in (False, True))
    assert np.array_equal(one.decision_TND, two.decision_TND)
    for name in ("observation_TNF", "reward_TN", "start_TN", "acted_TN", "logp_TN", "value_TN"):
        assert np.allclose(getattr(one, name), getattr(two, name), atol=1e-5), name
    order = np.lexsort((two.ends.environment_K, two.ends.step_K))
    assert np.array_equal(np.sort(one.ends.step_K), two.ends.step_K[order])
    assert np.allclose(np.sort(one.following_K), np.sort(two.following_K), atol=1e-5)
