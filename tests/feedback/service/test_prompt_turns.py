"""Prompts as the turns of a conversation."""

import pytest

from penstock.feedback.service.tasks import turns_of


@pytest.mark.parametrize(
    ("prompt", "turns"),
    [
        ("What is a penstock?", [("", "What is a penstock?")]),
        (
            "\n\nHuman: a\n\nb\n\nAssistant: c\n\nHuman: d\n\nAssistant:",
            [("user", "a\n\nb"), ("assistant", "c"), ("user", "d")],
        ),
        ("Say Human: hello", [("", "Say Human: hello")]),
        (
            '[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]',
            [("system", "Be kind."), ("user", "Hi")],
        ),
        ("[1, 2]", [("", "[1, 2]")]),
        ("[" * 100_000, [("", "[" * 100_000)]),
        ("<|im_start|>user\nHi\n\nthere<|im_end|>\n<|im_start|>assistant\n", [("user", "Hi\n\nthere")]),
        ("<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", [("user", "Hi")]),
    ],
)
def test_a_prompt_is_split_into_its_turns(prompt, turns):
    assert turns_of(prompt) == turns
