"""Episodes through a real tiny generator: what is trained is what was generated, once; the rest has no gradient; failures are
data; and the learner reads every token as the generator did."""

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from episode_examples import FLAT, group_of_episodes, model_of, prompt_with
from templates import FAMILIES

from penstock.algos.grpo import GRPO
from penstock.algos.ppo import PPO
from penstock.core.columns import column_named, end_values
from penstock.core.contracts import Denominator
from penstock.core.types import LEFT_OUT, PART, Group, Row
from penstock.data.resolve import register
from penstock.engine.generator import EmbeddedGenerator
from penstock.envs.env import Env, Turn
from penstock.envs.spec import EnvironmentSpec
from penstock.loops.learn import sample_metrics
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import Scoring

PROMPT = prompt_with(words=["the quick", "brown fox"])


class Words(Env):
    """Says the words of its row, one a turn; each turn is worth one more than the one before."""

    async def step(self, said):
        words = self.columns["words"]
        done = said.turn == len(words)
        return Turn("" if done else words[said.turn], reward=float(said.turn), terminated=done, metrics={"steps": 1})


class Thinking(EmbeddedGenerator):
    """Its first answers close a thought, as a reasoning model's do."""

    async def generate(self, request, on_token=None):
        sample = await super().generate(request, on_token)
        thought = self.text.encode("<think>a</think>")
        begin = len(request.tokens_T)
        if request.sampling.seed == FLAT.seed and len(sample.tokens_T) - begin >= len(thought):
            tokens_T = sample.tokens_T.copy()
            tokens_T[begin : begin + len(thought)] = thought
            sample = replace(sample, columns={"tokens_T": tokens_T})
        return sample


@pytest.fixture(scope="module")
def models():
    return functools.cache(model_of)


def group_of(model, env=Words, samples=3, generator=EmbeddedGenerator, sampling=FLAT, prompt=PROMPT, **fields):
    spec = EnvironmentSpec(function=register(env), **fields)
    return group_of_episodes(model, spec, prompt, samples, sampling, generator)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_turns_are_generated_where_the_template_says_and_nothing_else_is_an_action(models, name):
    model = models(name)
    group, generator = group_of(model, history="split")
    assert generator.generated_tokens == sum(int(sample.action_T.sum()) for sample in group.samples)
    for sample in group.samples:
        for begin, end, _, _ in sample.extras["turns"]:
            assert sample.action_T[begin:end].all()
        assert sum(end - begin for begin, end, _, _ in sample.extras["turns"]) == sample.action_T.sum()
        text = model.text.tokenizer.decode(sample.tokens_T)
        assert "the quick" in text
        assert "brown fox" in text


def test_rewards_lie_on_the_last_action_of_each_turn(models):
    group, _ = group_of(models("chatml"))
    for sample in group.samples:
        expected = np.zeros(len(sample.action_T))
        for turn, (_, end, _, _) in enumerate(sample.extras["turns"]):
            expected[end - 1] = turn
        assert sample.reward_T.tolist() == expected.tolist()
        assert sample.reward == 3.0


def test_the_learner_reads_what_the_generator_read(models):
    model = models("chatml")
    group, _ = group_of(model, sampling=replace(FLAT, temperature=1.0))
    unit = tuple(Row(sample.columns, sample.action_T) for sample in group.samples)
    scored = Scoring(LanguagePolicy(model)).score([unit], frozenset({"logp"}))["logp"]
    for sample, logp_A in zip(group.samples, scored, strict=True):
        np.testing.assert_allclose(sample.logp_T[sample.action_T], logp_A, atol=1e-4)


def test_an_episode_whose_history_is_rewritten_is_several_sequences_all_trained(models):
    model = models("qwen3")
    group, _ = group_of(model, generator=Thinking, sampling=replace(FLAT, max_new_tokens=9), history="split")
    for sample in group.samples:
        assert sample.columns[PART][-1] == 1
        assert sample.columns[PART][np.flatnonzero(sample.action_T)[0]] == 0
        first = sample.tokens_T[sample.columns[PART] == 0]
        second = sample.tokens_T[sample.columns[PART] == 1]
        assert "</think>" in model.text.tokenizer.decode(first)
        assert "</think>" not in model.text.tokenizer.decode(second).split("the quick")[0]
        assert [turn for *_, turn, _ in sample.extras["turns"]] == [0.0, 1.0, 2.0]
        assert sample.reward == 3.0


def test_masked_history_trains_on_the_last_rendering_and_loses_no_reward(models):
    sampling = replace(FLAT, max_new_tokens=9)
    group, _ = group_of(models("qwen3"), generator=Thinking, sampling=sampling, history="mask")
    for sample in group.samples:
        assert (sample.columns[PART][sample.action_T] == 1).all()
        assert (sample.columns[PART][sample.extras[LEFT_OUT]] == 0).all()
        assert sample.extras[LEFT_OUT].any()
        assert sample.reward == 3.0


