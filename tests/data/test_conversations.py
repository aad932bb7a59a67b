"""Chat rows as the templates of published families write them: what transformers' own apply_chat_template says is the truth."""

import json

import numpy as np
import pytest

import published
from penstock.algos import SFT, BradleyTerry
from penstock.config.run import DataSpec
from penstock.core.errors import DataError, SpecError
from penstock.core.types import PromptKey
from penstock.data.render import Renderer
from penstock.data.texts import prompt_tokens
from penstock.data.units import Units
from penstock.models.text import Text

FAMILIES = sorted(published.FAMILIES)
TURNS = [
    {"role": "user", "content": "what is 3 + 4"},
    {"role": "assistant", "content": "the sum is 7"},
    {"role": "user", "content": "and 12 - 5"},
    {"role": "assistant", "content": "7 too"},
]
CLOSES = {"llama-3": "<|eot_id|>", "qwen-3": "<|im_end|>", "gemma-3": "<end_of_turn>", "phi-4": "<|im_end|>"}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def texts():
    """Each family's tokenizer with the ends that its checkpoints name."""

    def read(name):
        family = published.FAMILIES[name]
        made = published.tokenizer_of(family)
        return Text(made, made.convert_tokens_to_ids(list(family.ends)))

    return {name: read(name) for name in FAMILIES}


def rows_of(text, algorithm, row, tmp_path, **fields):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return Units(DataSpec(source=str(file), **({"chat": True} | fields)), tmp_path, 0, algorithm, text, 512)(0)


def learned(text, row):
    """The texts of the runs of actions in a row."""
    edges = 1 + np.flatnonzero(np.diff(row.action_T.astype(int)))
    return [text.tokenizer.decode(piece) for piece in np.split(row.tokens_T, edges)[1::2]]


def theirs(text, messages, **options):
    return text.tokenizer.apply_chat_template(messages, return_dict=False, **options)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_turn_is_closed_by_what_the_template_writes_after_it(name, texts, tmp_path):
    text = texts[name]
    (row,) = rows_of(text, SFT(), {"messages": TURNS[:2]}, tmp_path)
    whole = theirs(text, TURNS[:2])
    assert row.tokens_T.tolist() == whole[: len(row.tokens_T)]
    assert text.decode(whole[len(row.tokens_T) :]).strip() == ""  # a line feed, which belongs to the next turn
    assert row.tokens_T[~row.action_T].tolist() == theirs(text, TURNS[:1], add_generation_prompt=True)
    assert text.tokenizer.convert_ids_to_tokens(int(row.tokens_T[-1])) == CLOSES[name]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "qwen-3"])
def test_all_turns_of_a_conversation_are_one_row_where_the_template_writes_them_alike(name, texts, tmp_path):
    text = texts[name]
    (row,) = rows_of(text, SFT(), {"messages": TURNS}, tmp_path)
    assert row.tokens_T.tolist() == theirs(text, TURNS)[: len(row.tokens_T)]
    assert learned(text, row) == [f"the sum is 7{CLOSES[name]}", f"7 too{CLOSES[name]}"]
    np.testing.assert_array_equal(row.fields["weight"], np.ones(int(row.action_T.sum())))


def test_a_template_that_rewrites_earlier_turns_makes_a_row_of_each(texts, tmp_path):
    """Qwen-3 leaves out of earlier turns what was thought: at each turn a model reads another beginning."""
    text = texts["qwen-3"]
    rows = rows_of(text, SFT(), {"messages": TURNS}, tmp_path)
    assert [learned(text, row) for row in rows] == [
        ["<think>\n\n</think>\n\nthe sum is 7<|im_end|>"],
        ["<think>\n\n</think>\n\n7 too<|im_end|>"],
    ]
    for row, until in zip(rows, (2, 4), strict=True):
        assert row.tokens_T.tolist() == theirs(text, TURNS[:until])[: len(row.tokens_T)]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_turn_alone_is_learned_on_request(name, texts, tmp_path):
    (row,) = rows_of(texts[name], SFT(turns="last"), {"messages": TURNS}, tmp_path)
    (found,) = learned(texts[name], row)
    assert found.endswith(f"7 too{CLOSES[name]}")
    assert "the sum" not in found


def test_a_turn_that_nothing_comes_before_is_not_learned(texts, tmp_path):
    messages = [{"role": "assistant", "content": "hello"}, *TURNS[:2]]
    (row,) = rows_of(texts["phi-4"], SFT(), {"messages": messages}, tmp_path)
    assert learned(texts["phi-4"], row) == ["the sum is 7<|im_end|>"]


