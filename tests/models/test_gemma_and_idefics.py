"""Gemma 3, Idefics3, SmolVLM: tokens and pixels of transformers' own processors, parts that see one another, refusals."""

import copy

import numpy as np
import pytest
import torch
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

import seeing
from engine_examples import learner_logp, run
from penstock.config.media import Vision
from penstock.core.errors import DataError, ModelError
from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.gemma import Gemma
from penstock.models.idefics import BORDER, PART, WHOLE, Idefics
from penstock.models.language_policy import LanguagePolicy

WORDS = "3 + 4\n{mark}\n\nwhat is {mark}?"


def shown(kind, *sizes):
    """A model, pictures of these sizes and their blobs."""
    model = seeing.of_kind(kind)
    pictures = [seeing.picture(size, seed) for seed, size in enumerate(sizes)]
    return model, pictures, seeing.shown(model, *pictures)


def test_tokens_and_pixels_of_gemma_are_those_of_its_processor():
    """Also where newlines around a picture meet those of the text."""
    model, pictures, blobs = shown("gemma3", (24, 24), (16, 40))
    tokenizer = copy.deepcopy(model.text.tokenizer)
    names = dict(zip(("boi_token", "image_token", "eoi_token"), seeing.GEMMA_MARKS, strict=True))
    tokenizer._set_model_specific_special_tokens(names)
    theirs = Gemma3Processor(model.text.processor.processor, tokenizer, image_seq_length=9)
    made = theirs(images=pictures, text=WORDS.format(mark=seeing.GEMMA_MARKS[0]), return_tensors="pt")
    assert model.text.showing(blobs).prompt(WORDS.format(mark="<image>")) == made["input_ids"][0].tolist()
    ours = [model.text.senses.of(blob.number).inputs["pixel_values"] for blob in blobs]
    torch.testing.assert_close(torch.cat(ours), made["pixel_values"].float())


@pytest.mark.parametrize("sizes", [((16, 16), (24, 24)), ((30, 90), (90, 30))])
def test_tokens_and_tiles_of_idefics3_are_those_of_its_processor(sizes):
    model, pictures, blobs = shown("idefics3", *sizes)
    theirs = Idefics3Processor(model.text.processor.processor, copy.deepcopy(model.text.tokenizer), image_seq_len=4)
    made = theirs(images=[pictures], text=[WORDS.format(mark=PART)], return_tensors="np", add_special_tokens=False)
    assert model.text.showing(blobs).prompt(WORDS.format(mark="<image>")) == list(made["input_ids"][0])
    ours = [model.text.senses.of(blob.number).inputs["pixel_values"].numpy() for blob in blobs]
    count = 0
    for tiles in ours:
        np.testing.assert_array_equal(tiles, made["pixel_values"][0][count : count + len(tiles)])
        count += len(tiles)


def test_a_picture_of_smolvlm_reads_as_its_processor_writes_it():
    model, _, (blob,) = shown("smolvlm", (30, 60))
    rows, columns, tiles = 1, 2, 3
    written = get_image_prompt_string(rows, columns, 4, BORDER, PART, WHOLE)
    medium = model.text.senses.of(blob.number)
    assert list(medium.tokens) == model.text.tokenizer.encode(written, add_special_tokens=False)
    assert medium.parts == tiles * 4
    assert medium.inputs["pixel_values"].shape == (tiles, 3, 16, 16)


def test_pixels_bound_the_tiles():
    model, _, _ = shown("idefics3")
    config, text = model.network.config, model.text.senses.text
    processor = copy.deepcopy(model.text.processor.processor)
    small = Idefics(processor, Vision(pixels=16 * 16), config).read(seeing.picture((64, 64)), text)
    assert small.parts == 4


def test_the_last_place_that_a_token_of_a_mutual_model_sees():
    """Two tokens of text, start, nine parts, end, one more token: the parts see up to the ninth, at place 11."""
    model, _, (blob,) = shown("gemma3", (24, 24))
    media_T = np.array([0, 0, 0, *[blob.number] * 9, 0, 0])
    _, part_T = model.text.senses.places(media_T)
    assert model.text.senses.last(media_T, part_T).tolist() == [0, 1, 2, *[11] * 9, 12, 13]


