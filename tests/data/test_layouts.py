"""Rows of published layouts become what their authors mean, or are refused by name."""

from __future__ import annotations

import re

import pytest
from your_data import BLUE, GREEN, PAGE, ROWS, SKY, model, page, read, user

from penstock.config.run import DataSpec
from penstock.core.errors import DataError
from penstock.core.types import PromptKey
from penstock.data.render import Renderer
from penstock.data.texts import example_texts

KEY = PromptKey("rows", 0, 0)
BY_NAME = {one.layout: one for one in ROWS}


def renderer(**fields):
    return Renderer(DataSpec(source="rows.jsonl", **fields))


def example(row, **fields):
    return renderer(**fields).example(KEY, row, 0)


def pair(row, **fields):
    return renderer(**fields).pair(KEY, row, 0)


def test_the_page_shows_what_each_row_becomes():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: python tests/data/your_data.py"


def test_layouts_are_there_once():
    assert len(BY_NAME) == len(ROWS)


@pytest.mark.parametrize("layout", [
    "TRL preference, conversational", "TRL preference, conversational, implicit prompt", "OpenAI preference",
    "UltraFeedback, binarized: the prompt is said twice", "LLaMA-Factory sharegpt, preference",
])  # fmt: skip
def test_preferences_in_messages_are_one_prompt_and_two_turns(layout):
    found = read(BY_NAME[layout])
    assert {name: found[name] for name in ("prompt", "chosen", "rejected")} == {
        "prompt": [user(SKY)], "chosen": model(BLUE), "rejected": model(GREEN)
    }  # fmt: skip


@pytest.mark.parametrize("layout", [
    "TRL language modeling, conversational", "TRL prompt-completion, conversational", "ShareGPT", "Axolotl chat_template",
    "verl, SFT",
])  # fmt: skip
def test_conversations_are_messages_that_end_with_the_answer(layout):
    assert read(BY_NAME[layout]) == {"prompt": [user(SKY)], "learned": [model(BLUE)]}


def test_a_prompt_of_messages_is_asked_by_the_chat_template_without_being_told_to():
    assert renderer().prompt(KEY, {"prompt": [user(SKY)]}, 0).messages == (user(SKY),)


def test_messages_in_a_column_that_a_template_names_are_messages():
    assert renderer(prompt="{{ question }}").prompt(KEY, {"question": [user(SKY)]}, 0).messages == (user(SKY),)


def test_of_a_conversational_completion_its_own_turns_alone_are_learned():
    row = {"prompt": [user("a"), model("b"), user("c")], "completion": [model("d")]}
    assert [turn for _, turn in example(row).turns] == [model("d")]


def test_a_turn_of_weight_0_is_read_and_not_learned():
    made = example({"messages": [user("a"), model("b", weight=0), user("c"), model("d", weight=1)]})
    assert made.turns == [((user("a"), model("b"), user("c")), model("d"))]


def test_a_conversation_whose_last_turn_has_weight_0_is_refused_where_that_turn_is_learned():
    with pytest.raises(DataError, match="weight 0, so nothing is left to learn"):
        example_texts(example({"messages": [user("a"), model("b", weight=0)]}), None)


def test_the_answer_of_verl_is_where_rewards_look_for_it():
    prompt = renderer().prompt(KEY, BY_NAME["verl, PPO and GRPO"].row, 0)
    assert (prompt.messages, prompt.columns["answer"]) == ((user("2 + 2?"),), "4")


def test_transcripts_are_split_before_the_last_answer():
    first = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Bye\n\nAssistant: So long"
    made = pair({"chosen": first, "rejected": first.replace("So long", "No")}, chat=True)
    assert made.prompt.messages == (user("Hi"), model("Hello"), user("Bye"))
    assert made.answers == {"chosen": model("So long"), "rejected": model("No")}


@pytest.mark.parametrize("chat", [False, True])
def test_a_pair_that_holds_its_better_conversation_a_third_time_is_that_pair(chat):
    """As HuggingFaceH4/ultrafeedback_binarized has it, whose ``messages`` are for SFT."""
    both = {"chosen": [user(SKY), model(BLUE)], "rejected": [user(SKY), model(GREEN)]}
    made = pair({"prompt": SKY, **both, "messages": both["chosen"]}, chat=chat)
    assert (made.prompt.messages, made.answers) == ((user(SKY),), {"chosen": model(BLUE), "rejected": model(GREEN)})