def gradient_of(model, group):
    """The gradient of GRPO's loss over a group."""
    algorithm = GRPO(scale="none", clip=None, aggregate="token")
    units = algorithm.label([group], {}, algorithm.initial_coefficients())
    policy = LanguagePolicy(model)
    model.zero_grad()
    for batch in policy.lay_out(units, 10_000, False):
        fields = {name: torch.from_numpy(value) for name, value in batch.fields.items()}
        moved = replace(batch, row_A=torch.from_numpy(batch.row_A).long())
        outputs = policy.outputs(batch, algorithm.loss().needs)
        loss, _ = algorithm.loss()(outputs, fields, moved, Denominator.of(units))
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_what_the_environment_said_has_no_gradient_of_its_own(models):
    """The last observation of the longest part is what no action follows: changing it changes nothing; and no loss is ever
    computed at an observation, so that the tokens there are no targets."""
    model = copy.deepcopy(models("chatml"))
    model.requires_grad_(True)
    group, _ = group_of(model, samples=2)

    def rewarded(samples):
        return Group(PROMPT, tuple(s.scored(r) for s, r in zip(samples, (1.0, 0.0), strict=True)))

    found = [
        gradient_of(model, rewarded([replace(s, **extended(s, trailing)) for s in group.samples]))
        for trailing in ([30, 31], [77, 78])
    ]
    assert found[0].abs().max() > 0
    assert torch.equal(found[0], found[1])
    units = GRPO(scale="none").label([rewarded(group.samples)], {}, {"kl": 0.0, "entropy": 0.0})
    (batch,) = LanguagePolicy(model).lay_out(units, 10_000, False)
    assert batch.target_A.tolist() == np.concatenate([s.tokens_T[s.action_T] for s in group.samples]).tolist()


def extended(sample, tokens):
    """A sample with an observation after its last action."""
    more = len(tokens)
    return {
        "columns": {"tokens_T": np.append(sample.tokens_T, np.array(tokens, np.int32)).astype(np.int32)},
        "action_T": np.append(sample.action_T, np.zeros(more, bool)),
        "logp_T": np.append(sample.logp_T, np.zeros(more, np.float32)).astype(np.float32),
        "version_T": np.append(sample.version_T, np.full(more, -1)).astype(np.int32),
        "reward_T": None,
    }


class Sometimes(Words):
    """The second sample fails in its first turn, the third before; so do their second tries, the sixth and fourth made."""

    made = 0

    def __init__(self, columns):
        super().__init__(columns)
        Sometimes.made += 1
        if Sometimes.made in (3, 4):
            raise OSError("no place left")
        self.number = Sometimes.made

    async def step(self, said):
        if self.number in (2, 6):
            raise ValueError("lost")
        return await super().step(said)


def test_failures_are_data_and_siblings_are_what_they_are_without(models):
    model = models("chatml")
    Sometimes.made = 0
    group, _ = group_of(model, Sometimes, samples=4)
    healthy, _ = group_of(model, samples=4)
    assert [sample.error is not None for sample in group.samples] == [False, True, True, False]
    assert "raised ValueError in turn 1: lost" in group.samples[1].error
    assert "before the first turn" in group.samples[2].error
    for place in (0, 3):
        assert group.samples[place].tokens_T.tolist() == healthy.samples[place].tokens_T.tolist()
    metrics = sample_metrics([group])
    assert (metrics["episode/crashed"], metrics["samples/failed"], metrics["episode/steps"]) == (0.5, 2.0, 1.5)
    units = GRPO().label([group], {}, {"kl": 0.0, "entropy": 0.0})
    assert [len(unit) for unit in units] == [2]


def test_an_episode_that_was_cut_bootstraps_and_one_that_ended_does_not(models):
    cut, _ = group_of(models("chatml"), turns=2)
    ended, _ = group_of(models("chatml"))
    assert [end_values([group], [0.5] * 3) for group in (cut, ended)] == [[[0.5] * 3], [[0.0] * 3]]
    assert len(column_named("bootstrap").rows([cut, ended])) == 3
    assert "bootstrap" in PPO(bootstrap=True).needs


def test_an_episode_that_fills_the_context_was_cut(models):
    long = replace(PROMPT, columns={"words": ["the quick brown fox jumps over"] * 30})
    group, generator = group_of(models("chatml"), turns=40, prompt=long)
    assert all(sample.extras["truncated"] and sample.error is None for sample in group.samples)
    assert generator.memory._kept == {}


def test_later_turns_prefill_what_is_new_and_one_token(models):
    model = models("chatml")
    group, generator = group_of(model, samples=2)
    lengths = [len(sample.tokens_T) for sample in group.samples]
    prompt = group.samples[0].extras["turns"][0][0]
    observed = sum(int((~sample.action_T[prompt:]).sum()) for sample in group.samples)
    assert generator.prefilled_tokens == prompt + observed + sum(len(s.extras["turns"]) - 1 for s in group.samples)
    assert generator.stats().reused_tokens > 0.5 * sum(lengths)
