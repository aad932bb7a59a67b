"""Programs that speak the OpenAI and Anthropic APIs, unchanged, as episodes: through real clients, a real server and a tiny
real generator. What is trained is what was generated, once; what nobody heard is not; failures are data."""

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from agent_examples import Scripted, client, played
from episode_examples import model_of

from penstock.core.errors import SpecError
from penstock.core.types import LEFT_OUT, PART, Sampling
from penstock.envs.making import env_class
from penstock.envs.spec import EnvironmentSpec

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "fox"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def model():
    return model_of("chatml")


async def talks(row, base_url, api_key):
    """Two turns of chat; worth 0.5."""
    async with client(base_url, api_key) as agent:
        messages = [{"role": "user", "content": f"the {row['word']}"}]
        for said in ("brown fox", ""):
            answer = await agent.chat.completions.create(model="any", messages=messages)
            messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": said}]
    return 0.5


def test_a_program_is_an_episode_and_every_token_is_as_it_was_generated(model):
    samples, generator = played(model, talks, samples=3)
    assert generator.generated_tokens == sum(int(sample.action_T.sum()) for sample in samples)
    for sample in samples:
        assert sample.error is None
        assert [turn[2] for turn in sample.extras["turns"]] == [None, 0.5]
        assert PART not in sample.columns
        text = model.text.tokenizer.decode(sample.tokens_T)
        assert text.startswith("<|im_start|>user\nthe quick<|im_end|>\n<|im_start|>assistant\n")
        assert "<|im_start|>user\nbrown fox<|im_end|>\n<|im_start|>assistant\n" in text


def test_log_probs_of_an_episode_are_those_that_the_model_gives_its_tokens(model):
    (sample,), generator = played(model, talks, sampling=Sampling(max_new_tokens=6))
    logp_T = asyncio.run(generator.score(sample.tokens_T, 1.0))
    assert np.allclose(sample.logp_T[sample.action_T], logp_T[sample.action_T], atol=1e-4)


async def calls_a_tool(row, base_url, api_key):
    async with client(base_url, api_key) as agent:
        messages = [{"role": "user", "content": "what is"}]
        answer = (await agent.chat.completions.create(model="any", messages=messages, tools=[TOOL])).choices[0]
        assert answer.finish_reason == "tool_calls"
        (call,) = answer.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": "fox"})
        messages += [
            answer.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "brown"},
        ]
        answer = (await agent.chat.completions.create(model="any", messages=messages, tools=[TOOL])).choices[0]
    return float(answer.message.content == "the end")


def test_tool_calls_go_out_and_their_results_come_in_after_the_tokens_that_were_generated(model):
    (sample,), _ = played(model, calls_a_tool, script=(CALL, "the end"))
    text = model.text.tokenizer.decode(sample.tokens_T)
    assert sample.extras["turns"][1][2] == 1.0
    assert sample.extras["episode"]["tool_calls"] == 1
    assert CALL + "<|im_end|>\n<|im_start|>user\n<tool_response>\nbrown\n</tool_response><|im_end|>\n" in text
    assert PART not in sample.columns


