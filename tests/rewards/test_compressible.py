"""Rewards of pictures: what compressibility counts."""

import io

import numpy as np
import pytest

from penstock.algos.denoising import values_of
from penstock.core.types import PromptKey, Sample, SampleKey
from penstock.rewards.built_in import compressible
from penstock.rewards.runner import BUILT_IN

pytest.importorskip("PIL")


def sample_of(picture):
    columns = [np.zeros(1, kind) for kind in (bool, "f4", "i4")]
    return Sample(SampleKey(PromptKey("p", 0, 0), 0), {"state_TD": values_of(picture)[None]}, *columns, "stop")


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("shape", [(8, 8), (32, 24, 3)])
def test_it_is_minus_the_bytes_of_the_jpeg(shape):
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(noise(*shape)).save(out, "JPEG", quality=95)
    assert compressible(sample_of(noise(*shape)), {}) == -len(out.getvalue())


def test_a_blank_picture_compresses_better_than_noise():
    assert compressible(sample_of(np.zeros((32, 32), np.uint8)), {}) > compressible(sample_of(noise(32, 32)), {})


def test_a_lower_quality_has_fewer_bytes():
    one = sample_of(noise(32, 32, 3))
    assert compressible(one, {}, quality=30) > compressible(one, {})


def test_a_spec_may_name_it():
    assert BUILT_IN["compressible"] is compressible
