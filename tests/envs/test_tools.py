"""The environment of tools: schemas from functions, calls that are answered, mistakes that are answered too, and an end."""

import time
from typing import Literal

import pytest
from env_examples import PROMPT, call, conversation, heard_by_tokenizer, played, played_without_end
from templates import family

import tiny_models
from penstock.core.columns import was_cut
from penstock.core.errors import SpecError
from penstock.core.types import Prompt, PromptKey
from penstock.data.resolve import register
from penstock.envs.making import env_class
from penstock.envs.schemas import fits, tool_of
from penstock.envs.spec import EnvironmentSpec
from penstock.envs.tools import ToolEnv


def add(a: int, b: int = 2) -> int:
    """The sum of two numbers.

    Args:
        a: the one
        b: the other
    """
    return a + b


async def find(word: str, place: Literal["title", "text"] = "title", limit: int | None = None) -> list[str]:
    """Texts with a word."""
    return [f"{word} in {place}"]


def count(state: dict) -> int:
    """How often it was called."""
    state["calls"] = state.get("calls", 0) + 1
    return state["calls"]


def broken() -> str:
    """Never works."""
    raise RuntimeError("out of paper")


def slow() -> str:
    """Takes long."""
    time.sleep(0.3)
    return "done"


BAD = "<tool_call>{</tool_call>"


def tools(threads, *functions, prompt=PROMPT, text=None, **options):
    given = {"tools": [register(function) for function in functions], **options}
    return conversation(ToolEnv, threads, prompt, text, options=given)


def test_a_function_becomes_a_schema():
    assert tool_of(add).schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "The sum of two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the one"},
                    "b": {"type": "integer", "description": "the other"},
                },
                "required": ["a"],
            },
        },
    }


def test_the_episodes_state_is_in_no_schema():
    assert tool_of(count).schema["function"]["parameters"]["properties"] == {}