async def streams(row, base_url, api_key):
    async with client(base_url, api_key) as agent:
        messages, said, names = [{"role": "user", "content": "what is"}], "", []
        stream = await agent.chat.completions.create(
            model="any", messages=messages, tools=[TOOL], stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            for choice in chunk.choices:
                said += choice.delta.content or ""
                names += [call.function.name for call in choice.delta.tool_calls or ()]
            used = chunk.usage
    return float((said, names, used.completion_tokens > 5) == ("I look.", ["look"], True))


async def responds(row, base_url, api_key):
    async with client(base_url, api_key) as agent:
        tool = {"type": "function", **TOOL["function"]}
        said = [{"role": "user", "content": "what is"}]
        async with agent.responses.stream(model="any", input=said, tools=[tool], instructions="be quick") as stream:
            async for _ in stream:
                pass
            first = await stream.get_final_response()
        (call,) = [item for item in first.output if item.type == "function_call"]
        said += [item.model_dump(exclude_none=True) for item in first.output]
        said = [{k: v for k, v in item.items() if k not in ("id", "status", "parsed_arguments")} for item in said]
        said.append({"type": "function_call_output", "call_id": call.call_id, "output": "brown"})
        last = await agent.responses.create(model="any", input=said, tools=[tool], instructions="be quick")
    return float(last.output_text == "the end")


async def speaks_anthropic(row, base_url, api_key):
    import anthropic

    tool = {"name": "look", "description": "looks", "input_schema": {"type": "object", "properties": {}}}
    given = {"model": "any", "max_tokens": 50, "tools": [tool], "system": "be quick"}
    async with anthropic.AsyncAnthropic(base_url=base_url.removesuffix("/v1"), api_key=api_key, max_retries=0) as agent:
        messages = [{"role": "user", "content": "what is"}]
        async with agent.messages.stream(messages=messages, **given) as stream:
            first = await stream.get_final_message()
        (call,) = [block for block in first.content if block.type == "tool_use"]
        assert (first.stop_reason, call.input) == ("tool_use", {"at": "fox"})
        content = [{"type": block.type, **({"text": block.text} if block.type == "text" else
                    {"id": block.id, "name": block.name, "input": block.input})} for block in first.content]  # fmt: skip
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "brown"}]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
        last = await agent.messages.create(messages=messages, **given)
    return float(last.content[0].text == "the end")


@pytest.mark.parametrize(
    ("program", "script"),
    [(streams, [f"I look. {CALL}"]), (responds, [CALL, "the end"]), (speaks_anthropic, [f"I look. {CALL}", "the end"])],
    ids=["chat completions, streamed", "the responses API", "Anthropic's messages"],
)
def test_each_api_is_spoken_streamed_and_whole(program, script, model):
    if program is speaks_anthropic:
        pytest.importorskip("anthropic")
    (sample,), _ = played(model, program, script=script)
    assert sample.error is None
    assert [turn[2] for turn in sample.extras["turns"]] == [*[None] * (len(script) - 1), 1.0]
    assert PART not in sample.columns


def by_smolagents(row, base_url, api_key):
    """Its own loop, prompts and tools; plain, so it runs in a thread."""
    import smolagents

    class Look(smolagents.Tool):
        name, description, output_type = "look", "looks", "string"
        inputs = {"at": {"type": "string", "description": "where"}}  # noqa: RUF012

        def forward(self, at):
            return "brown " + at

    model = smolagents.OpenAIServerModel("any", api_base=base_url, api_key=api_key)
    agent = smolagents.ToolCallingAgent(tools=[Look()], model=model, max_steps=3, verbosity_level=0)
    return float(agent.run("what is it?") == "brown fox")


def test_an_agent_of_smolagents_is_an_episode_without_a_changed_line(model):
    pytest.importorskip("smolagents")
    answer = CALL.replace("look", "final_answer").replace('"at": "fox"', '"answer": "brown fox"')
    (sample,), _ = played(model, by_smolagents, script=(CALL, answer))
    assert sample.error is None
    assert [turn[2] for turn in sample.extras["turns"]] == [None, 1.0]
    assert sample.extras["episode"]["tool_calls"] == 2


async def two_at_once(row, base_url, api_key):
    """A sub-agent beside the agent, whose turns alternate."""
    async with client(base_url, api_key) as agent:

        async def talk(word):
            messages = [{"role": "user", "content": word}]
            for _ in range(2):
                answer = await agent.chat.completions.create(model="any", messages=messages)
                messages += [
                    {"role": "assistant", "content": answer.choices[0].message.content},
                    {"role": "user", "content": word},
                ]

        await asyncio.gather(talk("the quick"), talk("brown fox"))
    return 1.0


def test_turns_of_sub_agents_are_parts_and_each_generated_token_is_trained_once(model):
    samples, generator = played(model, two_at_once, samples=2)
    assert generator.generated_tokens == sum(int(sample.action_T.sum()) for sample in samples)
    for sample in samples:
        assert sample.error is None
        text = model.text.tokenizer
        for part in range(int(sample.columns[PART].max()) + 1):
            said = text.decode(sample.tokens_T[sample.columns[PART] == part])
            assert ("the quick" in said) != ("brown fox" in said)
        for begin, end, _, _ in sample.extras["turns"]:
            assert sample.action_T[begin:end].all()