@pytest.mark.parametrize(("kind", "row", "says"), [
    ("pairs", {"chosen": [user("a"), model("b")], "rejected": [user("c"), model("b")]}, "different messages before the last"),
    ("pairs", {"prompt": "x", "chosen": [user("a"), model("b")], "rejected": [user("a"), model("c")]}, "other messages than"),
    ("pairs", {"chosen": [model("b")], "rejected": [model("c")]}, "give the prompt"),
    ("pairs", {"prompt": "a", "chosen": [user("b")], "rejected": [user("c")]}, "assistant's turn alone"),
    ("pairs", {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: c\n\nAssistant: b"}, "do not differ first in"),
    ("pairs", {"prompt": "The sky", "chosen": "The sky is blue", "rejected": "The sky is red"}, "both begin with the prompt"),
    ("pairs", {"prompt": "[{'role': 'user', 'content': 'a'}]", "chosen": "b", "rejected": "c"}, "messages spelled as a text"),
    ("examples", {"prompt": '[{"role": "user", "content": "a"}]', "completion": "b"}, "messages spelled as a text"),
    ("examples", {"prompt": "a", "completion": "b", "system": "Be brief."}, "nobody reads the column system"),
    ("examples", {"prompt": "a", "completion": "b", "tools": [{"name": "f"}]}, "nobody reads tools of a bare prompt"),
    ("examples", {"instruction": "a", "input": "", "output": "b", "prompt": "c"}, "both prompt and instruction"),
    ("examples", {"messages": [user("a"), model("b"), user("c")]}, "end with a turn of the role user"),
    ("examples", {"prompt": [user("a")], "completion": [user("b")]}, "ends with the assistant's turn"),
    ("examples", {"conversations": [{"from": "robot", "value": "a"}]}, 'ShareGPT has {"from": "human" or "gpt"'),
    ("examples", {"conversations": [{"from": "human", "value": "a", "speaker": 3}]}, 'nobody reads "speaker"'),
    ("examples", {"conversations": [{"from": "function_call", "value": "f(x)"}]}, "holds JSON"),
    ("examples", {"instruction": 3, "input": "", "output": "b"}, "are texts"),
    ("examples", {"instruction": "a", "history": ["b"], "output": "c"}, "list of .question, answer."),
    ("examples", {"messages": [user("a"), model("b", weight=2)]}, "weight=2"),
    ("examples", {"messages": [{**user("a"), "weight": 1}, model("b")]}, "weight=1 of the role user"),
    ("examples", {"messages": [{"role": "human", "content": "a"}, model("b")]}, 'write "user"'),
    ("examples", {"messages": [{"role": "wizard", "content": "a"}, model("b")]}, "a role must be one of"),
    ("examples", {"messages": [user("a"), model("b", mood="good")]}, 'nobody reads "mood"'),
    ("examples", {"messages": [user("a"), {"role": "assistant", "content": None, "function_call": {}}]}, "a content is a text"),
    ("examples", {"messages": [user("a"), model("b", function_call={"name": "f"})]}, 'write "tool_calls"'),
    ("examples", {"messages": [user("a"), {"role": "assistant", "tool_calls": ["f"]}]}, "a call is"),
    ("examples", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, model("b")]}, 'the type "image_url"'),
    ("prompts", {"prompt": [user("a"), model("b")]}, "nothing is left to answer"),
    ("prompts", {"prompt": []}, "a value is a list"),
    ("prompts", {"prompt": {"text": "a"}}, "of the type dict"),
    ("prompts", {"prompt": ["a", "b"]}, "a value is a list"),
    ("prompts", {"prompt": True}, "of the type bool"),
    ("prompts", {"prompt": float("nan")}, "of the type float"),
    ("prompts", {"question": "a", "answer": "b"}, 'prompt="{{ question }}"'),
    ("prompts", {"messages": [user("a")], "tool_defs": [{}]}, "call the column tools"),
])  # fmt: skip
def test_what_breaks_its_layout_is_refused_with_its_row(kind, row, says):
    made = {"prompts": renderer().prompt, "examples": renderer().example, "pairs": renderer().pair}[kind]
    with pytest.raises(DataError, match=f"rows row 0.*{says}|{says}.*rows row 0"):
        made(KEY, row, 0)


@pytest.mark.parametrize("template", ["{{ a ~ b }}", "{{ 'x' ~ b }}", "{{ b }}"])
def test_what_a_template_joins_is_a_text_too(template):
    with pytest.raises(DataError, match="a value is a list"):
        renderer(prompt=template).prompt(KEY, {"a": "x", "b": [1]}, 0)


def test_templates_of_ones_own_are_what_is_read():
    row = {"question": "Hi", "chosen": "ab cd", "rejected": "ab ef"}
    made = pair(row, prompt="{{ question }}")
    assert (made.prompt.text, made.answers) == ("Hi", {"chosen": model("ab cd"), "rejected": model("ab ef")})


def test_parts_of_text_are_one_text():
    made = renderer().prompt(
        KEY, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}, 0
    )
    assert made.messages == (user("ab"),)


