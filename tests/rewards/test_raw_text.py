"""Special tokens that a policy generates, such as an ``<answer>`` that was added as one: rewards get them in ``raw_text``."""

import numpy as np
import pytest
from reward_examples import KEY, make_sample, mixture, score

from penstock.core.types import Group, Prompt, Request, SampleKey, Sampling
from penstock.models.sequence_state import SequenceState
from penstock.models.text import train_tokenizer
from penstock.net.group_table import group_of, table_of
from penstock.rewards.model import steps_of
from penstock.serve.transport import sample_of, sample_to


@pytest.fixture(scope="module")
def text():
    return train_tokenizer(["so 42"], 270, ("<answer>", "</answer>"))


def generated(text, said, **sampling):
    """What an engine makes of these tokens, as far as they are generated before it ends."""
    request = Request(SampleKey(KEY, 0), np.array([1], np.int32), Sampling(**sampling))
    state = SequenceState(request=request, limit=99, stop_tokens=text.stops(request.sampling))
    for token in [*text.encode(said), text.end]:
        state.append(token, 0.0, 0)
        if finish := state.finish_reason(text):
            return state.sample(finish, text)
    raise AssertionError("an end token ends it")


def test_the_raw_text_has_the_special_tokens_but_for_the_end(text):
    sample = generated(text, "<answer>42</answer>")
    assert (sample.text, sample.raw_text) == ("42", "<answer>42</answer>")


def test_a_text_without_special_tokens_is_its_own_raw_text(text):
    sample = generated(text, "so 42")
    assert (sample.raw_text, sample.marked) == ("so 42", None)


def test_a_stop_string_ends_the_raw_text_too(text):
    sample = generated(text, "<answer>42 so 4", stop=("so",))
    assert (sample.text, sample.raw_text) == ("42 ", "<answer>42 ")


def test_a_special_token_as_a_stop_string_ends_the_answer(text):
    sample = generated(text, "<answer>42</answer> so", stop=("</answer>",))
    assert (sample.finish, sample.raw_text) == ("stop", "<answer>42")


def test_a_format_reward_on_a_special_token_works(text):
    made = mixture(lambda sample, columns: float("<answer>" in sample.raw_text))
    group = Group(Prompt(KEY, ""), (generated(text, "<answer>42</answer>"), generated(text, "so 42")))
    assert [sample.reward for sample in score(made, group).samples] == [1.0, 0.0]


def test_the_raw_text_goes_to_other_processes(text):
    sample = generated(text, "<answer>42</answer>")
    group = Group(Prompt(KEY, ""), (sample, make_sample("42", 1)))
    assert [one.raw_text for one in group_of(*table_of(group)).samples] == ["<answer>42</answer>", "42"]
    assert sample_of(sample_to(sample)).raw_text == "<answer>42</answer>"


def test_a_special_token_separates_steps(text):
    tokens = text.encode("4<answer>2")
    assert [step for step, _ in steps_of([*tokens, text.end], text.raw, "<answer>")] == ["4", "2"]