async def asks_again(row, base_url, api_key):
    """The same body twice: marked as a retry after the connection broke, and as a new call."""
    body = {"model": "any", "messages": [{"role": "user", "content": "what is"}]}
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as web:
        answers = [
            (await web.post(f"{base_url}/chat/completions", json=body, headers={"x-stainless-retry-count": str(count)})).json()
            for count in (0, 1, 0)
        ]
    first, again, new = [answer["choices"][0]["message"]["content"] for answer in answers]
    return float(first == again != new)


def test_a_retry_is_answered_as_before_and_the_same_call_without_its_mark_is_another_turn(model):
    (sample,), _ = played(model, asks_again, script=("one", "two"))
    assert [turn[2] for turn in sample.extras["turns"]] == [None, 1.0]


async def leaves(row, base_url, api_key):
    """Hangs up on its first call, whose answer nobody hears."""
    body = {"model": "any", "messages": [{"role": "user", "content": "what is"}]}
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}, timeout=30) as web:
        call = asyncio.ensure_future(web.post(f"{base_url}/chat/completions", json=body))
        await HEARD.wait()
        call.cancel()
        await asyncio.sleep(0.2)
        HUNG_UP.set()
        body["messages"][0]["content"] = "brown fox"
        await web.post(f"{base_url}/chat/completions", json=body)
    return 1.0


HEARD, HUNG_UP = asyncio.Event(), asyncio.Event()


class Patient(Scripted):
    """Answers its first call after the client has hung up."""

    async def generate(self, request, on_token=None):
        HEARD.set()
        await HUNG_UP.wait()
        return await super().generate(request, on_token)


def test_a_turn_that_nobody_heard_is_not_trained(model):
    (sample,), _ = played(model, leaves, script=("one", "two"), writes=Patient)
    (begin, end, _, _), (again, last, _, _) = sample.extras["turns"]
    assert not sample.action_T[begin:end].any()
    assert sample.extras[LEFT_OUT][begin:end].all()
    assert sample.action_T[again:last].all()
    assert sample.extras["episode"]["unheard"] == 1


def test_a_call_after_the_end_is_refused_and_changes_nothing(model):
    late, status = [], []

    async def forgets(row, base_url, api_key):
        await talks(row, base_url, api_key)
        late.append((base_url, api_key))
        return 1.0

    async def calls_late():
        ((base_url, key),) = late
        body = {"model": "any", "messages": [{"role": "user", "content": "x"}]}
        async with httpx.AsyncClient() as web:
            for name in (key, "sk-another"):
                headers = {"Authorization": f"Bearer {name}"}
                status.append((await web.post(f"{base_url}/chat/completions", json=body, headers=headers)).status_code)

    played(model, forgets, then=calls_late)
    assert status == [409, 401]


async def says_too_much(row, base_url, api_key):
    async with client(base_url, api_key) as agent:
        await agent.chat.completions.create(model="any", messages=[{"role": "user", "content": "the quick " * 200}])


def raises(row, base_url, api_key):
    raise RuntimeError("out of luck")


async def hangs(row, base_url, api_key):
    await asyncio.sleep(100)


async def never_calls(row, base_url, api_key):
    return 1.0


async def gives_a_text(row, base_url, api_key):
    await talks(row, base_url, api_key)
    return "much"


async def gives_nan(row, base_url, api_key):
    await talks(row, base_url, api_key)
    return float("nan")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (raises, "raised RuntimeError in turn 1: out of luck"),
        (says_too_much, "the model's context is 128"),
        (hangs, "took longer than 0.5 s"),
        (never_calls, "ended without a call"),
        (gives_a_text, "gave 'much' as a reward"),
        (gives_nan, "gave nan as a reward"),
    ],
)
def test_a_program_that_fails_marks_its_sample_with_an_error_that_says_how(model, program, words):
    (sample,), _ = played(model, program, deadline=0.5 if program is hangs else 30.0)
    assert words in sample.error


