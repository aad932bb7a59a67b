"""Evaluations by another process: one is open at a time, it stays open until it is answered, and each is answered once."""

import asyncio

import pytest

from penstock.core.errors import StreamError
from penstock.loops.evaluation_queue import EvaluationQueue


async def test_an_evaluation_is_given_to_every_evaluator_that_asks_until_it_is_answered():
    queue = EvaluationQueue(0.01)
    await queue.ask(4, {})
    given = [await queue.next_evaluation(0), await queue.next_evaluation(0)]  # the first evaluator died
    await queue.answer(given[0].number, {"reward": 1.0}, [])
    assert ([request.step for request in given], await queue.next_evaluation(0)) == ([4, 4], None)


async def test_an_evaluator_that_could_not_have_the_weights_is_not_given_the_same_request_again():
    queue = EvaluationQueue(0.01)
    await queue.ask(4, {})
    assert await queue.next_evaluation((await queue.next_evaluation(0)).number) is None


async def test_the_next_evaluation_waits_for_the_answer_of_the_one_before():
    queue = EvaluationQueue(5.0)
    await queue.ask(4, {})
    asking = asyncio.create_task(queue.ask(8, {}))
    await asyncio.sleep(0)
    waited = not asking.done()
    await queue.answer((await queue.next_evaluation(0)).number, {}, [])
    await asking
    assert (waited, (await queue.next_evaluation(0)).step) == (True, 8)


async def test_an_answer_is_heard_once():
    queue = EvaluationQueue(5.0)
    await queue.ask(4, {})
    await queue.answer((await queue.next_evaluation(0)).number, {"reward": 0.5}, [])
    assert (await queue.answers(wait=False), await queue.answers(wait=False)) == ([(4, {"reward": 0.5}, [])], [])


async def test_an_answer_to_a_request_that_was_cancelled_is_ignored():
    queue = EvaluationQueue(5.0)
    await queue.ask(4, {})
    old = await queue.next_evaluation(0)
    await queue.cancel()
    await queue.ask(4, {})
    await queue.answer(old.number, {}, [])
    assert (await queue.answers(wait=False), (await queue.next_evaluation(old.number)).step) == ([], 4)


async def test_a_learner_that_waits_for_answers_waits_for_the_open_evaluation():
    queue = EvaluationQueue(5.0)
    await queue.ask(4, {})
    hearing = asyncio.create_task(queue.answers(wait=True))
    await asyncio.sleep(0)
    waited = not hearing.done()
    await queue.answer((await queue.next_evaluation(0)).number, {}, [])
    assert (waited, await hearing) == (True, [(4, {}, [])])


async def test_an_evaluation_that_takes_longer_than_the_deadline_is_named():
    queue = EvaluationQueue(0.01)
    await queue.ask(4, {})
    with pytest.raises(StreamError, match="for the evaluation of step 4 by the evaluator"):
        await queue.ask(8, {})
