"""Differences of images: exact whatever the bytes, small where little has changed, refused where they are damaged."""

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.core.errors import WeightError
from penstock.weights.disk import PARTS, apply, difference

images = hnp.arrays(np.uint8, st.integers(0, 200).map(lambda n: 2 * n))


def applied(old, new):
    found = old.copy()
    apply(found, difference(old, new))
    return found


def test_two_changed_values_by_hand():
    old = np.zeros(2000, np.uint8)
    new = old.copy()
    new[6:8] = (3, 1)
    new[1500:1502] = (0, 255)
    parts = {name: np.frombuffer(zlib.decompress(part), np.uint8) for name, part in difference(old, new).items()}
    assert parts["gaps"].tolist() == [3, 255]  # three pairs before the first; too many before the second
    assert parts["wide"].view("<u8").tolist() == [746]
    assert parts["values"].tolist() == [3, 0, 1, 255]


@given(images, st.integers(0, 99), st.floats(0, 1))
def test_old_and_difference_give_new(old, seed, share):
    rng = np.random.default_rng(seed)
    new = np.where(rng.random(len(old)) < share, rng.integers(0, 256, len(old)), old).astype(np.uint8)
    assert applied(old, new).tobytes() == new.tobytes()


@pytest.mark.parametrize("distance", [254, 255, 256, 70_000])
def test_any_distance_between_changes_is_kept(distance):
    old, new = np.zeros(300_000, np.uint8), np.zeros(300_000, np.uint8)
    new[[0, 2 * distance, 299_998]] = 1
    assert np.array_equal(applied(old, new), new)


def test_nothing_changed_is_a_few_bytes():
    image = np.random.default_rng(0).integers(0, 256, 1 << 20).astype(np.uint8)
    assert sum(part.nbytes for part in difference(image, image).values()) < 40


def test_one_step_of_a_small_rate_in_bfloat16_is_a_tenth_at_most():
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(1 << 18, generator=rng) * 0.088
    moved = weights - 1e-5 * torch.randn(1 << 18, generator=rng).sign()
    old, new = (x.to(torch.bfloat16).view(torch.uint8).numpy() for x in (weights, moved))
    assert 10 * sum(part.nbytes for part in difference(old, new).values()) < old.nbytes


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("spoil", [lambda part: part[:-3], lambda part: part[::-1], lambda part: part[:0]])
def test_damaged_parts_are_refused(name, spoil):
    rng = np.random.default_rng(0)
    old = rng.integers(0, 256, 40_000).astype(np.uint8)
    new = old.copy()
    new[::3000] ^= 7
    parts = difference(old, new)
    parts[name] = np.ascontiguousarray(spoil(parts[name]))
    with pytest.raises(WeightError, match="malformed"):
        apply(old.copy(), parts)


def test_a_difference_of_a_larger_image_is_refused():
    old, new = np.zeros(4000, np.uint8), np.ones(4000, np.uint8)
    with pytest.raises(WeightError, match="malformed"):
        apply(np.zeros(100, np.uint8), difference(old, new))


def test_a_difference_that_would_fill_the_memory_is_refused():
    bomb = np.frombuffer(zlib.compress(bytes(50 << 20)), np.uint8)
    parts = dict.fromkeys(PARTS, bomb)
    with pytest.raises(WeightError, match="more than 50 bytes"):
        apply(np.zeros(100, np.uint8), parts)
