"""The rollout and evaluate loops over a real tiny generator."""

import asyncio

import numpy as np
import pytest
from loop_examples import PROMPTS, ByToken, environment, prompt_of, small_tokens

from penstock.core.errors import GenerationError, RewardError
from penstock.core.types import Sampling, WeightUpdate
from penstock.engine.generator import EmbeddedGenerator
from penstock.envs.episode import Episode
from penstock.loops.evaluate import evaluate
from penstock.loops.rollout import Rollout, rollout
from penstock.stream.rules import Rules
from penstock.stream.stream import Stream, Worker

SAMPLING = Sampling(max_new_tokens=6)


def rollout_of(generator, score=small_tokens, make_env=environment, samples=3, sampling=SAMPLING):
    return Rollout(generator, make_env, ByToken(score), sampling, samples)


class Interview(Episode):
    """Asks twice: after the first answer comes an observation, after the second it is over."""

    def __init__(self, observation_T, prompt_T=PROMPTS[0]):
        super().__init__(prompt_T)
        self.observation_T, self.turns, self.seen = observation_T, 0, []

    @property
    def more(self):
        return self.turns == 0

    async def step(self, sample):
        self.turns += 1
        self.seen.append(sample)
        return np.concatenate([sample.tokens_T, self.observation_T]) if self.turns == 1 else None


def test_a_group_holds_the_scored_samples_of_its_prompt(tiny):
    group = asyncio.run(rollout_of(EmbeddedGenerator(tiny())).group(prompt_of(2)))
    assert [sample.key.sample for sample in group.samples] == [0, 1, 2]
    for sample in group.samples:
        assert sample.key.prompt == group.key == prompt_of(2).key
        assert sample.tokens_T[:3].tolist() == PROMPTS[2].tolist()
        assert sample.reward == pytest.approx(small_tokens(sample), abs=1e-6)


def test_an_observation_is_appended_and_is_no_action(tiny):
    observation_T = np.array([50, 51], np.int32)
    group = asyncio.run(rollout_of(EmbeddedGenerator(tiny()), make_env=lambda _: Interview(observation_T)).group(prompt_of(0)))
    for sample in group.samples:
        actions = np.flatnonzero(sample.action_T)
        between = np.arange(actions[0], actions[-1] + 1)[~sample.action_T[actions[0] : actions[-1] + 1]]
        assert sample.tokens_T[between].tolist() == [50, 51]
        assert (sample.logp_T[~sample.action_T] == 0).all()
        assert (sample.version_T[~sample.action_T] == -1).all()
        assert (sample.version_T[sample.action_T] == 0).all()
        assert 2 <= len(actions) <= 12


def kept_bytes(generator):
    return generator.memory.bytes - generator.prefix_cache.bytes - generator.own_cache.bytes


class Silent(Interview):
    """Might answer and does not."""

    async def step(self, sample):
        return None


def test_what_was_kept_for_a_turn_that_does_not_come_is_given_up(tiny):
    generator = EmbeddedGenerator(tiny())
    asyncio.run(rollout_of(generator, make_env=lambda _: Silent(np.array([50], np.int32))).group(prompt_of(0)))
    assert kept_bytes(generator) == 0


def test_a_second_turn_does_not_repeat_the_draws_of_the_first(tiny):
    """With an observation equal to the prompt's end and temperature that flattens all, equal streams would draw alike."""
    make_env = lambda _: Interview(PROMPTS[0])  # noqa: E731
    flat = Sampling(max_new_tokens=8, temperature=1e6)
    group = asyncio.run(rollout_of(EmbeddedGenerator(tiny()), make_env=make_env, sampling=flat).group(prompt_of(0)))
    assert any(sample.tokens_T[3:11].tolist() != sample.tokens_T[14:22].tolist() for sample in group.samples)


def test_the_environment_sees_each_turn_once(tiny):
    made = []

    def make_env(prompt):
        made.append(Interview(np.array([50], np.int32)))
        return made[-1]

    group = asyncio.run(rollout_of(EmbeddedGenerator(tiny()), make_env=make_env, samples=2).group(prompt_of(0)))
    stepped = [env for env in made if env.turns]
    assert [env.turns for env in stepped] == [2, 2]
    assert {len(env.seen[1].tokens_T) for env in stepped} == {len(sample.tokens_T) for sample in group.samples}


