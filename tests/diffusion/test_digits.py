"""The recipe of handwritten digits: what its judges see, and a short run of it with its pictures."""

import re
from dataclasses import replace

import numpy as np
import pytest
from training import assert_same_tensors, digits_run, metric, stopped_and_whole

from penstock.algos.denoising import picture_of, values_of
from penstock.algos.diversity import mean_distance
from penstock.core.errors import DataError
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.data.pictures import png
from tiers import LANGUAGE

digits = pytest.importorskip("penstock.recipes.digits")
pytest.importorskip("sklearn")


def group_of(pictures):
    key = PromptKey("digits", 0, 0)
    columns = [np.zeros(1, kind) for kind in (bool, "f4", "i4")]
    states = [{"state_TD": values_of(picture)[None]} for picture in pictures]
    samples = [Sample(SampleKey(key, n), state, *columns, "stop") for n, state in enumerate(states)]
    return Group(Prompt(key, "7"), tuple(samples))


def test_a_picture_survives_the_values_of_a_denoiser():
    picture = np.arange(64, dtype=np.uint8).reshape(8, 8)
    (sample,) = group_of([picture]).samples
    assert np.array_equal(picture_of(sample)[..., 0], picture)


@pytest.mark.parametrize("wrong", [np.zeros((8, 8), np.float32), np.zeros(64, np.uint8)])
def test_another_array_is_no_picture(wrong):
    with pytest.raises(DataError, match="a picture is uint8"):
        values_of(wrong)


def test_judges_read_pictures_that_they_have_not_seen():
    pictures, labels = digits.half(1)
    sevens = group_of(pictures[labels == 7][:40])
    assert np.mean(digits.likeness(sevens, {"digit": "7"})) > 0.9
    assert np.mean(digits.likeness(sevens, {"digit": "1"})) < 0.05
    pictures, labels = digits.half(0)
    assert np.mean(digits.gold(group_of(pictures[labels == 7][:40]), {"digit": "7"})) > 0.95


def test_a_real_picture_is_at_no_distance_and_a_blank_one_is_far():
    pictures, _ = digits.half(0)
    assert digits.nearest(group_of([pictures[3]]), {}) == [pytest.approx(0.0, abs=1e-6)]
    assert digits.nearest(group_of([np.full((8, 8), 255, np.uint8)]), {})[0] > 1.0


def test_what_draft_follows_is_the_logarithm_of_the_reward():
    torch = pytest.importorskip("torch")
    pictures, _ = digits.half(1)
    group = group_of(pictures[:20])
    states = torch.from_numpy(np.stack([sample.columns["state_TD"][-1] for sample in group.samples]))
    found = digits.likelihood(states, ["7"] * 20).exp()
    assert found.tolist() == pytest.approx(digits.likeness(group, {"digit": "7"}), abs=1e-5)


def test_the_distance_between_pictures_is_the_mean_over_pairs_by_hand():
    """Of 0, 1 and 3: distances 1, 3 and 2."""
    assert mean_distance(np.array([[0.0, 0.0], [1.0, 1.0], [3.0, 3.0]])) == pytest.approx(2.0)
    assert mean_distance(np.zeros((1, 2))) == 0.0


def test_half_of_the_labels_are_wrong():
    rows, (_, labels) = digits.mislabelled(seed=0), digits.half(0)
    right = np.mean([row["digit"] == str(label) for row, label in zip(rows, labels, strict=True)])
    assert right == pytest.approx(0.55, abs=0.04)


def test_a_small_picture_is_enlarged_to_be_seen():
    import io

    from PIL import Image

    found = Image.open(io.BytesIO(png(np.zeros((8, 4, 3), np.uint8))))
    assert (found.size, found.mode) == ((96, 192), "RGB")


@pytest.mark.learning(*LANGUAGE)
@pytest.mark.parametrize("algorithm", ["flow", "ddpo", "ddpo_sf"])
def test_a_short_run_learns_and_its_report_shows_pictures(algorithm, tmp_path):
    from penstock.runtime import launch
    from penstock.ui.report import write_report

    launch(digits_run(algorithm, 150, every=0, steps=6), tmp_path / "run")
    assert max(metric(tmp_path / "run", "mismatch/max")) < 1e-5, "the generator's log-probs are the learner's"
    page = write_report(tmp_path / "run").read_text()
    assert re.search(r'<img alt="a picture that the policy made" src="data:image/png;base64', page)
    assert "img-src data:" in page, "or a browser shows none of them"


@pytest.mark.parametrize("algorithm", ["ddpo", "raft", "draft", "nft"])
def test_a_run_that_was_stopped_ends_as_it_would_have_bit_for_bit(algorithm, tmp_path):
    """With the rewards of earlier batches (DDPO), which two batches of a prompt are measured by; where a learner follows its
    own pictures; and with a slow copy of the weights (NFT)."""
    from penstock.algos import TrackedRewards

    run = digits_run(algorithm, steps=4, batch=4, samples=4, minibatches=2, evaluation=None)
    changes = {"ddpo": {"history": TrackedRewards(least=4)}, "nft": {"every": 4, "rise": 0.2}}.get(algorithm, {})
    second = replace(run.stages[1], algorithm=replace(run.stages[1].algorithm, **changes))
    run = replace(run, stages=(run.stages[0], second), headline="")
    assert_same_tensors(*stopped_and_whole(run, tmp_path, "model.safetensors"))
