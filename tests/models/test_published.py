"""Checkpoints as they are published are read as transformers reads them: where answers end, and how sequences begin."""

import asyncio
import json

import numpy as np
import pytest
import torch
from tokenizers import normalizers
from transformers import AutoModelForCausalLM, AutoTokenizer

import published
import tiny_models
from penstock.algos import SFT
from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.files import load_model, load_text, save_model
from penstock.models.text import Text

CHAT = [{"role": "user", "content": "what is 3 + 4"}]
ENDS = {
    "llama-3": {"<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"},
    "qwen-3": {"<|im_end|>", "<|endoftext|>"},
    "gemma-3": {"<eos>", "<end_of_turn>"},
    "phi-4": {"<|endoftext|>", "<|im_end|>"},
}


@pytest.fixture(scope="module", params=sorted(published.FAMILIES))
def folder(request, tmp_path_factory):
    return published.publish(request.param, tmp_path_factory.mktemp("published") / request.param)


def theirs(folder):
    return AutoTokenizer.from_pretrained(folder)


def test_every_end_token_that_a_checkpoint_names_ends_an_answer(folder):
    text = load_text(str(folder))
    assert set(text.tokenizer.convert_ids_to_tokens(sorted(text.ends))) == ENDS[folder.name]


def test_a_reward_model_keeps_the_end_tokens_when_it_is_saved(folder, tmp_path):
    model = load_model(str(folder), "score")
    assert load_text(str(save_model(model, tmp_path / "rm"))).ends == model.text.ends


def continued(folder, tokens, **options):
    """What transformers generates after tokens, greedily."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    asked = torch.tensor([tokens])
    out = network.generate(asked, attention_mask=torch.ones_like(asked), do_sample=False, max_new_tokens=12, **options)
    return out[0, len(tokens) :].tolist()


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_generation_stops_where_that_of_transformers_does(folder, file, tmp_path):
    """An end that one of the files names besides the tokenizer's."""
    place = published.publish(folder.name, tmp_path / folder.name)
    prompt = theirs(place)("the quick brown")["input_ids"]
    free = continued(place, prompt, eos_token_id=10_000)
    said = json.loads((place / file).read_text())
    said["eos_token_id"] = [theirs(place).eos_token_id, free[3]]
    (place / file).write_text(json.dumps(said))
    if file == "config.json":
        (place / "generation_config.json").unlink()
    stopped = continued(place, prompt)
    assert 1 <= len(stopped) <= 4
    assert stopped[-1] == free[3]
    sample = asyncio.run(
        embedded_generator(load_model(str(place))).generate(tiny_models.request(np.array(prompt), temperature=0.0))
    )
    assert sample.tokens_T[sample.action_T].tolist() == stopped
    assert sample.finish == "stop"


@pytest.mark.parametrize("text", ["the sum is 7", " 12", "", "漢字\n"])
def test_a_prompt_begins_as_its_tokenizer_begins_it(folder, text):
    ours = load_text(str(folder))
    assert ours.prompt(text) == (theirs(folder)(text)["input_ids"] or [ours.end])


def test_a_beginning_that_a_text_spells_is_not_put_before_it_again(folder):
    ours = load_text(str(folder))
    spelled = (ours.tokenizer.bos_token or "") + "the sum"
    assert ours.prompt(spelled) == theirs(folder)("the sum")["input_ids"]


def test_a_chat_begins_as_its_template_says(folder):
    ours = load_text(str(folder))
    expected = theirs(folder).apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ours.rendered.prompt(ours.render_chat(CHAT)) == expected


def test_a_template_that_spells_no_beginning_gets_none():
    """Zephyr's way: the tokenizer has a beginning of sequence, its chats have none."""
    made = published.tokenizer_of(published.FAMILIES["llama-3"])
    made.chat_template = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
    text = Text(made)
    assert text.rendered.prompt(text.render_chat(CHAT)) == made.apply_chat_template(CHAT, return_dict=False)
    assert text.prompt("the")[0] == made.bos_token_id


@pytest.mark.parametrize(("prompt", "completion"), [("3 + 4 =", " 7"), ("the ", "sum"), ("", "fox")])
def test_a_plain_example_is_the_text_as_its_tokenizer_reads_it_and_an_end(folder, prompt, completion):
    ours, whole = load_text(str(folder)), theirs(folder)(prompt + completion)["input_ids"]
    (row,) = SFT().rows({"prompt": prompt, "completion": completion}, ours)
    before = ours.prompt(prompt)
    assert row.tokens_T[: len(before)].tolist() == before
    assert row.tokens_T[-1] == ours.end
    assert ours.tokenizer.decode(row.tokens_T.tolist()[:-1]).endswith(prompt + completion)
    assert int(row.action_T.sum()) == len(row.tokens_T) - len(before)
    if whole[: len(before)] == before:
        assert row.tokens_T.tolist() == [*whole, ours.end]


@pytest.mark.parametrize(("prompt", "completion"), [("what is", " the sum"), ("3 + 4 =", "7"), ("the", "\nfox"), ("a", "")])
def test_what_follows_a_text_gets_no_space_of_its_own(prompt, completion):
    """SentencePiece vocabularies put a space before every text; it must not come before every completion."""
    made = published.tokenizer_of(published.FAMILIES["gemma-3"])
    made.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    text = Text(made)
    first, second = text.pair(prompt, completion)
    whole = made(prompt + completion)["input_ids"]
    assert whole[: len(first)] != first or [*first, *second] == whole  # unless characters merge across the border
    assert (made.decode(second), text.following(completion)) == (completion, second)


@pytest.mark.parametrize("name", sorted(published.FAMILIES))
def test_other_vocabularies_have_no_space_to_leave_out(name):
    assert not Text(published.tokenizer_of(published.FAMILIES[name])).spaced