def test_samples_that_an_update_aborts_are_resumed(tiny):
    """With kv="abort" an update in flight costs a second prefill, never the rest of the answer."""
    long = Sampling(max_new_tokens=30)

    async def interrupted():
        generator = EmbeddedGenerator(tiny())
        task = asyncio.create_task(rollout_of(generator, sampling=long).group(prompt_of(0)))
        while generator.stats().generated_tokens < 20:
            await asyncio.sleep(0)
        await generator.load(WeightUpdate(1, None, "abort"))
        return await task

    found = asyncio.run(interrupted())
    expected = asyncio.run(rollout_of(EmbeddedGenerator(tiny()), sampling=long).group(prompt_of(0)))
    assert [sample.finish for sample in found.samples] == [sample.finish for sample in expected.samples]
    for one, other in zip(found.samples, expected.samples, strict=True):
        assert one.tokens_T.tolist() == other.tokens_T.tolist()


async def test_no_more_groups_are_started_than_there_are_slots(tiny):
    stream = Stream(Rules(2, max_lag=1))

    asked = []

    def prompts(ordinal):
        asked.append(ordinal)
        return prompt_of(ordinal)

    task = asyncio.create_task(rollout(Worker(stream, "g"), prompts, rollout_of(EmbeddedGenerator(tiny()))))
    while stream.stats.delivered < 4:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    first = list(asked)
    await stream.release((await stream.lease(0)).number)
    while stream.stats.delivered < 6:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (first, asked) == ([0, 1, 2, 3], [0, 1, 2, 3, 4, 5])


def test_an_error_of_the_generator_ends_the_rollout_with_its_message(tiny):
    class Refusing:
        async def generate(self, request):
            raise GenerationError(f"{request.key}: refused")

    with pytest.raises(GenerationError, match=r"test/0/0#.: refused"):
        asyncio.run(asyncio.wait_for(rollout(Worker(Stream(Rules(1)), "g"), prompt_of, rollout_of(Refusing())), 5))


async def test_cancelling_the_rollout_stops_generation(tiny):
    generator = EmbeddedGenerator(tiny())
    long = Sampling(max_new_tokens=100)
    task = asyncio.create_task(rollout(Worker(Stream(Rules(4)), "g"), prompt_of, rollout_of(generator, sampling=long)))
    while generator.stats().generated_tokens < 20:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for _ in range(10):
        await asyncio.sleep(0)
    stats = generator.stats()
    assert (stats.running, stats.waiting) == (0, 0)


def test_evaluation_averages_over_scored_samples(tiny):
    generator, scores = EmbeddedGenerator(tiny()), (0.0, 1.0, None)
    roll = rollout_of(generator, score=lambda sample: scores[sample.key.sample])
    metrics, groups = asyncio.run(evaluate(roll, [prompt_of(0), prompt_of(1)]))
    assert metrics["evaluation/reward"] == 0.5
    assert metrics["evaluation/failed"] == 2.0
    assert metrics["evaluation/letters"] == 0.5
    assert metrics["evaluation/length"] == np.mean([s.action_T.sum() for group in groups for s in group.samples])
    assert [group.key for group in groups] == [prompt_of(0).key, prompt_of(1).key]


def test_an_evaluation_in_which_nothing_could_be_scored_is_refused(tiny):
    roll = rollout_of(EmbeddedGenerator(tiny()), score=lambda sample: None)
    with pytest.raises(RewardError, match='none of 3 samples could be scored: reward "letters" raised'):
        asyncio.run(evaluate(roll, [prompt_of(0)]))


def test_evaluation_tells_how_varied_the_answers_are(tiny):
    generator = EmbeddedGenerator(tiny())
    metrics, groups = asyncio.run(evaluate(rollout_of(generator, score=lambda sample: 0.0), [prompt_of(0), prompt_of(1)]))
    answers = [sample.tokens_T[sample.action_T].tolist() for group in groups for sample in group.samples]
    assert metrics["evaluation/distinct_1"] == len({token for answer in answers for token in answer}) / sum(map(len, answers))
    assert metrics["evaluation/distinct_1"] <= metrics["evaluation/distinct_2"] <= 1


def test_an_episode_that_has_filled_the_context_is_cut_and_not_failed(tiny):
    """The second turn's prompt leaves no room for an answer."""
    model = tiny()
    observation_T = np.full(model.context, 50, np.int32)
    roll = rollout_of(EmbeddedGenerator(model), make_env=lambda _: Interview(observation_T))
    for sample in asyncio.run(roll.group(prompt_of(0))).samples:
        assert (sample.finish, sample.error) == ("length", None)
        assert sample.valid
        assert 50 not in sample.tokens_T[-1:]


def test_a_first_prompt_without_room_is_still_an_error_of_the_data(tiny):
    model = tiny()

    class Long(Interview):
        async def reset(self):
            return np.full(model.context, 20, np.int32)

    with pytest.raises(GenerationError, match="the model's context is"):
        asyncio.run(rollout_of(EmbeddedGenerator(model), make_env=lambda _: Long(PROMPTS[0])).group(prompt_of(0)))