def test_nulls_of_messages_are_left_out():
    """Arrow gives every message of a column all keys that any of them has."""
    row = {"messages": [{**user("a"), "tool_calls": None, "name": None}, model("b", tool_calls=None)]}
    assert example(row).turns == [((user("a"),), model("b"))]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "2 + 2?", "chosen": "It is 4.", "rejected": "It is 5."}, 'is it prompt="{{ question }}"'),
        ({"system": "", "question": "2 + 2?", "chosen": "4", "rejected": "5"}, "is it prompt="),
        ({"chosen": "Yes", "rejected": "No"}, "do not begin with the same words"),
        ({"chosen": "", "rejected": "No way"}, "do not begin with the same words"),
    ],
    ids=["a question", "orca_dpo_pairs", "nothing shared", "an empty answer"],
)
def test_a_pair_whose_prompt_is_elsewhere_is_not_read_as_one_without(row: dict[str, str], said: str) -> None:
    """What both answers happen to begin with is not what was asked."""
    with pytest.raises(DataError, match=re.escape(said)):
        pair(row)


@pytest.mark.parametrize(("row", "given", "prompt", "answers"), [
    ({"prompt": "a", "messages": [user("a"), model("b")]}, {}, [user("a")], [model("b")]),
    ({"prompt": "a", "completion": [model("b")]}, {}, [user("a")], [model("b")]),
    ({"prompt": [user("a")], "completion": model("b")}, {}, [user("a")], [model("b")]),
    ({"conversation": [user("a"), model("b")]}, {}, [user("a")], [model("b")]),
    ({"messages": [{**user("a"), "weight": 0}, model("b", weight=1)]}, {}, [user("a")], [model("b")]),
    ({"messages": [user("a"), model("b")], "system": "S"}, {}, [{"role": "system", "content": "S"}, user("a")], [model("b")]),
    ({"prompt": "a", "completion": "b", "system": "S"}, {"chat": True}, [{"role": "system", "content": "S"}, user("a")],
     [model("b")]),
    ({"conversations": [{"from": "system", "value": "T"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
      "system": "S"}, {}, [{"role": "system", "content": "T"}, user("a")], [model("b")]),
    ({"instruction": "a", "input": "", "output": "b", "history": [], "system": ""}, {}, [user("a")], [model("b")]),
], ids=["a prompt beside messages", "a text and messages", "one message", "conversation", "a user's weight 0", "system",
        "system and a text", "two systems", "Alpaca with an empty history"])  # fmt: skip
def test_one_layout_in_the_ways_that_people_have_it(row, given, prompt, answers):
    made = example(row, **given)
    assert (list(made.prompt.messages), list(made.answers.values())) == (prompt, answers)


def test_templates_say_what_is_read_where_there_are_messages_too():
    row = {"problem": "P?", "answer": "42", "messages": [user("Q"), model("A")]}
    made = example(row, prompt="{{ problem }}", completion="{{ answer }}", chat=True)
    assert (made.prompt.messages, made.answers["completion"]) == ((user("P?"),), model("42"))


@pytest.mark.parametrize("template", ["question", "Q: {question}", " question "])
def test_a_column_that_a_template_names_without_showing_it_is_refused(template):
    with pytest.raises(DataError, match=r"question is a column, which a template shows by \{\{ question \}\}"):
        renderer(prompt=template).prompt(KEY, {"question": "a"}, 0)


HELLO = "\n\nHuman: Hi\n\nAssistant:"


@pytest.mark.parametrize(("row", "chat", "read"), [
    ({"prompt": HELLO, "chosen": HELLO + " yes", "rejected": HELLO + " no"}, False, (HELLO, " yes", " no")),
    ({"prompt": HELLO, "chosen": " yes", "rejected": " no"}, True, ([user("Hi")], "yes", "no")),
    ({"chosen": HELLO + " a\n\nHuman: b\n\nAssistant: c", "rejected": HELLO + " d"}, False,
     (HELLO, " a\n\nHuman: b\n\nAssistant: c", " d")),
    ({"chosen": "The sky is blue", "rejected": "The sky is black"}, False, ("The sky is", " blue", " black")),
    ({"chosen": "2+2?\n\nThe answer", "rejected": "2+2?\n\nIt is"}, False, ("2+2?\n\n", "The answer", "It is")),
    ({"chosen": "天空是蓝色", "rejected": "天空是绿色"}, False, ("天空是", "蓝色", "绿色")),
    ({"instruction": "a", "chosen": [user("a"), model("yes")], "rejected": [user("a"), model("no")]}, False,
     ([user("a")], "yes", "no")),
    ({"prompt": [user("a")], "chosen": model("yes"), "rejected": model("no")}, False, ([user("a")], "yes", "no")),
    ({"chosen": [{**user("a"), "name": None}, model("yes")], "rejected": [user("a"), model("no")]}, False,
     ([user("a")], "yes", "no")),
], ids=["said twice", "a transcript as prompt", "other turns earlier", "a word of which the end differs", "no space", "Chinese",
        "Magpie", "single messages", "a null on one side"])  # fmt: skip
def test_pairs_in_the_ways_that_people_have_them(row, chat, read):
    made = pair(row, chat=chat)
    prompt = list(made.prompt.messages) or made.prompt.text
    assert (prompt, *(made.answers[name]["content"] for name in ("chosen", "rejected"))) == read
