"""Templates over columns, and chat messages."""

import pytest

from penstock.config.run import DataSpec
from penstock.core.errors import DataError
from penstock.core.types import PromptKey
from penstock.data.render import Renderer, Template

KEY = PromptKey("maths", 0, 4)
ASKED = [{"role": "user", "content": "hello"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "hi"}]


def said(answered):
    return {name: turn["content"] for name, turn in answered.answers.items()}


def renderer(**fields):
    return Renderer(DataSpec(source="x.jsonl", **fields))


def test_columns_fill_the_template():
    prompt = renderer(prompt="Q: {{ q }}\nA:").prompt(KEY, {"q": "1+1?"}, 0)
    assert (prompt.text, prompt.messages, prompt.columns) == ("Q: 1+1?\nA:", (), {"q": "1+1?"})


def test_nothing_is_escaped_or_trimmed():
    assert Template("prompt", " {{ q }}\n")({"q": "a < b & \"c\" 'd'"}, "") == " a < b & \"c\" 'd'\n"


def test_text_methods_can_cut_a_column():
    row = {"answer": "2+2=4\n#### 4"}
    assert Template("completion", '{{ answer.split("####")[1].strip() }}')(row, "") == "4"


def test_an_undefined_column_names_template_row_and_columns():
    with pytest.raises(DataError) as caught:
        renderer(prompt="{{ quest }}").prompt(KEY, {"question": "x", "answer": "y"}, 17)
    message = str(caught.value)
    for part in ('template prompt "{{ quest }}"', "maths row 17", "'quest' is undefined", "question, answer"):
        assert part in message


@pytest.mark.parametrize(
    ("text", "row", "message"),
    [
        *(("{{ " + name + " }}", {}, "undefined") for name in ("dict", "range", "namespace", "cycler")),
        ("{{ q }}", {"q": None}, "null"),
        ("{{ q.__class__.__mro__ }}", {"q": [1]}, r"template prompt .* on row 0"),
        ("{{ q.append(1) }}", {"q": [1]}, r"template prompt .* on row 0"),
    ],
)
def test_names_of_the_language_nulls_and_what_a_sandbox_holds_back_are_refused(text, row, message):
    with pytest.raises(DataError, match=message):
        Template("prompt", text)(row, "row 0")


def test_a_template_that_does_not_parse_is_refused_at_once():
    with pytest.raises(DataError, match=r'template prompt "{{ q": line 1'):
        renderer(prompt="{{ q")


def test_chat_makes_one_user_turn_of_the_prompt():
    prompt = renderer(chat=True, prompt="{{ q }}").prompt(KEY, {"q": "hello"}, 0)
    assert prompt.messages == ({"role": "user", "content": "hello"},)
    assert prompt.text == "hello"


def test_chat_takes_the_messages_of_the_row():
    messages = [{"role": "system", "content": "be kind"}, *ASKED]
    prompt = renderer(chat=True).prompt(KEY, {"messages": messages}, 0)
    assert list(prompt.messages) == messages
    assert prompt.text == "hello"


def test_messages_that_are_answered_already_leave_nothing_to_generate():
    with pytest.raises(DataError, match="nothing is left to answer"):
        renderer(chat=True).prompt(KEY, {"messages": ANSWERED}, 0)


def test_an_answered_conversation_is_an_example():
    example = renderer(chat=True).example(KEY, {"messages": ANSWERED}, 0)
    assert (list(example.prompt.messages), example.answers) == (ASKED, {"completion": ANSWERED[1]})


def test_all_texts_of_a_row_are_those_whose_columns_are_there():
    assert list(renderer().texts({"prompt": "a", "completion": "b"})) == ["a", "b"]
    assert list(renderer(chat=True).texts({"messages": ANSWERED})) == ["hello", "hi"]


@pytest.mark.parametrize("messages", ["hello", [], ["hello"], [{"role": "user"}], [{"role": "user", "content": 3}], None])
def test_what_is_not_messages_is_refused(messages):
    with pytest.raises(DataError, match="maths row 2: messages"):
        renderer(chat=True).prompt(KEY, {"messages": messages}, 2)


def test_an_example_and_a_pair_use_their_templates():
    row = {"q": "1", "right": "2", "wrong": "3"}
    made = renderer(prompt="{{ q }}", completion="{{ right }}", chosen="{{ right }}!", rejected="{{ wrong }}")
    example, pair = made.example(KEY, row, 0), made.pair(KEY, row, 0)
    assert (example.prompt.text, said(example)) == ("1", {"completion": "2"})
    assert (pair.prompt.text, said(pair)) == ("1", {"chosen": "2!", "rejected": "3"})


@pytest.mark.parametrize("text", [
    "{{ q|upper }}", "{{ q|replace('a', 'b') }}", "{{ 'a'|replace('a', q) }}", "{{ 'Q %s' % q }}", "{{ 'Q %s'|format(q) }}",
    "{{ [q, 'a']|join(', ') }}", "{{ q|string }}", "{{ q|trim }}", "{{ 'a' ~ q }}", "{{ 'Q %(q)s' % {'q': q} }}",
])  # fmt: skip
@pytest.mark.parametrize("value", [None, ["a"], b"a", float("nan")], ids=["null", "a list", "bytes", "NaN"])
def test_what_is_no_text_stays_none_in_whatever_makes_one_of_it(text, value):
    with pytest.raises(DataError, match="a value is"):
        Template("prompt", text)({"q": value}, "row 0")


@pytest.mark.parametrize(("text", "reads"), [
    ("{{ q|upper }}", "AB"), ("{{ [q, 'c']|join('-') }}", "ab-c"), ("{{ '%s %d' % (q, n) }}", "ab 3"), ("{{ n|string }}", "3"),
    ("{{ rows|map(attribute='t')|join(' ') }}", "x y"), ("{{ rows|join(' ', attribute='t') }}", "x y"), ("{{ 7 % n }}", "1"),
    ("{{ q|truncate(1, true, '', 0) }}", "a"), ("{{ rows|tojson }}", '[{"t": "x"}, {"t": "y"}]'),
])  # fmt: skip
def test_filters_of_texts_and_numbers_work(text, reads):
    assert Template("prompt", text)({"q": "ab", "n": 3, "rows": [{"t": "x"}, {"t": "y"}]}, "row 0") == reads
