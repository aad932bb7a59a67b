"""What a reward model reads of a policy of the same or of another family: its own rendering of the whole conversation."""

import copy
from dataclasses import replace

import numpy as np
import pytest

import published
from penstock.core.errors import ModelError, RewardError
from penstock.core.types import PART, Prompt, PromptKey, Sample, SampleKey
from penstock.data.texts import prompt_tokens
from penstock.models.text import Text
from penstock.rewards.model import read_by, turns_of

FAMILIES = sorted(published.FAMILIES)
ASKED = ({"role": "system", "content": "be kind"}, {"role": "user", "content": "what is 3 + 4"})
KEY = PromptKey("x", 0, 0)
CHAT = Prompt(KEY, "what is 3 + 4", ASKED)
PLAIN = Prompt(KEY, "3 + 4 =")


def text_of(name):
    family = published.FAMILIES[name]
    made = published.tokenizer_of(family)
    if name != "llama-3":  # or all that are byte-level would have vocabularies of one size and differ in special tokens alone
        made.add_tokens([f"<{name}>"])
    return Text(made, made.convert_tokens_to_ids(list(family.ends)))


@pytest.fixture(scope="module")
def texts():
    return {name: text_of(name) for name in FAMILIES}


def sample_of(text, prompt, *pieces, ended=True):
    """A policy's sample: turns of its own and, between them, what an environment said, as texts."""
    tokens = prompt_tokens(prompt, text).tolist()
    actions = [False] * len(tokens)
    for number, piece in enumerate(pieces):
        own = number % 2 == 0
        new = text.encode(piece) + ([end_of(text)] if own and (ended or number < len(pieces) - 1) else [])
        tokens, actions = [*tokens, *new], [*actions, *[own] * len(new)]
    action_T = np.array(actions)
    return Sample(
        SampleKey(KEY, 0), {"tokens_T": np.array(tokens, np.int32)}, action_T, np.zeros(len(tokens), np.float32),
        np.where(action_T, 0, -1).astype(np.int32), "stop" if ended else "length", pieces[-1],
    )  # fmt: skip


def end_of(text):
    """The token that closes a turn of the assistant's."""
    return text.encode(text.render_answer(ASKED, {"role": "assistant", "content": "a"}))[-1]


def theirs(text, *answers):
    """What transformers makes of the conversation, up to the last end."""
    roles = ("assistant", "user")
    said = [{"role": roles[number % 2], "content": answer} for number, answer in enumerate(answers)]
    whole = text.tokenizer.apply_chat_template([*ASKED, *said], return_dict=False)
    last = max(place for place, token in enumerate(whole) if token in text.ends)
    return whole[: last + 1]


@pytest.mark.parametrize("own", FAMILIES)
@pytest.mark.parametrize("policy", FAMILIES)
def test_a_chat_is_read_by_the_models_own_template(own, policy, texts):
    sample = sample_of(texts[policy], CHAT, "the sum is 7")
    read = read_by(texts[own], texts[policy], 512)(sample, CHAT).tolist()
    assert read == (sample.tokens_T.tolist() if own == policy else theirs(texts[own], "the sum is 7"))


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("own", FAMILIES)
def test_a_sample_that_was_cut_is_closed_where_the_model_was_trained_to_be_read(own, ended, texts):
    for policy in (texts[own], texts["qwen-3"]):
        read = read_by(texts[own], policy, 512)(sample_of(policy, CHAT, "the sum", ended=ended), CHAT).tolist()
        assert read[-1] == end_of(texts[own])
        assert read[-2] != read[-1]


@pytest.mark.parametrize("own", FAMILIES)
@pytest.mark.parametrize("policy", ["qwen-3", "phi-4"])
def test_every_turn_of_a_conversation_is_read(own, policy, texts):
    """The environment spells the marks of the policy's template, as it must; the reward model's own come in their place."""
    between = {
        "qwen-3": "\n<|im_start|>user\nare you sure?<|im_end|>\n<|im_start|>assistant\n",
        "phi-4": "<|im_start|>user<|im_sep|>are you sure?<|im_end|><|im_start|>assistant<|im_sep|>",
    }
    sample = sample_of(texts[policy], CHAT, "the sum is 8", between[policy], "the sum is 7")
    said = turns_of(sample, CHAT, texts[policy])
    assert [turn["content"] for turn in said] == ["the sum is 8", "are you sure?", "the sum is 7"]
    if own != policy:
        read = read_by(texts[own], texts[policy], 512)(sample, CHAT).tolist()
        assert read == theirs(texts[own], "the sum is 8", "are you sure?", "the sum is 7")


@pytest.mark.parametrize("own", FAMILIES)
def test_a_plain_text_is_read_whole_by_the_models_own_tokenizer(own, texts):
    sample = sample_of(texts["phi-4"], PLAIN, " 8", " no:", " 7")
    read = read_by(texts[own], texts["phi-4"], 512)(sample, PLAIN).tolist()
    expected = texts[own].tokenizer("3 + 4 = 8 no: 7")["input_ids"] + [texts[own].end]
    assert read == (sample.tokens_T.tolist() if own == "phi-4" else expected)


def test_another_template_over_the_same_vocabulary_is_the_models_own(texts):
    policy, own = texts["phi-4"], copy.deepcopy(texts["phi-4"])
    own.tokenizer.chat_template = published.LLAMA_3.replace("<|eot_id|>", "<|im_end|>")
    sample = sample_of(policy, CHAT, "the sum is 7")
    assert read_by(own, policy, 512)(sample, CHAT).tolist() == theirs(own, "the sum is 7")
    plain = sample_of(policy, PLAIN, " 7")
    assert read_by(own, policy, 512)(plain, PLAIN).tolist() == plain.tokens_T.tolist()


def test_a_model_without_a_template_of_its_own_reads_the_samples_tokens_or_is_refused(texts):
    own = copy.deepcopy(texts["phi-4"])
    own.tokenizer.chat_template = None
    sample = sample_of(texts["phi-4"], CHAT, "the sum is 7")
    assert read_by(own, texts["phi-4"], 512)(sample, CHAT).tolist() == sample.tokens_T.tolist()
    with pytest.raises(ModelError, match="no chat template"):
        read_by(own, texts["qwen-3"], 512)(sample_of(texts["qwen-3"], CHAT, "7"), CHAT)


def test_of_what_is_longer_than_its_context_a_model_reads_the_end(texts):
    text = texts["phi-4"]
    sample = sample_of(text, CHAT, "the sum is 7")
    assert read_by(text, text, 5)(sample, CHAT).tolist() == sample.tokens_T[-5:].tolist()


def rendered_anew(text):
    """A sample whose conversation was rendered twice: five tokens, then seven."""
    sample = sample_of(text, CHAT, "seven", "and then", "ten")
    length = len(sample.action_T)
    part_T = (np.arange(length) >= length - 7).astype(np.int32)
    return replace(sample, columns={**sample.columns, PART: part_T})


def test_of_a_conversation_that_was_rendered_anew_the_last_rendering_is_read(texts):
    text = texts["llama-3"]
    sample = rendered_anew(text)
    assert read_by(text, text, 1000)(sample, CHAT).tolist() == sample.tokens_T[-7:].tolist()


def test_a_model_of_another_family_cannot_read_it(texts):
    own, policy = (texts[name] for name in sorted(texts)[:2])
    with pytest.raises(RewardError, match="was rendered anew"):
        read_by(own, policy, 1000)(rendered_anew(policy), CHAT)
