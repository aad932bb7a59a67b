"""The recipe look: its rows, what its environment shows, short runs in one process and in several, that it learns."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from media_runs import shortened, trained

from penstock.algos.grpo import GRPO
from penstock.algos.kl import KLPenalty
from penstock.envs.env import Said
from penstock.recipes.look import PLACES, Album, albums, look
from penstock.runtime import launch
from tiers import LANGUAGE


def short(**changes):
    """Two steps of each stage on few rows, with a reference."""
    run = look(imitated=2, steps=2)
    shows = replace(run.stages[1].environment, function=f"{__file__}:Shows")
    kl = KLPenalty(place="reward", coefficient=0.1)
    return shortened(run, GRPO(clip=(0.2, 0.28), kl=kl), shows, **changes)


class Shows(Album):
    """Shows a picture whatever is said."""

    async def step(self, said):
        return await super().step(said if self.shown else replace(said, text=PLACES[0]))


def step(album, text, turn):
    return asyncio.run(album.step(Said(text, text, np.zeros(0, np.int32), "stop", turn, None)))


def test_held_out_albums_have_pictures_of_their_own():
    seen, kept = ({picture.tobytes() for row in albums(held) for picture in row["album"]} for held in (False, True))
    assert not seen & kept


def test_places_are_imitated_at_random_and_answers_are_right():
    rows = albums(held_out=False, imitated=True)
    guesses = [row["said"] == row["text"][len("which shape is ")] for row in rows if "image" not in row]
    assert 0.25 < np.mean(guesses) < 0.42
    assert {row["said"] for row in rows if "image" in row} == {"circle", "square", "cross", "stripes"}


def test_an_album_shows_the_picture_that_is_asked_for_and_rewards_the_answer():
    row = albums(held_out=True)[0]
    album = Album(row)
    place = PLACES[row["place"]]
    shown = step(album, f" {place}", 0)
    assert np.array_equal(shown.observation[0]["image"], row["album"][row["place"]])
    assert (shown.terminated, shown.metrics["right_place"]) == (False, 1.0)
    ended = step(album, f" {row['answer']}", 1)
    assert (ended.terminated, ended.reward) == (True, 1.0)


def test_who_asks_for_no_place_is_shown_nothing():
    ended = step(Album(albums(held_out=True)[0]), "abc", 0)
    assert (ended.terminated, ended.reward, ended.observation) == (True, 0.0, None)


@pytest.mark.parametrize("runtime", ["local", "procs"])
def test_generator_learner_and_reference_agree_about_what_is_shown_in_the_second_turn(runtime, tmp_path):
    result = launch(short(runtime=runtime), tmp_path / "run")
    steps = trained(result)
    assert len(steps) == 2
    assert max(values["mismatch/max"] for values in steps) < 1e-4
    assert steps[0]["max/ratio_deviation"] < 1e-4
    assert abs(steps[0]["kl/reference"]) < 1e-4
    seen = [row for event in result.samples for row in event["rows"]]
    assert any(blob["of"] == "sample" for row in seen for blob in row.get("blobs", ()))


@pytest.mark.learning(*LANGUAGE)
def test_grpo_learns_to_ask_for_the_right_picture(tmp_path):
    values = launch(look(), tmp_path / "run").summary["stages"]["grpo"]
    assert values["last"]["evaluation/reward"] > values["first"]["evaluation/reward"] + 0.2
