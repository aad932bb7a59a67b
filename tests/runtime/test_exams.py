"""Evaluations by another process: one is open at a time, it stays open until it is answered, and each is answered once."""

import asyncio

import pytest

from penstock.runtime.exams import Exams

FIRST, SECOND = {"step": 4, "manifest": {}}, {"step": 8, "manifest": {}}


def test_an_evaluation_is_given_to_whoever_asks_until_it_is_answered():
    async def take():
        exams = Exams()
        await exams.ask(FIRST)
        given = [await exams.next(), await exams.next()]  # the first evaluator died
        await exams.answer(4, {"reward": 1.0}, [])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(exams.next(), 0.01)
        return given

    assert asyncio.run(take()) == [FIRST, FIRST]


def test_the_next_evaluation_waits_for_the_answer_of_the_one_before():
    async def take():
        exams = Exams()
        await exams.ask(FIRST)
        asking = asyncio.create_task(exams.ask(SECOND))
        await asyncio.sleep(0)
        waited = not asking.done()
        await exams.answer(4, {}, [])
        await asyncio.wait_for(asking, 1)
        return waited, await exams.next()

    assert asyncio.run(take()) == (True, SECOND)


def test_an_answer_is_heard_once():
    async def take():
        exams = Exams()
        await exams.ask(FIRST)
        await exams.answer(4, {"reward": 0.5}, [])
        return await exams.answers(wait=False), await exams.answers(wait=False)

    assert asyncio.run(take()) == ([(4, {"reward": 0.5}, [])], [])


def test_a_late_answer_to_another_question_is_passed_over():
    async def take():
        exams = Exams()
        await exams.ask(SECOND)
        await exams.answer(4, {}, [])
        return await exams.answers(wait=False), await exams.next()

    assert asyncio.run(take()) == ([], SECOND)


def test_who_waits_for_answers_waits_for_the_open_evaluation():
    async def take():
        exams = Exams()
        await exams.ask(FIRST)
        hearing = asyncio.create_task(exams.answers(wait=True))
        await asyncio.sleep(0)
        waited = not hearing.done()
        await exams.answer(4, {}, [])
        return waited, await asyncio.wait_for(hearing, 1)

    assert asyncio.run(take()) == (True, [(4, {}, [])])