COMMAND = """
import json, os, sys, urllib.request
row = json.load(sys.stdin)
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": row["word"]}]}).encode()
key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
said = json.load(urllib.request.urlopen(urllib.request.Request(url, body, key)))["choices"][0]["message"]["content"]
print("thinking")
print(0.25 if said == "one" else 0)
"""


def test_a_command_is_a_program_and_its_last_line_the_reward(model, tmp_path):
    (tmp_path / "agent.py").write_text(COMMAND)
    command = f"{sys.executable} {tmp_path}/agent.py"
    (sample,), _ = played(model, {"command": command}, script=("one",), deadline=120.0)
    assert sample.error is None
    assert sample.extras["turns"][0][2] == 0.25


def test_a_command_that_fails_is_named_with_what_it_said(model):
    (sample,), _ = played(model, {"command": f"{sys.executable} -c \"import sys; sys.exit('no luck')\""})
    assert "exit code 1: no luck" in sample.error


def test_a_command_that_hangs_ends_with_its_group(model, tmp_path):
    program = "import subprocess, sys, time\nchild = subprocess.Popen(['sleep', '100'])\n"
    program += f"open('{tmp_path}/pid', 'w').write(str(child.pid))\ntime.sleep(100)"
    (tmp_path / "agent.py").write_text(program)
    (sample,), _ = played(model, {"command": f"{sys.executable} {tmp_path}/agent.py"}, deadline=5.0)
    assert "took longer than 5 s" in sample.error
    pid, deadline = (tmp_path / "pid").read_text(), time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs one of function, command and url in its options, got none"),
        ({"command": "a", "url": "b"}, "got ['command', 'url']"),
        ({"function": "nowhere.py:main"}, "nowhere.py"),
        ({"command": "a", "calls": "telex"}, 'calls="telex" is no format'),
        ({"command": "a", "flavour": 1}, "flavour"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_run(options, words):
    with pytest.raises(SpecError) as raised:
        env_class(EnvironmentSpec(function="agent", options=options), None)
    assert words in str(raised.value)


ASKED = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("chat/completions", {"messages": []}, "messages must be a list"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 2}, "n"),
        ("chat/completions", {"messages": [{"role": "king", "content": "a"}]}, "role must be"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text alone"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "colour": 1}, "colour"),
        ("responses", {"input": "a", "previous_response_id": "resp_1"}, "give the conversation in input"),
        ("responses", {"input": "a", "tools": [{"type": "web_search"}]}, "only functions"),
        (
            "messages",
            {**ASKED, "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "'web_search_20250305' is a tool of",
        ),
        ("messages", {**ASKED, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]: only functions are served"),
        ("messages", {**ASKED, "tools": [{"name": "a", "input_schema": {}, "input_examples": []}]}, "tools[0].input_examples"),
        (
            "chat/completions",
            {**ASKED, "tools": [{"type": "custom", "custom": {"name": "a"}}]},
            "tools[0]: only functions are served",
        ),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 4}, "image"),
        ("messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_one_line_and_the_episode_goes_on(model, path, body, words):
    seen = []

    async def asks_wrongly(row, base_url, api_key):
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}) as web:
            seen.append(await web.post(f"{base_url}/{path}", json=body))
        await talks(row, base_url, api_key)
        return 1.0

    (sample,), _ = played(model, asks_wrongly)
    (answer,) = seen
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert sample.extras["turns"][-1][2] == 1.0


def said_by(role, content, **more):
    return [{"role": role, "content": content, **more}]


