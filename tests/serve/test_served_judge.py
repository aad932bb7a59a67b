"""A language model as a judge: over a real server with a tiny model, and over recorded exchanges of a made-up one."""

import asyncio
import json
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra feedback")
pytest.importorskip("starlette", reason="needs the extra serve")

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import tiny_models
from penstock.config.ask import Ask, ServedJudge
from penstock.config.parts import DataSpec, ModelSpec
from penstock.core.errors import ConnectionLost, GenerationError
from penstock.feedback.asking import Asked
from penstock.feedback.judges import place_share
from penstock.feedback.quality.reliability import Share
from penstock.feedback.records import Item, Response, Task
from penstock.feedback.store import Store
from penstock.runtime.judging import ask_judges, both_orders
from penstock.serve.judge import OneWord
from serving import TOKEN, running, service_of, serving

RECORDED = json.loads(Path(__file__).with_name("judge_exchanges.json").read_text())
KEY = "PENSTOCK_TEST_JUDGE"


def pair(prompt, first, second):
    return Task(item=Item(prompt, (Response(first), Response(second))), overlap=2)


def player(heard):
    """A server that answers each question as it was recorded, by the answers that it is shown as A and B."""

    async def chat(request):
        body = await request.json()
        heard.append(body)
        question = body["messages"][0]["content"]
        found = [one for one in RECORDED if one["A"] in question.split(" answer A\n")[1].split("\n")[0:1]
                 and one["B"] in question.split(" answer B\n")[1].split("\n")[0:1]]  # fmt: skip
        return JSONResponse({"choices": [{"message": {"role": "assistant", "content": found[0]["said"]}}]})

    async def models(request):
        return JSONResponse({"object": "list", "data": [{"id": "recorded-judge"}]})

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", models)])
    return uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))


def played(scenario):
    """The result of an async scenario over (judge's spec, what the server heard)."""

    async def over():
        heard = []
        async with running(player(heard)) as url:
            return await asyncio.wait_for(scenario(ServedJudge(name="served", url=url), heard), 60)

    return asyncio.run(over())


TASKS = [
    pair("What is 2 + 2?", "It is 4.", "It is 5."),
    pair("Say hello.", "Hello!", "Hello there!"),
    pair("Name a river.", "The Rhine.", "A river is water."),
]


def test_every_pair_is_asked_in_both_orders_and_read_strictly():
    async def scenario(spec, heard):
        return await both_orders(spec, TASKS), heard

    found, heard = played(scenario)
    assert [found[task.id].preference for task in TASKS] == [1, 0, None]  # sure of it; first place both times; chatter
    assert place_share(list(found.values())) == Share(4, 5)
    assert len(heard) == 6
    assert {(body["model"], body["temperature"]) for body in heard} == {("recorded-judge", 0)}


def test_votes_and_skips_of_a_judge_are_recorded_once(tmp_path):
    stage = {"name": "ask", "model": ModelSpec(path="p"), "data": DataSpec(source="x.jsonl")}

    async def scenario(spec, heard):
        asked = [Asked(task) for task in TASKS]
        with Store.open(tmp_path / "feedback.db") as store:
            store.ask(TASKS)
            first = await ask_judges(Ask(**stage, annotators=(spec,)), store, asked, None)
            again = await ask_judges(Ask(**stage, annotators=(spec,)), store, asked, None)
            return first, again, len(heard), store.events(), store.counts()["ask"], store.annotator("served").nature

    first, again, questions, events, count, nature = played(scenario)
    assert (first, again) == ({"served": (Share(4, 5), 1)}, {"served": (Share(0, 0), 0)})
    assert questions == 6
    assert sorted((event.kind, event.body.get("preference")) for event in events) == [("skip", None), ("vote", 0), ("vote", 1)]
    assert (nature, count.open) == ("judge", 3)  # its own copies are full, people's questions are as open as before


def test_an_answer_that_is_no_exchange_of_the_api_is_named():
    async def scenario(spec, heard):
        return await both_orders(ServedJudge(name="served", url=f"{spec.url}/v1/models/..", model="m"), TASKS)

    with pytest.raises(GenerationError, match="404"):
        played(scenario)


class Talk:
    """A server that is not up when it is asked for the first time, and answers with the model's name."""

    def __init__(self):
        self.listed = 0

    async def get(self, path):
        self.listed += 1
        if self.listed == 1:
            raise ConnectionLost("not up yet")
        return {"data": [{"id": "the model"}]}

    async def post(self, path, body):
        return {"choices": [{"message": {"content": body["model"]}}]}


async def test_a_judge_finds_its_model_once_and_again_after_a_failure():
    judge = OneWord("http://127.0.0.1:1", "", 1.0)
    await judge.close()
    judge._talk = Talk()
    with pytest.raises(ConnectionLost):
        await judge.ask("?")
    assert await asyncio.gather(judge.ask("?"), judge.ask("?")) == ["the model"] * 2
    assert judge._talk.listed == 2


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:9/v1/models"):
        asyncio.run(both_orders(ServedJudge(name="served", url="http://127.0.0.1:9"), TASKS))


@pytest.mark.parametrize("chat", [True, False])
def test_a_real_server_with_a_tiny_model_is_asked(text, monkeypatch, chat):
    monkeypatch.setenv(KEY, TOKEN)

    async def over():
        async with serving(service_of(tiny_models.build("qwen2", text, max_position_embeddings=1024))) as url:
            spec = ServedJudge(name="tiny", url=url, key=KEY, chat=chat, at_once=2)
            return await asyncio.wait_for(both_orders(spec, [pair("a", "b", "c")]), 60)

    (found,) = asyncio.run(over()).values()
    assert found.preference in (None, -1, 0, 1)
