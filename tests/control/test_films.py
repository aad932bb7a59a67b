"""Films of what an evaluation plays: frame after frame of the first environment, among the samples that the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("PIL")

import gymnasium
from gymnasium import spaces
from stage_examples import a_stage, launched, usual

from penstock.control.environments import Environments
from penstock.control.league import League
from penstock.control.stage import EnvironmentsSpec, Episodes, Interface
from penstock.core.blobs import FILM, Film
from penstock.core.errors import SpecError
from penstock.data.pictures import from_file

HERE = Path(__file__).resolve()


class Clock(gymnasium.Env[Any, Any]):
    """Takes three steps; its picture is as bright as the step."""

    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.now = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.now += 1
        return np.zeros(1, np.float32), 1.0, self.now == 3, False, {}

    def render(self) -> Any:
        return np.full((4, 6, 3), 50 * self.now, np.uint8) if self.render_mode else None


def clock(render_mode: str | None = None) -> Clock:
    return Clock(render_mode)


def dark() -> Clock:
    """It takes no render_mode, so it draws nothing."""
    return Clock()


def filming(id: str, film: int, count: int = 4) -> dict[str, Any]:
    """Fields of a stage that films so many frames."""
    environments, evaluation = EnvironmentsSpec(id=id, count=count), Episodes(episodes=count, longest=20, film=film)
    return usual(environments=environments, evaluation=evaluation, fragment=4, minibatches=1, steps=1)


def filmed(stage: Any, tmp_path: Path) -> list[tuple[dict[str, Any], Film]]:
    """The rows of samples of a run with the films that they name."""
    result, found = launched(stage, tmp_path), []
    for row in (row for event in result.samples for row in event["rows"]):
        (blob,) = row["blobs"]
        assert blob["kind"] == FILM
        film = from_file((tmp_path / "run" / "blobs" / blob["hash"]).read_bytes(), "a film")
        assert isinstance(film, Film)
        found.append((row, film))
    return found


def drawn(**fields: Any) -> Any:
    """The picture of environments."""
    made = Environments(EnvironmentsSpec(**fields), 0, interface=Interface(draws=True))
    picture = made.picture()
    made.close()
    return picture


@pytest.mark.parametrize(("most", "frames"), [(9, [0, 50, 100]), (2, [0, 50])])
def test_a_film_has_a_frame_of_each_step_up_to_its_bound(tmp_path: Path, most: int, frames: list[int]) -> None:
    before, after = filmed(a_stage(**filming(f"{HERE}:clock", most)), tmp_path)
    assert before[1].frames_FHWC[:, 0, 0, 0].tolist() == frames
    assert after[1].frames_FHWC.shape == (len(frames), 4, 6, 3)
    assert (after[0]["text"], after[0]["reward"], after[0]["held_out"]) == ("an episode of 3 steps", 3.0, True)


def test_no_film_without_being_asked(tmp_path: Path) -> None:
    assert filmed(a_stage(**filming(f"{HERE}:clock", 0)), tmp_path) == []


def test_environments_that_gymnasium_steps_as_one_array_are_drawn() -> None:
    pytest.importorskip("pygame")
    picture = drawn(id="CartPole-v1", count=2)
    assert (picture.dtype, picture.shape) == (np.uint8, (400, 600, 3))


def test_a_league_films_its_game(tmp_path: Path) -> None:
    fields = filming("penstock.control.hide_and_seek:hide_and_seek", 5, count=8)
    found = filmed(League(**fields, teams={"hider.*": "hiders", ".*": "seekers"}), tmp_path)
    assert [film.frames_FHWC.shape[0] for _, film in found] == [5, 5]
    assert found[0][0]["text"] == "a game of hiders and seekers as they are"
    assert (found[0][1].frames_FHWC[0] != found[0][1].frames_FHWC[4]).any()


def test_what_draws_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"draws no picture for evaluation\.film"):
        launched(a_stage(**filming(f"{HERE}:dark", 3)), tmp_path)
    with pytest.raises(SpecError, match="negative"):
        Episodes(film=-1)


def test_a_game_of_pettingzoo_is_drawn() -> None:
    pytest.importorskip("mpe2")
    assert drawn(id="mpe2.simple_spread_v3:parallel_env", count=1, vectorization="parallel").ndim == 3


def test_envpool_draws_where_that_cannot_end_the_process() -> None:
    pytest.importorskip("envpool")
    assert drawn(id="Pong-v5", count=1, vectorization="envpool").shape == (210, 160, 3)
    with pytest.raises(SpecError, match="OpenGL"):
        drawn(id="HalfCheetah-v4", count=1, vectorization="envpool")
