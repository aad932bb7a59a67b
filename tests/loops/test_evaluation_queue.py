"""Evaluations by another process: one is open at a time, it stays open until it is answered, and each is answered once."""

import asyncio

import pytest

from penstock.core.errors import StreamError
from penstock.loops.evaluation_queue import EvaluationQueue


def play(scene, deadline=5.0):
    return asyncio.run(asyncio.wait_for(scene(EvaluationQueue(deadline)), 10))


def test_an_evaluation_is_given_to_every_evaluator_that_asks_until_it_is_answered():
    async def scene(queue):
        await queue.ask(4, {})
        given = [await queue.next_evaluation(0), await queue.next_evaluation(0)]  # the first evaluator died
        await queue.answer(given[0].number, {"reward": 1.0}, [])
        return [request.step for request in given], await queue.next_evaluation(0)

    assert play(scene, deadline=0.01) == ([4, 4], None)


def test_an_evaluator_that_could_not_have_the_weights_is_not_given_the_same_request_again():
    async def scene(queue):
        await queue.ask(4, {})
        return await queue.next_evaluation((await queue.next_evaluation(0)).number)

    assert play(scene, deadline=0.01) is None


def test_the_next_evaluation_waits_for_the_answer_of_the_one_before():
    async def scene(queue):
        await queue.ask(4, {})
        asking = asyncio.create_task(queue.ask(8, {}))
        await asyncio.sleep(0)
        waited = not asking.done()
        await queue.answer((await queue.next_evaluation(0)).number, {}, [])
        await asking
        return waited, (await queue.next_evaluation(0)).step

    assert play(scene) == (True, 8)


def test_an_answer_is_heard_once():
    async def scene(queue):
        await queue.ask(4, {})
        await queue.answer((await queue.next_evaluation(0)).number, {"reward": 0.5}, [])
        return await queue.answers(wait=False), await queue.answers(wait=False)

    assert play(scene) == ([(4, {"reward": 0.5}, [])], [])


def test_an_answer_to_a_request_that_was_cancelled_is_ignored():
    async def scene(queue):
        await queue.ask(4, {})
        old = await queue.next_evaluation(0)
        await queue.cancel()
        await queue.ask(4, {})
        await queue.answer(old.number, {}, [])
        return await queue.answers(wait=False), (await queue.next_evaluation(old.number)).step

    assert play(scene) == ([], 4)


def test_a_learner_that_waits_for_answers_waits_for_the_open_evaluation():
    async def scene(queue):
        await queue.ask(4, {})
        hearing = asyncio.create_task(queue.answers(wait=True))
        await asyncio.sleep(0)
        waited = not hearing.done()
        await queue.answer((await queue.next_evaluation(0)).number, {}, [])
        return waited, await hearing

    assert play(scene) == (True, [(4, {}, [])])


def test_an_evaluation_that_takes_longer_than_the_deadline_is_named():
    async def scene(queue):
        await queue.ask(4, {})
        await queue.ask(8, {})

    with pytest.raises(StreamError, match="for the evaluation of step 4 by the evaluator"):
        play(scene, deadline=0.01)
