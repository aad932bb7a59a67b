"""A request begins with the longest sequence that is kept or being read, whoever's it is; its numbers are those of its own."""

from dataclasses import replace

import numpy as np
import pytest

from engine_examples import assert_same_draws, drawn, learner_logp, run
from penstock.core.types import WeightUpdate
from penstock.engine.cache import CachePool
from penstock.engine.generator import EmbeddedGenerator
from penstock.engine.memory import BRANCHES, LEAST
from tiny_models import key, request

SYSTEM = np.arange(20, 70, dtype=np.int32)
"""What several prompts begin with."""


def prompt(*ending):
    return np.append(SYSTEM, ending).astype(np.int32)


def keeping(tokens, ordinal, **sampling):
    return replace(request(tokens, ordinal, **sampling), keep=True)


async def counted(generator, wanted):
    """A sample and how many tokens were prefilled for it."""
    before = generator.prefilled_tokens
    sample = await generator.generate(wanted)
    return sample, generator.prefilled_tokens - before


async def second_turn(model, asked_by, **options):
    """A first turn of conversation 0, and a second that continues it, asked under a key; with its cost."""
    generator = EmbeddedGenerator(model, **options)
    first = await generator.generate(keeping(prompt(80), 0))
    tokens = np.append(first.tokens_T, [50, 51]).astype(np.int32)
    return await counted(generator, request(tokens, asked_by, seed=1))


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
async def test_another_key_continues_a_conversation_bit_for_bit(architecture, tiny):
    """The cache is found by tokens: a branch, or a call that names no conversation, reads what the conversation would."""
    model = tiny(architecture)
    _, cost = await second_turn(model, 0)
    others, same = await second_turn(model, 7)
    assert cost == same == 3
    forced = await second_turn_with_draws_of(model, 7)
    assert forced.tokens_T.tolist() == others.tokens_T.tolist()
    assert forced.logp_T.tobytes() == others.logp_T.tobytes()
    np.testing.assert_allclose(others.logp_T[others.action_T], learner_logp(model, others), atol=1e-4)


async def second_turn_with_draws_of(model, ordinal):
    """The second turn of a conversation that bears the key all along, after a first one of the same tokens."""
    generator = EmbeddedGenerator(model)
    first = await generator.generate(keeping(prompt(80), 0))
    ((kept,),) = generator.memory._kept.values()
    generator.memory.forget(key(0))
    generator.memory._hold(key(ordinal), (kept,))
    return await generator.generate(request(np.append(first.tokens_T, [50, 51]).astype(np.int32), ordinal, seed=1))


async def test_the_longest_of_several_is_taken_and_stays(tiny):
    generator = EmbeddedGenerator(tiny())
    firsts = [await generator.generate(keeping(prompt(80 + g), g)) for g in range(3)]
    for first in (*firsts, *firsts):
        assert (await counted(generator, request(np.append(first.tokens_T, 50), 9)))[1] == 2


async def test_a_conversation_that_goes_two_ways_keeps_both(tiny):
    """As a program with a sub-agent: calls of one episode that do not go on from one another, in turns."""
    generator, costs = EmbeddedGenerator(tiny()), []
    ways = [np.arange(20, 60), np.arange(120, 150)]
    for turn in range(6):
        sample, cost = await counted(generator, keeping(ways[turn % 2], 0, seed=turn))
        ways[turn % 2] = np.append(sample.tokens_T, [50, 51])
        costs.append(cost)
    held = generator.memory.bytes
    await generator.generate(request(ways[0], 0, seed=9))
    assert costs == [40, 30, 3, 3, 3, 3]
    assert generator.memory.bytes < held
    assert not generator.memory._kept, "after the last turn nothing is kept"
    assert not generator.memory._alike


async def test_a_conversation_keeps_a_few_ways_at_most(tiny):
    generator = EmbeddedGenerator(tiny())
    for way in range(2 * BRANCHES):
        await generator.generate(keeping(np.arange(20, 60) + way, 0))
    assert [len(kept) for kept in generator.memory._kept.values()] == [BRANCHES]


async def test_an_episode_whose_cache_was_dropped_reads_what_its_sibling_kept(tiny):
    generator = EmbeddedGenerator(tiny())
    first, _ = [await generator.generate(keeping(prompt(80), 0, seed=seed)) for seed in range(2)]
    await generator.generate(keeping(prompt(80), 1))
    generator.forget(key(0))
    tokens = np.append(first.tokens_T, 50)
    sample, cost = await counted(generator, request(tokens, 0, seed=2))
    assert cost == len(tokens) - len(prompt(80))
    np.testing.assert_allclose(sample.logp_T[sample.action_T], learner_logp(tiny(), sample), atol=1e-4)


