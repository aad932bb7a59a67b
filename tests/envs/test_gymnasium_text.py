"""Text environments of gymnasium: its five-tuple becomes turns, what it does not take ends the episode."""

import gymnasium
import pytest
from env_examples import PROMPT, begun, named, played, rewards_of_turns, seeded

from penstock.core.columns import was_cut
from penstock.core.errors import EnvError, SpecError
from penstock.envs.making import env_class
from penstock.envs.spec import EnvironmentSpec

LETTERS = gymnasium.spaces.Text(8, charset="abcdefghijklmnopqrstuvwxyz:0123456789 ")
CLOSED = []


class Spelling(gymnasium.Env):
    """A word of the seed's is to be written; each right letter is worth 1."""

    observation_space = action_space = LETTERS

    def __init__(self, word=""):
        self.given = word

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word = self.given or "".join(self.np_random.choice(list("abc"), 3))
        return f"spell {self.word[:2]}", {}

    def step(self, action):
        right = action == self.word[0]
        self.word = self.word[1:]
        return f"left {len(self.word)}", float(right), not self.word, False, {}

    def close(self):
        CLOSED.append(self.given)


@pytest.fixture(autouse=True)
def _registered():
    gymnasium.register("Spelling-v0", Spelling, max_episode_steps=4)
    yield
    del gymnasium.registry["Spelling-v0"]


def test_observations_rewards_and_the_end_are_the_environments(threads):
    episode = named("gymnasium:Spelling-v0", threads, seeded(), options={"word": "dog"})
    sample, heard = played(episode, ["d", "x", "g"])
    assert heard == ["left 2", "left 1", None]
    assert rewards_of_turns(sample) == [1.0, 0.0, 1.0]
    assert not was_cut(sample)
    assert CLOSED[-1] == "dog"


def test_its_own_limit_of_steps_truncates(threads):
    episode = named("gymnasium:Spelling-v0", threads, seeded(), options={"word": "hippo"})
    sample, heard = played(episode, list("hipp"))
    assert heard[-1] is None
    assert was_cut(sample)


def test_what_it_draws_follows_from_the_rows_seed(threads):
    def first(seed):
        return begun(named("gymnasium:Spelling-v0", threads, seeded(seed)))

    assert first(3) == first(3)
    assert len({first(seed) for seed in range(8)}) > 1


def test_a_text_outside_the_action_space_ends_the_episode(threads):
    episode = named("gymnasium:Spelling-v0", threads, seeded(), options={"word": "dog", "penalty": 0.5})
    sample, heard = played(episode, ["d", "?"])
    assert heard == ["left 2", None]
    assert sample.extras["turns"][-1][2] == -0.5
    assert sample.extras["episode"]["outside_actions"] == 1.0


def test_a_row_without_a_seed_is_an_error_that_says_so(threads):
    with pytest.raises(EnvError, match='column "seed"'):
        begun(named("gymnasium:Spelling-v0", threads, PROMPT))


@pytest.mark.parametrize(
    ("name", "message"), [("CartPole-v1", r"both must be spaces.Text"), ("Nothing-v0", "gymnasium:Nothing-v0: NameNotFound")]
)
def test_other_spaces_and_unknown_names_are_refused_before_the_run(name, message):
    with pytest.raises(SpecError, match=message):
        env_class(EnvironmentSpec(function=f"gymnasium:{name}"), None)
