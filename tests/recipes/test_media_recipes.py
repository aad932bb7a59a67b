"""The recipes see, watch and hear: their rows, short runs in one process and in several, and that they learn."""

import numpy as np
import pytest
from media_runs import shortened, trained

from penstock.core.errors import DataError
from penstock.recipes import hear, see, watch
from penstock.runtime import launch
from tiers import LANGUAGE

RECIPES = {"see": see.see, "watch": watch.watch, "hear": hear.hear}
QUESTIONS = {
    "see": lambda held_out: see.questions("shapes", held_out),
    "watch": watch.questions,
    "hear": hear.questions,
}
COLUMNS = {"see": "image", "watch": "video", "hear": "audio"}
KINDS = {"see": "image/png", "watch": "image/apng", "hear": "audio/wav"}


def short(recipe, **changes):
    """Two steps of each stage on few rows."""
    more = {"pictures": "shapes"} if recipe == "see" else {}
    return shortened(RECIPES[recipe](imitated=2, steps=2, **more), **changes)


def contents(recipe, held_out):
    """The media of a part, as bytes."""
    found = [row[COLUMNS[recipe]] for row in QUESTIONS[recipe](held_out)]
    return [(one[0] if recipe == "hear" else one).tobytes() for one in found]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_fifth_medium_is_held_out(recipe):
    train, held_out = contents(recipe, False), contents(recipe, True)
    assert len(train) == 4 * len(held_out)
    assert len(held_out) == 400 or recipe != "see"
    assert not set(train) & set(held_out)


def test_shapes_are_grey_pictures_of_all_kinds():
    pictures, names = see.shapes(40, seed=0)
    assert pictures.shape == (40, see.SIDE, see.SIDE)
    assert pictures.dtype == np.uint8
    assert set(names) == set(see.SHAPES)


def test_digits_are_enlarged_handwriting():
    pytest.importorskip("sklearn")
    rows = see.questions("digits", False)
    assert rows[0]["image"].shape == (see.SIDE, see.SIDE)
    assert {row["answer"] for row in rows} == set(see.DIGITS)
    assert (rows[0]["image"][::3, ::3] == rows[0]["image"][1::3, 2::3]).all()


def test_without_scikit_learn_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'penstock\[digits\]', or --pictures shapes"):
        see.questions("digits", False)


def test_no_frame_tells_which_way_a_square_moves():
    """A film that is shown backwards is one of the opposite way, so the middle of its square says nothing."""
    films, ways = watch.films(200, seed=0)
    assert films.shape == (200, watch.FRAMES, watch.SIDE, watch.SIDE)
    assert films.dtype == np.uint8
    assert set(ways) == set(watch.WAYS)
    y, x = np.mgrid[: watch.SIDE, : watch.SIDE]
    for film, way in zip(films, ways, strict=True):
        bright = film >= 150
        path = np.array([[(y * frame).sum() / frame.sum(), (x * frame).sum() / frame.sum()] for frame in bright])
        assert ((path[-1] - path[0]) @ watch.WAYS[way]) > 6
        assert path.mean(0).min() > 6
        assert path.mean(0).max() < 17


def test_tones_have_the_pitch_of_their_names():
    """The loudest frequency is the note's or an overtone's, within a fifth of a half tone and a bin of the spectrum."""
    for tone, name in zip(*hear.tones(40, seed=0), strict=True):
        spectrum = np.abs(np.fft.rfft(tone * np.hanning(len(tone)), 8 * len(tone)))
        found = np.fft.rfftfreq(8 * len(tone), 1 / hear.RATE)[spectrum.argmax()]
        half_tones = 12 * np.log2(found / 440)
        assert abs(half_tones - hear.NOTES[name]) < 0.35


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_short_run_begins_at_ratio_one_and_stores_each_medium_once(recipe, tmp_path):
    result = launch(short(recipe), tmp_path / "run")
    steps = trained(result)
    assert len(steps) == 2
    assert steps[0]["mismatch/max"] < 1e-4
    assert steps[0]["max/ratio_deviation"] < 1e-4
    seen = [row for event in result.samples for row in event["rows"]]
    assert {blob["kind"] for row in seen for blob in row["blobs"]} == {KINDS[recipe]}
    assert all((tmp_path / "run" / "blobs" / blob["hash"]).is_file() for row in seen for blob in row["blobs"])
    stored = len(list((tmp_path / "run" / "blobs").iterdir()))
    if recipe == "see":
        assert "<image>" in seen[0]["prompt"]
        assert 8 < stored <= len({*contents("see", False), *contents("see", True)})


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_short_run_in_processes_has_the_same_log_probs_in_generator_and_learner(recipe, tmp_path):
    steps = trained(launch(short(recipe, runtime="procs"), tmp_path / "run"))
    assert len(steps) == 2
    assert max(step["mismatch/max"] for step in steps) < 1e-4


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.learning(*LANGUAGE)
def test_grpo_takes_over_where_imitation_ended(recipe, tmp_path):
    if recipe == "see":
        pytest.importorskip("sklearn")
    stages = launch(RECIPES[recipe](steps=60, **({} if recipe == "see" else {"seed": 1})), tmp_path / "run").summary["stages"]
    imitated, learned = (stages[stage]["last"]["evaluation/reward"] for stage in ("sft", "grpo"))
    if recipe == "see":
        assert learned > imitated + 0.1
    else:
        assert imitated < 0.7
        assert learned > 0.9
