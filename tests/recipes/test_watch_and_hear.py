"""The recipes watch and hear: their rows, short runs in one process and in several, and (slow) that they learn."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.recipes import hear as hearing
from penstock.recipes import watch as watching
from penstock.runtime import launch

RECIPES = {"watch": watching.watch, "hear": hearing.hear}
COLUMNS = {"watch": (watching.questions, "video"), "hear": (hearing.questions, "audio")}


def short(recipe, **changes):
    """Two steps of each stage on few rows."""
    run = RECIPES[recipe](imitated=2, steps=2)
    sft, grpo = run.stages
    evaluation = replace(grpo.evaluation, data=replace(grpo.evaluation.data, size=6, shuffle=False))
    sft = replace(sft, batch=4, data=replace(sft.data, size=64, shuffle=False), evaluation=None)
    grpo = replace(grpo, batch=4, samples=4, evaluation=evaluation)
    return replace(run, stages=(sft, grpo), headline="", **changes)


def content(row, column):
    return row[column][0].tobytes() if column == "audio" else row[column].tobytes()


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_fifth_medium_is_held_out(recipe):
    questions, column = COLUMNS[recipe]
    train, held_out = questions(False), questions(True)
    assert len(train) == 4 * len(held_out)
    assert not {content(row, column) for row in train} & {content(row, column) for row in held_out}


def test_no_frame_tells_which_way_a_square_moves():
    """A film that is shown backwards is one of the opposite way, so the middle of its square says nothing."""
    films, ways = watching.films(200, seed=0)
    assert films.shape == (200, watching.FRAMES, watching.SIDE, watching.SIDE)
    assert films.dtype == np.uint8
    assert set(ways) == set(watching.WAYS)
    y, x = np.mgrid[: watching.SIDE, : watching.SIDE]
    for film, way in zip(films, ways, strict=True):
        bright = film >= 150
        path = np.array([[(y * frame).sum() / frame.sum(), (x * frame).sum() / frame.sum()] for frame in bright])
        assert ((path[-1] - path[0]) @ watching.WAYS[way]) > 6
        assert path.mean(0).min() > 6
        assert path.mean(0).max() < 17


def test_tones_have_the_pitch_of_their_names():
    """The loudest frequency is the note's or an overtone's, within a fifth of a half tone and a bin of the spectrum."""
    for tone, name in zip(*hearing.tones(40, seed=0), strict=True):
        spectrum = np.abs(np.fft.rfft(tone * np.hanning(len(tone)), 8 * len(tone)))
        found = np.fft.rfftfreq(8 * len(tone), 1 / hearing.RATE)[spectrum.argmax()]
        half_tones = 12 * np.log2(found / 440)
        assert abs(half_tones - hearing.NOTES[name]) < 0.35


def trained(result):
    """The metrics of the steps of GRPO."""
    return [event["values"] for event in result.metrics if "mismatch/max" in event["values"]]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_short_run_begins_at_ratio_one_and_logs_its_media(recipe, tmp_path):
    result = launch(short(recipe), tmp_path / "run")
    steps = trained(result)
    assert len(steps) == 2
    assert steps[0]["mismatch/max"] < 1e-4
    assert steps[0]["max/ratio_deviation"] < 1e-4
    seen = [row for event in result.samples for row in event["rows"]]
    kinds = {blob["kind"] for row in seen for blob in row["blobs"]}
    assert kinds == {"image/apng" if recipe == "watch" else "audio/wav"}
    assert all((tmp_path / "run" / "blobs" / blob["hash"]).is_file() for row in seen for blob in row["blobs"])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_short_run_in_processes_has_the_same_log_probs_in_generator_and_learner(recipe, tmp_path):
    steps = trained(launch(short(recipe, runtime="procs"), tmp_path / "run"))
    assert len(steps) == 2
    assert max(step["mismatch/max"] for step in steps) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_grpo_takes_over_where_imitation_ended(recipe, tmp_path):
    result = launch(RECIPES[recipe](seed=1, steps=60), tmp_path / "run")
    stages = result.summary["stages"]
    assert stages["sft"]["last"]["evaluation/reward"] < 0.7
    assert stages["grpo"]["last"]["evaluation/reward"] > 0.9
