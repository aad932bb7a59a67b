"""Tokens are told of as they are drawn, and drawing can be paused between two of them."""

import asyncio
from dataclasses import replace

import numpy as np

import tiny_models
from penstock.core.types import WeightUpdate
from penstock.engine.generator import EmbeddedGenerator
from tiny_models import request


async def begun(generator, one, told):
    """A task that generates, once five tokens were told of."""
    task = asyncio.create_task(generator.generate(one, lambda *token: told.append(token)))
    while len(told) < 5:
        await asyncio.sleep(0)
    return task


async def test_every_token_is_told_of_with_its_log_prob_and_version(tiny):
    told = []
    sample = await EmbeddedGenerator(tiny()).generate(request(np.array([20])), lambda *token: told.append(token))
    drawn = sample.action_T
    assert [token for token, _, _ in told] == sample.tokens_T[drawn].tolist()
    np.testing.assert_array_equal(np.float32([logp for _, logp, _ in told]), sample.logp_T[drawn])
    assert {version for _, _, version in told} == {0}


async def test_tokens_of_a_resumed_sample_are_told_of_once(tiny):
    generator, told = EmbeddedGenerator(tiny()), []
    one = request(np.array([20]), max_new_tokens=30)
    task = await begun(generator, one, told)
    (partial,) = await generator.abort([one.key])
    await task
    sample = await generator.generate(replace(one, resume=partial), lambda *token: told.append(token))
    assert [token for token, _, _ in told] == sample.tokens_T[sample.action_T].tolist()


async def test_nothing_is_drawn_while_paused_and_weights_change_meanwhile(tiny):
    generator, told = EmbeddedGenerator(tiny()), []
    task = await begun(generator, request(np.array([20]), max_new_tokens=30), told)
    generator.pause()
    await asyncio.sleep(0)
    paused = len(told)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(told) == paused
    await generator.load(WeightUpdate(1))
    generator.resume()
    sample = await task
    versions = sample.version_T[sample.action_T].tolist()
    assert versions == [0] * paused + [1] * (len(versions) - paused)


async def test_requests_that_leave_while_paused_make_room(tiny):
    generator = EmbeddedGenerator(tiny(), queue=2)
    generator.pause()
    for ordinal in range(6):
        task = asyncio.create_task(generator.generate(request(np.array([20]), ordinal)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    generator.resume()
    assert (await generator.generate(request(np.array([20]), 9))).key == tiny_models.key(9)
