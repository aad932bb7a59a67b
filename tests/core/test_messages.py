"""What is a chat message, whoever hands it over, and what is refused, by its place."""

from __future__ import annotations

import pytest

from penstock.core.messages import OPENAI_KEYS, OPENAI_ROLES, MessageError, arguments_of, read_message, read_messages

USER = {"role": "user", "content": "a"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def calling(*calls, **more):
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def test_a_content_in_parts_is_one_text_and_what_is_null_or_empty_is_not_there():
    """Parts of both of OpenAI's APIs; nulls are those of a table, empty lists those of a client that sends an answer back."""
    parts = [{"type": "text", "text": "a", "annotations": []}, {"type": "input_text", "text": "b", "image_url": None}]
    given = {"role": "user", "content": parts, "name": None, "refusal": "", "annotations": [], "tool_calls": []}
    assert read_message(given, "messages[0]", OPENAI_ROLES, OPENAI_KEYS) == {"role": "user", "content": "ab"}


@pytest.mark.parametrize(
    "call", [CALL, {**CALL, "type": None}, {"id": "c1", **CALL["function"]}], ids=["whole", "null", "bare"]
)
def test_a_call_is_one_of_a_function_with_its_arguments_as_they_were_given(call):
    (read,) = read_message(calling(call), "messages[0]")["tool_calls"]
    assert read == CALL
    assert arguments_of(read) == {"x": 1}


def test_an_empty_content_stays_and_a_null_one_goes():
    assert "content" not in read_message(calling(CALL), "messages[0]")
    assert read_message(calling(CALL, content=""), "messages[0]")["content"] == ""


@pytest.mark.parametrize(
    ("message", "where", "says"),
    [
        ("a", "", "a mapping with role and content"),
        ({"content": "a"}, ".role", "a turn has a role"),
        ({**USER, "role": ["user"]}, ".role", "a role must be one of system"),
        ({**USER, "role": "human"}, ".role", 'write "user"'),
        ({"role": "user"}, ".content", "a content is a text"),
        ({**USER, "content": {"type": "text", "text": "a"}}, ".content", "a content is a text"),
        ({**USER, "content": [{"type": "text", "text": 3}]}, ".content[0]", 'the type "text"'),
        ({**USER, "content": [{"type": ["text"], "text": "a"}]}, ".content[0]", "a text alone"),
        ({**USER, "content": [{"type": "text", "text": "a", "colour": 1}]}, ".content[0]", 'nobody reads "colour"'),
        ({**USER, "colour": "red"}, "", 'nobody reads "colour" of a message'),
        ({**USER, "function_call": {"name": "f"}}, "", 'write "tool_calls"'),
        ({**USER, "tool_call_id": 3}, ".tool_call_id", "give a text"),
        ({**USER, "tool_calls": [CALL]}, ".tool_calls", "is the assistant's"),
        (calling(), ".content", "a content is a text"),
        (calling(tool_calls=CALL), ".tool_calls", "they are a list"),
        (calling("f"), ".tool_calls[0]", "a call is"),
        (calling({**CALL, "function": {"name": 3}}), ".tool_calls[0]", "a call is"),
        (calling({**CALL, "type": "custom"}), ".tool_calls[0]", "type 'custom'"),
        (calling({**CALL, "id": 3}), ".tool_calls[0].id", "give a text"),
        (calling({**CALL, "colour": 1}), ".tool_calls[0]", 'nobody reads "colour"'),
        *((calling({"name": "f", "arguments": given}), ".tool_calls[0]", "arguments") for given in ("{", "[1]", "NaN", 3)),
    ],
)
def test_what_is_no_message_is_refused_by_its_place(message, where, says):
    with pytest.raises(MessageError) as caught:
        read_messages([USER, message], "messages", OPENAI_ROLES, OPENAI_KEYS)
    assert caught.value.where == f"messages[1]{where}"
    assert says in str(caught.value)
    assert str(caught.value).startswith(caught.value.where)


@pytest.mark.parametrize("value", [None, [], "a", {"role": "user"}])
def test_a_conversation_is_a_list_of_messages(value):
    with pytest.raises(MessageError, match="messages must be a list"):
        read_messages(value, "messages")