def test_a_part_of_a_picture_reads_those_after_it_and_text_does_not():
    """With another last part of the picture, hidden states of its first part are others, those of the text before are not."""
    model, pictures, (blob,) = shown("gemma3", (24, 24))
    other = pictures[0].copy()
    other[16:, 16:] = 255 - other[16:, 16:]
    (changed,) = seeing.shown(model, other)
    found = []
    for one in (blob, changed):
        policy, row = LanguagePolicy(model), seeing.row(model, "<image>what?", [50], (one,))
        (batch,) = policy.lay_out([(row,)], 4096)
        with torch.no_grad():
            encoded = model.encoded([one.number])[0].clone()
            encoded[:8] = model.encoded([blob.number])[0][:8]  # only the last part differs
            model._features[one.number] = encoded
            tokens = torch.from_numpy(batch.tokens_N.astype(np.int64))[None]
            found.append(model.hidden(tokens, torch.from_numpy(batch.position_N)[None], model.plan(batch))[0])
    start = int(np.flatnonzero(batch.media_N)[0])
    gap = (found[0] - found[1]).abs().amax(-1)
    assert float(gap[:start].max()) == 0.0
    assert float(gap[start]) > 1e-4


def test_a_chunk_ends_before_or_after_a_picture_of_gemma_never_in_it():
    model, _, blobs = shown("gemma3", (24, 24), (16, 16))
    request = seeing.request(model, "what <image> or <image>?", blobs, max_new_tokens=3)
    whole, cut = (run(embedded_generator(model, chunk=chunk), [request])[0] for chunk in (4096, 6))
    np.testing.assert_array_equal(whole.tokens_T, cut.tokens_T)
    np.testing.assert_allclose(whole.logp_T, cut.logp_T, atol=5e-5)
    np.testing.assert_allclose(cut.logp_T[cut.action_T], learner_logp(model, cut), atol=1e-4)


def test_crops_of_gemma_another_size_and_a_tokenizer_without_marks_are_refused():
    gemma, idefics = seeing.of_kind("gemma3"), seeing.of_kind("idefics3")
    cut = copy.deepcopy(gemma.text.processor.processor)
    cut.do_pan_and_scan = True
    with pytest.raises(ModelError, match="do_pan_and_scan cuts pictures into crops"):
        Gemma(cut, Vision(), gemma.network.config)
    with pytest.raises(ModelError, match=r"24 pixels a side; leave vision\.pixels=0"):
        Gemma(gemma.text.processor.processor, Vision(pixels=64), gemma.network.config)
    idefics.text.senses.text = seeing.tiny_text()
    with pytest.raises(DataError, match="the tokenizer does not write <image> as the token"):
        idefics.text.senses.made(seeing.picture())


IN_PARTS = (
    "{% for message in messages %}{{ message['role'] + ':' }}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'text' %}{{ ' ' + part['text'] }}{% endif %}{% endfor %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def test_a_chat_template_that_takes_parts_alone_is_given_them():
    """A plain text would be left out by it without a word."""
    model, _, blobs = shown("smolvlm", (16, 16))
    model.text.tokenizer = copy.deepcopy(model.text.tokenizer)
    model.text.tokenizer.chat_template = IN_PARTS
    asked = [{"role": "user", "content": "what is <image>here?"}]
    assert model.text.render_chat(asked) == "user: what is <image> here?\nassistant:"
    assert model.text.render_answer(asked, {"role": "assistant", "content": " a cat"}) == "  a cat\n"
    pads = model.text.rendered.showing(blobs).prompt(model.text.render_chat(asked)).count(model.network.config.image_token_id)
    assert pads == 20


def test_a_chat_template_that_takes_texts_is_given_texts():
    text = seeing.tiny_text()
    assert text.template().form("user") == "text"
    assert "what?" in text.render_chat([{"role": "user", "content": "what?"}])