def test_prompts_with_one_beginning_read_it_once_though_they_come_together(tiny, monkeypatch):
    requests = [request(prompt(80 + g, 81, 82), g) for g in range(6)]
    generator = EmbeddedGenerator(tiny(), max_running=8)
    found = run(generator, requests)
    assert generator.prefilled_tokens == len(SYSTEM) + 6 * 3
    assert generator.reused_tokens == 5 * len(SYSTEM)
    monkeypatch.setattr("penstock.engine.turn.begins", lambda tokens: b"")
    monkeypatch.setattr("penstock.engine.memory.begins", lambda tokens: b"")
    apart = EmbeddedGenerator(tiny(), max_running=8)
    assert_same_draws(found, run(apart, requests))
    assert apart.prefilled_tokens == 6 * (len(SYSTEM) + 3)


def test_a_beginning_longer_than_a_chunk_is_waited_for_but_for_its_last_tokens(tiny):
    """Chunks of 20: after two of them the 40 tokens are taken, since the 10 that follow are not worth another turn."""
    generator = EmbeddedGenerator(tiny(), max_running=8, chunk=20)
    run(generator, [request(prompt(80 + g), g) for g in range(4)])
    assert generator.prefilled_tokens == len(SYSTEM) + 1 + 3 * (len(SYSTEM) - 40 + 1)


def test_a_short_beginning_is_not_worth_it(tiny):
    generator = EmbeddedGenerator(tiny())
    run(generator, [request(np.append(SYSTEM[: LEAST - 1], [80 + g] * 5), g) for g in range(2)])
    assert generator.reused_tokens == 0


@pytest.mark.parametrize(("kv", "own", "others"), [("keep", 2, 62), ("recompute", 63, 62)])
async def test_what_older_weights_have_read_is_its_own_conversations_alone(kv, own, others, tiny):
    """As sequences in flight go on under ``keep``; whoever begins after an update reads everything with the new weights."""
    for ordinal, length, expected in ((0, None, own), (3, -1, others)):
        generator = EmbeddedGenerator(tiny())
        first = await generator.generate(keeping(prompt(80), 0, max_new_tokens=11))
        await generator.load(WeightUpdate(1, None, kv))
        tokens = np.append(first.tokens_T, 50)[:length]
        assert (await counted(generator, request(tokens, ordinal)))[1] == expected


async def test_a_conversation_of_two_versions_is_no_beginning_for_others(tiny):
    """It was read by version 0 and goes on under version 1: kept again, it still holds what version 0 has read."""
    generator = EmbeddedGenerator(tiny())
    first = await generator.generate(keeping(prompt(80), 0))
    await generator.load(WeightUpdate(1, None, "keep"))
    second, cost = await counted(generator, keeping(np.append(first.tokens_T, 50), 0, seed=1))
    _, others = await counted(generator, request(np.append(second.tokens_T, 50), 5))
    assert cost == 2
    assert others == len(second.tokens_T) + 1


async def test_what_is_kept_stays_within_the_budget_and_what_was_read_last_stays_longest(tiny):
    model = tiny()
    cell = CachePool(model.slots, model.dtype, model.device).cell
    generator = EmbeddedGenerator(model, max_running=2, cache_gb=700 * cell / 1e9)
    first = await generator.generate(keeping(np.arange(100, 140), 0))
    again = request(np.append(first.tokens_T, 50), 99)
    for g in range(12):
        await generator.generate(keeping(np.arange(150, 190) + g, g + 1))
        assert (await counted(generator, again))[1] == 2
        assert generator.memory.bytes <= generator.memory.budget
    kept = generator.memory._kept
    assert 1 < len(kept) < 12
    assert set().union(*generator.memory._alike.values()) == set(kept)


def test_all_of_a_group_still_share_one_prefix(tiny):
    generator = EmbeddedGenerator(tiny(), max_running=8)
    found = run(generator, [request(prompt(80), 0, g) for g in range(4)] + [request(prompt(81), 1, g) for g in range(4)])
    assert generator.prefilled_tokens == len(SYSTEM) + 2
    assert len({tuple(drawn(sample)) for sample in found}) > 1
