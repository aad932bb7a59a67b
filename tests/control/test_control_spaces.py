"""Observations as rows of numbers: dictionaries, images, masks; and decisions under a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from gymnasium import spaces
from stage_examples import a_policy, an_actor

import control_examples as examples
from penstock.control.environments import Environments
from penstock.control.spaces import Observations
from penstock.control.stage import EnvironmentsSpec
from penstock.core.errors import ModelError, SpecError

BYTES = spaces.Box(0, 255, (6, 5, 3), np.uint8)


def environments(function: str, count: int = 2, **options: Any) -> Environments:
    return Environments(EnvironmentsSpec(id=f"{examples.__file__}:{function}", count=count, options=options), 0)


def test_a_dictionary_becomes_its_parts_in_order() -> None:
    space = spaces.Dict({"grid": spaces.Box(0, 1, (2, 2), np.float32), "kind": spaces.Discrete(3, start=1)})
    shown = {"grid": np.arange(4.0).reshape(1, 2, 2), "kind": np.array([2])}
    assert Observations("it", space, 2, False).rows(shown).tolist() == [[0, 1, 2, 3, 0, 1, 0]]


def test_several_discrete_values_are_one_number_an_option_each() -> None:
    space = spaces.MultiDiscrete([2, 3])
    assert Observations("it", space, 2, False).rows(np.array([[1, 0], [0, 2]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_an_image_stays_bytes_and_its_channels_come_first() -> None:
    seen = np.random.default_rng(0).integers(0, 255, (2, 6, 5, 3), dtype=np.uint8)
    found = Observations("it", BYTES, 2, False)
    assert found.image == (3, 6, 5)
    rows = found.rows(seen)
    assert rows.dtype == np.uint8
    assert np.array_equal(rows.reshape(2, 3, 6, 5)[:, 1], seen[..., 1])


def test_what_stands_next_to_a_mask_may_itself_have_parts() -> None:
    inner = spaces.Dict({"a": spaces.Box(0, 9, (1,)), "b": spaces.Discrete(2)})
    found = Observations("it", spaces.Dict({"action_mask": spaces.MultiBinary(2), "seen": inner}), 2, False)
    shown = {"action_mask": np.array([[1, 0]]), "seen": {"a": np.array([[5.0]]), "b": np.array([1])}}
    assert found.rows(shown).tolist() == [[5, 0, 1, 1, 0]]


def test_an_image_within_a_dictionary_comes_first_and_the_other_parts_after_its_convolutions() -> None:
    found = Observations("it", spaces.Dict({"arm": spaces.Box(-9, 9, (2,)), "eye": BYTES}), 2, False)
    eye = np.random.default_rng(0).integers(0, 255, (2, 6, 5, 3), dtype=np.uint8)
    rows = found.rows({"arm": np.array([[0.5, 1], [2, 3]]), "eye": eye})
    assert (rows.dtype, rows.shape, found.image) == (np.float32, (2, 92), (3, 6, 5))
    assert rows[:, -2:].tolist() == [[0.5, 1], [2, 3]]
    network = a_policy(92, (2,), image=found.image, convolutions=((2, 3, 1),)).network
    seen = network.trunk[0](torch.from_numpy(rows))
    assert seen.shape == (2, 2 * 4 * 3 + 2)
    assert torch.equal(seen[:, -2:], torch.from_numpy(rows[:, -2:]))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict({"eye": BYTES, "other": spaces.Tuple((BYTES,))}), r"it\.other\.0 is a second image"),
        (spaces.Text(5), "observations of Text"),
        (spaces.Dict({"way": spaces.Sequence(spaces.Discrete(2))}), r"it\.way"),
    ],
)
def test_spaces_that_are_not_known_are_refused_by_name(space: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Observations("it", space, 2, False)


@pytest.mark.parametrize("mode", ["info", "entry"])
def test_a_forbidden_option_is_never_chosen_and_has_no_share_of_the_log_prob(mode: str) -> None:
    """Of three options one is forbidden, another each step: log-probs are those of two."""
    found = environments("masked", mode=mode)
    actor = an_actor(found, 40, masked=True)
    fragment, policy = actor.collect(0), actor.policy
    forbidden = fragment.observation_TNF[..., 0].astype(int) % 3
    assert (fragment.decision_TND[..., 0] != forbidden).all()
    rows = torch.from_numpy(fragment.observation_TNF).flatten(0, 1)
    numbers = policy.network(rows)[0][:, :-1]
    taken = torch.from_numpy(fragment.decision_TND).flatten(0, 1)
    measured = policy.decisions.measured(numbers, taken, frozenset({"logp", "entropy"}))
    kept = torch.stack([torch.cat((row[:at], row[at + 1 :])) for row, at in zip(numbers, forbidden.ravel(), strict=True)])
    expected = torch.distributions.Categorical(logits=kept)
    assert torch.allclose(measured["entropy"], expected.entropy(), atol=1e-5)
    assert torch.allclose(torch.from_numpy(fragment.logp_TN).flatten(), measured["logp"], atol=1e-5)


def test_a_mask_that_forbids_everything_is_refused() -> None:
    with pytest.raises(SpecError, match="forbids every action"):
        environments("masked", mode="info", nothing=True)


def test_bytes_of_an_image_are_scaled_once_to_between_0_and_1() -> None:
    policy = a_policy(12, (2,), image=(3, 2, 2), convolutions=((2, 1, 1),))
    whole = policy.network.trunk[0](torch.full((1, 12), 255, dtype=torch.uint8))
    assert whole.shape == (1, 3, 2, 2)
    assert torch.equal(whole, torch.ones(1, 3, 2, 2))


def test_an_image_smaller_than_a_kernel_is_refused() -> None:
    with pytest.raises(ModelError, match="kernel of 8 on 6 × 5"):
        a_policy(90, (2,), image=(3, 6, 5), convolutions=((32, 8, 4),))