CALLED = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLS = [
    3, {**CALLED, "function": "look"}, {**CALLED, "function": {"name": 3}},
    *({**CALLED, "function": {"name": "a", "arguments": wrong}} for wrong in ("[1]", "{", '{"a": NaN}', '{"a": "\\ud83d"}', 3)),
]  # fmt: skip
CONTENTS = [3, [3], ["a"], {"type": "text"}, [{"type": ["text"], "text": "a"}], [{"type": "text", "text": 3}]]
MISSHAPEN = {
    "chat/completions": [
        {"messages": {}}, {"messages": ["a"]}, {"messages": [None]}, {"messages": said_by(["user"], "a")},
        *({"messages": said_by("user", wrong)} for wrong in CONTENTS), {"messages": said_by("assistant", None, tool_calls={})},
        *({"messages": said_by("assistant", None, tool_calls=[wrong])} for wrong in CALLS),
        {"messages": said_by("tool", "a", tool_call_id=3)}, {"messages": said_by("user", "a", colour="red")},
        {**ASKED, "tools": {}}, {**ASKED, "tools": [3]}, {**ASKED, "tools": 3},
        {**ASKED, "tools": [{"type": "function", "function": []}]}, {**ASKED, "stop": 3}, {**ASKED, "stream_options": []},
        {**ASKED, "tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]},
        {**ASKED, "max_tokens": "4"}, {**ASKED, "stream": "yes"}, {**ASKED, "model": 3},
    ],
    "responses": [
        {"input": 3}, {"input": {}}, {"input": [3]}, {"input": []}, {"input": [{"type": ["message"]}]},
        {"input": [{"type": "function_call", "name": 3, "call_id": "a"}]},
        {"input": [{"type": "function_call_output", "call_id": 3, "output": "a"}]},
        {"input": "a", "text": 3}, {"input": "a", "text": {"format": 3}}, {"input": "a", "tools": [["function"]]},
        {"input": "a", "tools": "all"}, {"input": "a", "instructions": 3},
    ],
    "messages": [
        {**ASKED, "system": 3}, {**ASKED, "system": [3]}, {**ASKED, "tools": ["a"]}, {**ASKED, "tools": {"name": "a"}},
        {**ASKED, "tools": [{"name": 3, "input_schema": {}}]}, {**ASKED, "tools": [{"name": "a", "input_schema": []}]},
        *({"messages": said_by("user", wrong)} for wrong in CONTENTS),
        {"messages": said_by("assistant", [{"type": "tool_use", "id": "a", "name": 3, "input": {}}])},
        {"messages": said_by("assistant", [{"type": "tool_use", "id": "a", "name": "a", "input": 3}])},
        {"messages": said_by("user", [{"type": "tool_result", "tool_use_id": "a", "content": 3}])},
        {"messages": said_by("user", [{"type": "tool_result", "tool_use_id": "a", "is_error": "no"}])},
    ],
}  # fmt: skip


@pytest.mark.parametrize("path", MISSHAPEN)
def test_values_of_another_type_are_refused_wherever_they_are(model, path):
    answers = []

    async def asks_wrongly(row, base_url, api_key):
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}) as web:
            for body in MISSHAPEN[path]:
                answers.append(await web.post(f"{base_url}/{path}", json=body))
            await web.post(f"{base_url}/chat/completions", json=ASKED)
        return 1.0

    (sample,), _ = played(model, asks_wrongly, script=("one",))
    wrong = [body for body, answer in zip(MISSHAPEN[path], answers, strict=True) if answer.status_code != 400]
    assert wrong == []
    assert sample.extras["turns"][-1][2] == 1.0


async def thinks_of_a_call(row, base_url, api_key):
    async with client(base_url, api_key) as agent:
        messages = [{"role": "user", "content": "what is"}]
        answer = (await agent.chat.completions.create(model="any", messages=messages, tools=[TOOL])).choices[0]
    return float((answer.finish_reason, answer.message.tool_calls) == ("stop", None))


def test_a_call_within_a_thought_goes_to_nobody(model):
    (sample,), _ = played(model, thinks_of_a_call, script=(f"<think>{CALL}</think>no",))
    assert sample.extras["turns"][0][2] == 1.0


def test_a_program_that_leaves_the_reward_to_others_is_not_given_one(model):
    async def says_nothing(row, base_url, api_key):
        await talks(row, base_url, api_key)

    (sample,), _ = played(model, says_nothing)
    assert [turn[2] for turn in sample.extras["turns"]] == [None, None]