def test_choices_and_optional_arguments_have_schemas():
    properties = tool_of(find).schema["function"]["parameters"]["properties"]
    assert properties["place"] == {"enum": ["title", "text"]}
    assert properties["limit"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        (1, {"type": "integer"}, True),
        (True, {"type": "integer"}, False),
        (1, {"type": "number"}, True),
        ("1", {"type": "number"}, False),
        ([1, "a"], {"type": "array", "items": {"type": "integer"}}, False),
        ({"a": 1}, {"type": "object", "additionalProperties": {"type": "integer"}}, True),
        (None, {"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ("c", {"enum": ["a", "b"]}, False),
        (False, {"type": "boolean"}, True),
    ],
)
def test_values_are_checked_as_json_types(value, schema, expected):
    assert fits(value, schema) is expected


def test_a_parameter_without_a_type_is_refused():
    def untyped(a):
        return a

    with pytest.raises(SpecError, match="annotate its parameter a"):
        tool_of(untyped)


def test_a_call_is_answered_and_a_turn_without_one_ends_the_episode(threads):
    sample, heard = played(tools(threads, add), [call("add", a=3, b=4), "It is 7."])
    assert heard == ["7", None]
    assert sample.extras["episode"] == {"turns": 2.0, "tool_calls": 1.0, "malformed_calls": 0.0, "truncated": 0.0}


def test_calls_of_a_turn_are_answered_in_their_order(threads):
    _, heard = played(tools(threads, add, find, slow), [call("slow") + call("find", word="x") + call("add", a=1)])
    assert heard == ['done\n["x in title"]\n3']


def test_an_episode_has_a_state_of_its_own(threads):
    assert played(tools(threads, count), [call("count"), call("count")])[1] == ["1", "2"]
    assert played(tools(threads, count), [call("count")])[1] == ["1"]


def test_what_the_state_holds_is_closed(threads):
    closed = []

    class Held:
        def close(self):
            closed.append(True)

    def hold(state: dict) -> str:
        """Keeps a thing."""
        state["held"] = Held()
        return "held"

    played(tools(threads, hold), [call("hold")])
    assert closed == [True]


@pytest.mark.parametrize(("called", "repeatable"), [("add", True), ("count", False)])
def test_after_a_tool_that_reached_the_world_the_episode_is_not_to_be_repeated(threads, called, repeatable):
    episode = tools(threads, add, count, world=["count"])
    played(episode, [call(called, **({"a": 1} if called == "add" else {}))])
    assert episode.env.repeatable is repeatable


@pytest.mark.parametrize(
    ("said", "answer", "fact"),
    [
        (call("addd", a=1), 'error: there is no tool "addd"; there are: add, broken, slow', "unknown_tools"),
        (call("add", b=1), 'error: add needs the argument "a"', "bad_arguments"),
        (call("add", a="1"), 'error: add: the argument "a" must be integer', "bad_arguments"),
        (call("add", a=1, c=1), 'error: add has no argument "c"; its arguments are: a, b', "bad_arguments"),
        (call("broken"), "error: RuntimeError: out of paper", "failed_calls"),
        (call("slow"), "error: slow took longer than 0.05 s", "failed_calls"),
        (BAD, "this is no call: Expecting property name", "malformed_calls"),
    ],
)
def test_what_goes_wrong_is_answered_and_counted(threads, said, answer, fact):
    sample, heard = played(tools(threads, add, broken, slow, seconds=0.05), [said])
    assert heard[0].startswith(answer)
    assert sample.extras["episode"][fact] == 1.0


def test_corrections_are_bounded_and_what_ends_so_costs(threads):
    sample, heard = played(tools(threads, add, corrections=1, penalty=0.5), [BAD, BAD])
    assert heard[-1] is None
    assert sample.extras["turns"][-1][2] == -0.5
    assert sample.extras["episode"]["gave_up"] == 1.0


def test_a_call_that_fits_begins_the_count_of_mistakes_anew(threads):
    _, heard = played(tools(threads, add, corrections=1), [BAD, call("add", a=1), BAD])
    assert None not in heard


def test_a_turn_that_was_cut_is_not_read_for_calls(threads):
    called = []

    def note() -> str:
        """Notes."""
        called.append(True)
        return "noted"

    sample = played_without_end(tools(threads, note), call("note"))
    assert was_cut(sample)
    assert called == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": []}, "needs tools of different names, got none"),
        ({"tools": ["os:getcwd", "os:getcwd"]}, "needs tools of different names, got getcwd"),
        ({"tools": ["os:getcwd"], "calls": "xml"}, "no format of tool calls"),
        ({"tools": ["os:nothing_there"]}, "has no"),
        ({"tools": ["os:getcwd"], "world": ["send"]}, 'the option world names "send"; the tools are getcwd'),
    ],
)
def test_tools_are_looked_up_before_anything_starts(options, message):
    with pytest.raises(SpecError, match=message):
        env_class(EnvironmentSpec(function="tools", options=options), None)


CHAT = Prompt(PromptKey("test", 0, 0), "hello", ({"role": "user", "content": "hello"},))


def heard_in_chat(threads, name):
    """What a family's conversation reads as after two calls."""
    text = family(name, tiny_models.CORPUS)
    episode = tools(threads, add, prompt=CHAT, text=text)
    return heard_by_tokenizer(episode, text, call("add", a=1) + call("add", a=2))


CHATML = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n"
HEARD = {
    "chatml": CHATML + "<|im_start|>assistant\n",
    "gemma": "\n<start_of_turn>user\n3\n4<end_of_turn>\n<start_of_turn>model\n",
}


@pytest.mark.parametrize("name", HEARD)
def test_results_are_turns_of_tools_where_the_template_has_them_and_one_of_the_user_where_not(name, threads):
    assert heard_in_chat(threads, name) == HEARD[name]


def test_python_runs_in_a_jail(threads):
    episode = conversation(ToolEnv, threads, options={"tools": ["python"]})
    code = "import os; print(6 * 7); print(os.listdir('/root'))"
    _, heard = played(episode, [call("python", code="print(6 * 7)"), call("python", code=code), "42"])
    assert heard[0] == "42\n"
    assert heard[1].startswith("42\n")
    assert "Error" in heard[1]
    assert heard[2] is None


def test_the_tool_python_has_a_schema_and_starts_nothing():
    given = ToolEnv.prepared({"tools": ["python"]}, None)
    (tool,) = given["tools"]
    assert tool.schema["function"]["parameters"]["required"] == ["code"]


def test_an_unknown_sandbox_of_python_is_refused():
    with pytest.raises(SpecError, match='sandbox "moon" is unknown'):
        ToolEnv.prepared({"tools": ["python:moon"]}, None)
