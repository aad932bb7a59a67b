"""Games of TextArena: alone, against a function, from a seed whatever plays next to them."""

import asyncio
import random

import pytest
from env_examples import Letters, after, named, played, rewards_of_turns, seeded

from penstock.core.errors import SpecError
from penstock.data.resolve import register
from penstock.envs.making import env_class
from penstock.envs.spec import EnvironmentSpec

pytest.importorskip("textarena", reason="needs the extra textarena")


def lowest_free(text):
    """Plays the first move that the board offers."""
    return text.rpartition("Available Moves: ")[2].split("'")[1]


def test_a_game_of_one_player_is_guessed_by_halves(threads):
    """Numbers from 1 to 20: whatever it is, five guesses find it, and only what is new is shown."""
    for seed in range(6):
        episode, low, high, guesses = named("textarena:GuessTheNumber-v0", threads, seeded(seed)), 1, 20, []

        async def play(episode=episode, low=low, high=high, guesses=guesses):
            context_T = await episode.reset()
            while context_T is not None:
                guesses.append((low + high) // 2)
                sample = after(context_T, f"[{guesses[-1]}]")
                context_T = await episode.step(sample)
                heard = "" if context_T is None else Letters().decode(context_T[len(sample.tokens_T) :])
                assert heard in ("The target number is higher.\n", "The target number is lower.\n", "")
                low, high = (guesses[-1] + 1, high) if "higher" in heard else (low, guesses[-1] - 1)
            await episode.close()
            return episode.annotated(sample)

        sample = asyncio.run(play())
        assert sample.extras["turns"][-1][2] == 1.0
        assert len(guesses) <= 5


def tictactoe(threads, opponent, seed=3, **options):
    return named("textarena:TicTacToe-v0", threads, seeded(seed), options={"opponent": register(opponent), **options})


def test_against_an_opponent_a_line_wins(threads):
    sample, heard = played(tictactoe(threads, lowest_free), ["[4]", "[2]", "[6]"])
    assert "[Player 1] [0]" in heard[0]
    assert "[Player 0]" not in "".join(heard[:2])
    assert heard[-1] is None
    assert rewards_of_turns(sample) == [None, None, 1.0]


def test_the_policy_may_play_second_and_lose(threads):
    sample, heard = played(tictactoe(threads, lowest_free, player=1), ["[4]", "[8]"])
    assert heard[-1] is None
    assert rewards_of_turns(sample)[-1] == -1.0


def test_an_opponent_that_is_a_class_is_made_for_each_episode_with_its_seed(threads):
    made = []

    class Remembers:
        def __init__(self, seed):
            made.append(seed)
            self.moves = iter(["[0]", "[1]"])

        def __call__(self, text):
            return next(self.moves)

    for seed in (5, 6):
        sample, _ = played(tictactoe(threads, Remembers, seed), ["[4]", "[2]", "[6]"])
        assert rewards_of_turns(sample)[-1] == 1.0
    assert set(made) >= {5, 6}


def test_moves_that_are_none_are_answered_once_and_then_lose(threads):
    sample, heard = played(named("textarena:GuessTheNumber-v0", threads, seeded()), ["five", "six"])
    assert "invalid move" in heard[0]
    assert heard[1] is None
    assert sample.extras["episode"]["invalid_moves"] == 1.0


def test_games_draw_from_their_own_seeds_though_the_package_has_one_stream_for_all(threads):
    """PigDice rolls at every move: games side by side are what each is alone, and nobody else's draws change."""

    def rolls(text):
        return "[roll]"

    def game(seed):
        return named("textarena:PigDice-v0-short", threads, seeded(seed), options={"opponent": register(rolls)}, turns=12)

    async def moves(episode):
        context_T, heard = await episode.reset(), []
        for _ in range(10):
            if context_T is None:
                break
            sample = after(context_T, "[roll]")
            context_T = await episode.step(sample)
            heard.append(None if context_T is None else context_T.tolist()[len(sample.tokens_T) :])
        return heard

    async def together():
        return await asyncio.gather(*(moves(game(seed)) for seed in range(8)))

    alone = [asyncio.run(moves(game(seed))) for seed in range(8)]
    random.seed(1)
    expected = random.Random(1).random()
    assert asyncio.run(together()) == alone
    assert random.random() == expected
    assert len({str(heard) for heard in alone}) == 8


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("NoSuchGame-v0", {}, "textarena:NoSuchGame-v0: ValueError"),
        ("TicTacToe-v0", {}, "number of players has to be 2"),
        ("TicTacToe-v0", {"opponent": register(lowest_free), "player": 2}, "seats 0 to 1"),
    ],
)
def test_what_cannot_be_played_is_refused_before_the_run(name, options, message):
    with pytest.raises(SpecError, match=message):
        env_class(EnvironmentSpec(function=f"textarena:{name}", options=options), None)
