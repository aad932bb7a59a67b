"""Tool calls in what a policy wrote: each family's format, and what is no call is said in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import SpecError
from penstock.envs.calls import FORMATS, Call, Parsed, parsed

ADD, NOW = Call("add", {"a": 1, "b": [2]}), Call("now", {})
ONE = '{"name": "add", "arguments": {"a": 1, "b": [2]}}'
TWO = '{"name": "now", "arguments": {}}'


@pytest.mark.parametrize(
    ("calls", "raw", "expected"),
    [
        ("hermes", f"I see.\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>{TWO}</tool_call>", (ADD, NOW)),
        ("hermes", f"<tool_call>{ONE}</tool_call>", (ADD,)),
        ("llama", '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": [2]}}', (ADD,)),
        ("llama", '{"name": "add", "parameters": {"a": 1, "b": [2]}}; {"name": "now", "parameters": {}}', (ADD, NOW)),
        ("mistral", f"[TOOL_CALLS] [{ONE}, {TWO}]", (ADD, NOW)),
        ("mistral", '[TOOL_CALLS]add{"a": 1, "b": [2]}[TOOL_CALLS]now[ARGS]{}', (ADD, NOW)),
        ("json", ONE, (ADD,)),
        ("json", f"```json\n[{ONE}, {TWO}]\n```", (ADD, NOW)),
        ("json", '{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": [2]}"}', (ADD,)),
    ],
)
def test_calls_are_read_in_each_format(calls, raw, expected):
    assert parsed(raw, calls) == Parsed(expected)


@pytest.mark.parametrize("calls", sorted(FORMATS))
def test_a_turn_in_plain_words_has_no_call(calls):
    assert parsed("The answer is 4.", calls) == Parsed()


@pytest.mark.parametrize(
    ("calls", "raw"),
    [
        ("hermes", "<tool_call>{nonsense}</tool_call>"),
        ("hermes", f"<tool_call>{ONE}"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>"),
        ("hermes", "<tool_call>" + "[" * 50_000 + "</tool_call>"),
        ("llama", "<|python_tag|>{oh"),
        ("llama", f"{ONE} and so on"),
        ("mistral", "[TOOL_CALLS] add"),
        ("json", "{1}"),
    ],
)
def test_what_is_no_call_is_a_problem_in_words(calls, raw):
    found = parsed(raw, calls)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("this is no call: ")


def test_calls_before_one_that_cannot_be_read_are_kept():
    found = parsed(f"<tool_call>{TWO}</tool_call><tool_call>x</tool_call>", "hermes")
    assert (found.calls, len(found.problems)) == ((NOW,), 1)


@given(st.sampled_from(sorted(FORMATS)), st.text(alphabet='{}[]":,;<>|/ aTOL_C', max_size=60))
def test_nothing_that_is_written_raises(calls, raw):
    assert isinstance(parsed(raw, calls), Parsed)
    assert isinstance(parsed("<tool_call>" + raw, calls), Parsed)


def test_a_format_that_is_not_known_is_refused():
    with pytest.raises(SpecError, match="known are hermes, llama, mistral, json"):
        parsed("", "xml")


HIDDEN = f"<tool_call>{TWO}</tool_call>"
QUOTES = Call("f", {"a": "<think>"})


@pytest.mark.parametrize(
    ("calls", "raw", "thinking", "expected"),
    [
        ("hermes", f"<think>\n{HIDDEN}</think>\nno", False, ()),
        ("hermes", f"<think>\n{HIDDEN}", False, ()),
        ("hermes", f"[THINK]{HIDDEN}[/THINK]<tool_call>{ONE}</tool_call>", False, (ADD,)),
        ("hermes", f"{HIDDEN}</think><tool_call>{ONE}</tool_call>", True, (ADD,)),
        ("hermes", HIDDEN, True, ()),
        ("hermes", f"<think>a</think>{HIDDEN}<think>{HIDDEN}</think>", False, (NOW,)),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "<think>"}}</tool_call>', False, (QUOTES,)),
        ("llama", f"<think>a</think>\n{TWO}", False, (NOW,)),
        ("llama", f"<think><|python_tag|>{TWO}</think>no", False, ()),
        ("mistral", f"[THINK][TOOL_CALLS][{TWO}][/THINK]no", False, ()),
        ("json", f"<think>a</think>\n{TWO}", False, (NOW,)),
        ("json", f"<think>{TWO}</think>", False, ()),
    ],
)  # fmt: skip
def test_a_call_that_was_only_thought_of_is_none(calls, raw, thinking, expected):
    assert parsed(raw, calls, thinking) == Parsed(expected)