@pytest.mark.parametrize("name", FAMILIES)
def test_prompt_and_completion_columns_are_a_conversation_too(name, texts, tmp_path):
    text = texts[name]
    (row,) = rows_of(text, SFT(), {"prompt": "what is 3 + 4", "completion": "the sum is 7"}, tmp_path)
    assert row.tokens_T.tolist() == theirs(text, TURNS[:2])[: len(row.tokens_T)]


@pytest.mark.parametrize("name", FAMILIES)
def test_both_answers_of_a_pair_end_as_the_template_ends_them(name, texts, tmp_path):
    text = texts[name]
    columns = {"prompt": "what is 3 + 4", "chosen": "the sum is 7", "rejected": "no"}
    for row, answer in zip(rows_of(text, BradleyTerry(), columns, tmp_path), ("the sum is 7", "no"), strict=True):
        whole = theirs(text, [TURNS[0], {"role": "assistant", "content": answer}])
        assert row.tokens_T.tolist() == whole[: len(row.tokens_T)]
        assert text.tokenizer.convert_ids_to_tokens(int(row.tokens_T[-1])) == CLOSES[name]


def test_a_template_whose_turns_have_no_end_token_is_closed_with_the_tokenizers(tmp_path):
    made = published.tokenizer_of(published.FAMILIES["llama-3"])
    made.chat_template = "{% for m in messages %}{{ m.role + ':\n' + m.content + '\n' }}{% endfor %}"
    made.chat_template += "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
    text = Text(made)
    (row,) = rows_of(text, SFT(), {"messages": TURNS[:2]}, tmp_path)
    assert row.tokens_T.tolist() == [*theirs(text, TURNS[:2]), text.end]


@pytest.mark.parametrize("place", ["spec", "row"])
def test_arguments_reach_the_template(place, texts, tmp_path):
    text, given = texts["qwen-3"], {"enable_thinking": False}
    spec = DataSpec(source="x.jsonl", chat=given if place == "spec" else {"enable_thinking": True})
    row = {"messages": TURNS[:1], **({"chat_template_kwargs": given} if place == "row" else {})}
    prompt = Renderer(spec).prompt(PromptKey("x", 0, 0), row, 0)
    assert prompt_tokens(prompt, text).tolist() == theirs(text, TURNS[:1], add_generation_prompt=True, **given)
    (trained,) = rows_of(text, SFT(), {**row, "messages": TURNS[:2]}, tmp_path, chat=spec.chat)
    assert learned(text, trained) == ["the sum is 7<|im_end|>"]


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS)], ids=["list", "json"])
def test_the_tools_of_a_row_reach_the_template(tools, texts, tmp_path):
    text = texts["qwen-3"]
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 3}}}]
    messages = [TURNS[0], {"role": "assistant", "content": None, "tool_calls": calls}]
    (row,) = rows_of(text, SFT(), {"messages": messages, "tools": tools}, tmp_path)
    whole = theirs(text, messages, tools=TOOLS)
    assert row.tokens_T.tolist() == whole[: len(row.tokens_T)]
    assert '"name": "add"' in learned(text, row)[0]


def test_arguments_that_are_not_the_users_are_refused():
    with pytest.raises(SpecError, match=r"data.chat sets tokenize"):
        DataSpec(source="x.jsonl", chat={"tokenize": True})


@pytest.mark.parametrize(
    "columns", [{"chat_template_kwargs": {"tokenize": True}}, {"chat_template_kwargs": 3}, {"tools": "[no"}, {"tools": 3}]
)
def test_arguments_of_a_row_that_have_no_meaning_are_refused(columns):
    with pytest.raises(DataError, match="x row 2: "):
        Renderer(DataSpec(source="x.jsonl", chat=True)).prompt(PromptKey("x", 0, 0), {"messages": TURNS[:1], **columns}, 2)


def test_a_conversation_that_the_template_refuses_is_named(texts, tmp_path):
    messages = [TURNS[0], TURNS[0], TURNS[1]]
    with pytest.raises(DataError, match=r"rows.jsonl row 0: the chat template refuses the conversation: .*must alternate"):
        rows_of(texts["gemma-3"], SFT(), {"messages": messages}, tmp_path)


def test_a_template_that_asks_in_another_way_than_it_writes_is_refused(texts, tmp_path):
    """DeepSeek-R1's: asking opens a thought that no answer has."""
    made = published.tokenizer_of(published.FAMILIES["phi-4"])
    made.chat_template = made.chat_template.replace("assistant<|im_sep|>'", "assistant<|im_sep|><think>\n'")
    with pytest.raises(DataError, match=r"rows.jsonl row 0: the chat template asks for an answer by .* set chat=false"):
        rows_of(Text(made), SFT(), {"messages": TURNS[:2]}, tmp_path)
