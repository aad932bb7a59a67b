"""Films, sounds, pictures at plain positions: transformers' numbers in learner and generator, positions and tokens by hand."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import AutoModelForMultimodalLM
from transformers.models.qwen2_audio.processing_qwen2_audio import Qwen2AudioProcessor

import seeing
from engine_examples import run
from penstock.core.blobs import Film, Sound
from penstock.core.errors import DataError, GenerationError, ModelError
from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.attention import eager_attention
from penstock.models.files import load_model, save_model
from penstock.models.language_policy import LanguagePolicy
from penstock.models.media import MEDIA
from penstock.train.learner import Scoring

KINDS = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen2_audio", *seeing.PICTURES)


@pytest.fixture(scope="module", params=KINDS)
def read(request):
    """A model, the mark of its medium and two media; shared, so never to be changed."""
    (mark, one), (_, other) = seeing.example(request.param, 0), seeing.example(request.param, 1)
    if request.param == "qwen2_vl":  # of Qwen's vision types one reads pictures; films and both together have tests below
        mark, one, other = "<image>", seeing.picture((24, 24)), seeing.picture((8, 16))
    model = seeing.of_kind(request.param)
    return model, mark, seeing.shown(model, one, other)


def rows_of(read):
    """Ragged rows with no medium, one, two, and the same one twice."""
    model, mark, (one, other) = read
    answer = [140, 141, 142, 143, 144]
    return [
        (seeing.row(model, "what is the sum?", answer), ()),
        (seeing.row(model, f"{mark}what is it?", answer[:3], (one,)), (one,)),
        (seeing.row(model, f"3 + {mark} or {mark} 4", answer, (other, one)), (other, one)),
        (seeing.row(model, f"{mark}{mark}", answer[:1], (other, other)), (other, other)),
    ]


def logps(model, rows):
    """The learner's log-probs of rows that are packed together."""
    return Scoring(LanguagePolicy(model)).score([(row,) for row in rows], frozenset({"logp"}))["logp"]


def transformers_logps(model, tokens_T, action_T, blobs):
    logits_TV = seeing.transformers_logits(model, tokens_T, blobs)
    logits_TV[:, sorted(model.text.media)] = -torch.inf
    at = np.flatnonzero(action_T)
    return logits_TV.log_softmax(-1)[at - 1, tokens_T[at].astype(np.int64)].numpy()


def test_the_model_gives_what_transformers_gives(read):
    model, _, _ = read
    model.check()
    assert len(model.text.processor.examples()) == len(model.text.processor.pads)


def test_packed_rows_give_transformers_log_probs(read):
    rows = rows_of(read)
    for (row, blobs), logp_A in zip(rows, logps(read[0], [row for row, _ in rows]), strict=True):
        np.testing.assert_allclose(logp_A, transformers_logps(read[0], row.tokens_T, row.action_T, blobs), atol=1e-4)


def test_rows_packed_together_give_the_log_probs_of_each_alone(read):
    rows = [row for row, _ in rows_of(read)]
    for row, logp_A in zip(rows, logps(read[0], rows), strict=True):
        np.testing.assert_allclose(logp_A, logps(read[0], [row])[0], atol=5e-5)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen2_vl", "qwen3_vl"])
def test_pictures_and_films_in_one_prompt_give_transformers_log_probs(kind):
    model = seeing.of_kind(kind)
    small, large = seeing.picture((8, 16), 1), seeing.picture((16, 24), 2)
    blobs = seeing.shown(model, small, large, seeing.film(3, (24, 16)))  # wider than it lasts, so that transformers agrees
    row = seeing.row(model, "3 <image> or <video><image> 4", [140, 141, 142], blobs)
    (logp_A,) = logps(model, [row])
    np.testing.assert_allclose(logp_A, transformers_logps(model, row.tokens_T, row.action_T, blobs), atol=1e-4)
    asked = seeing.request(model, "3 <image> or <video><image> 4", blobs)
    (sample,) = run(embedded_generator(model), [asked])
    expected = transformers_logps(model, sample.tokens_T, sample.action_T, blobs)
    np.testing.assert_allclose(sample.logp_T[sample.action_T], expected, atol=1e-4)


@pytest.mark.parametrize("chunk", [5, 4096])
def test_generated_tokens_have_transformers_and_the_learners_log_probs(read, chunk):
    model, mark, (one, other) = read
    prompts = [
        ("what is the sum?", ()),
        (f"{mark}what is it?", (one,)),
        (f"3 + {mark} or {mark} 4", (other, one)),
        (f"{mark}{mark}", (other, other)),
    ]
    requests = [seeing.request(model, *prompt, ordinal, max_new_tokens=4) for ordinal, prompt in enumerate(prompts)]
    for sample, asked in zip(run(embedded_generator(model, max_running=4, chunk=chunk), requests), requests, strict=True):
        generated = sample.logp_T[sample.action_T]
        assert not np.isin(sample.tokens_T[sample.action_T], sorted(model.text.media)).any()
        np.testing.assert_allclose(
            generated, transformers_logps(model, sample.tokens_T, sample.action_T, asked.blobs), atol=1e-4
        )
        (logp_A,) = logps(model, [seeing.Row(sample.columns, sample.action_T)])
        np.testing.assert_allclose(generated, logp_A, atol=1e-4)


def test_sixteen_samples_share_a_prefill_an_encoding_and_a_blob(read):
    model, mark, (one, _) = read
    requests = [seeing.request(model, f"{mark}what is it?", (one,), sample=n) for n in range(16)]
    generator, encoded = embedded_generator(model), []
    model.forget()
    whole = model.text.processor.features
    model.text.processor.features = lambda network, media: encoded.append(len(media)) or whole(network, media)
    samples = run(generator, requests)
    del model.text.processor.features
    assert generator.prefilled_tokens == len(requests[0].tokens_T)
    assert encoded == [1]
    assert {sample.blobs for sample in samples} == {(one,)}
    held = sum(array.nbytes for sample in samples for array in sample.columns.values())
    assert held == sum(len(sample.action_T) * (4 + 8) for sample in samples), "a token and a number each"


def test_the_same_tokens_of_another_medium_are_another_prompt(read):
    model, mark, (one, _) = read
    shape = model.text.store.decoded(one.number)  # another medium of as many tokens: its negative
    if isinstance(shape, Film):
        fresh = Film(255 - shape.frames_FHWC, shape.rate)
    elif isinstance(shape, Sound):
        fresh = Sound(shape.samples_S[::-1].copy(), shape.rate)
    else:
        fresh = 255 - shape
    (other,) = seeing.shown(model, fresh)
    requests = [seeing.request(model, f"{mark}what?", (blob,), temperature=0.0) for blob in (one, other, one)]
    first, second, third = run(embedded_generator(model), requests)
    assert np.array_equal(requests[0].tokens_T, requests[1].tokens_T)
    np.testing.assert_array_equal(first.logp_T, third.logp_T)
    at = len(requests[0].tokens_T)
    assert abs(float(first.logp_T[at] - second.logp_T[at])) > 1e-4


def test_a_folder_loads_with_transformers_own_class_and_here_where_it_gives_the_same_log_probs(read, tmp_path):
    model, mark, (one, _) = read
    save_model(model, tmp_path / "saved")
    AutoModelForMultimodalLM.from_pretrained(tmp_path / "saved")
    again = load_model(str(tmp_path / "saved"), media=seeing.media_of(model))
    assert again.frozen
    again.text.store = model.text.store
    row = seeing.row(again, f"{mark}what?", [150, 151], (one,))
    np.testing.assert_array_equal(row.tokens_T, seeing.row(model, f"{mark}what?", [150, 151], (one,)).tokens_T)
    np.testing.assert_allclose(logps(again, [row])[0], logps(model, [row])[0], atol=1e-5)


def test_tokens_of_a_medium_are_not_scored_without_it(read):
    model, mark, (one, _) = read
    with pytest.raises(GenerationError, match="cannot be scored without it"):
        asyncio.run(embedded_generator(model).score(seeing.request(model, mark, (one,)).tokens_T))


# ---- films


def places(model, film):
    """Positions of a token of text, a film, and two of text."""
    (blob,) = seeing.shown(model, film)
    tokens = [*model.text.senses.of(blob.number).tokens]
    media_T = model.text.media_columns(np.array(tokens), (blob,))[MEDIA]
    return model.text.senses.places(np.array([0, *media_T, 0]))


def test_positions_in_time_of_qwen2_vl_count_pairs_of_frames():
    """Four frames of 2 x 1 tokens are two pairs: text (0) and the mark (1), two at 2 in time, two at 3, text from 4."""
    position_3T, part_T = places(seeing.of_kind("qwen2_vl"), seeing.film(4, (16, 8)))
    assert position_3T.tolist() == [[0, 1, 2, 2, 3, 3, 4, 5], [0, 1, 2, 3, 2, 3, 4, 5], [0, 1, 2, 2, 2, 2, 4, 5]]
    assert part_T.tolist() == [0, 0, 0, 1, 2, 3, 0, 0]


def test_positions_in_time_of_qwen2_5_vl_count_what_passes_and_text_goes_on_after_the_largest():
    """At 0.5 frames a second a pair is four seconds, at two positions a second 8: the film ends at 2 + 8, text begins at 11.
    The paper (arXiv:2409.12191, 2.1) says so; transformers 5.23 goes on from 2 + 2, where the film still is."""
    position_3T, _ = places(seeing.built(), seeing.film(4, (16, 8), rate=0.5))
    assert position_3T[0].tolist() == [0, 1, 2, 2, 10, 10, 11, 12]
    assert position_3T[1].tolist() == [0, 1, 2, 3, 2, 3, 11, 12]


def test_a_long_film_gives_transformers_log_probs_at_these_positions():
    model = seeing.built()
    (blob,) = seeing.shown(model, seeing.film(8, (16, 8), rate=0.7))
    row = seeing.row(model, "<video>what?", [140, 141], (blob,))
    position_3T, _ = model.text.senses.places(row.columns[MEDIA])
    tokens = torch.from_numpy(row.tokens_T.astype(np.int64))[None]
    given = model.text.processor.arguments([model.text.senses.of(blob.number)], tokens)
    with torch.no_grad(), eager_attention(model.network):
        theirs = model.network(input_ids=tokens, position_ids=torch.from_numpy(position_3T)[:, None], use_cache=False, **given)
    logits_TV = theirs.logits[0].index_fill(-1, model.forbidden, -torch.inf)
    wanted = logits_TV.log_softmax(-1)[[-3, -2], [140, 141]]
    np.testing.assert_allclose(logps(model, [row])[0], wanted, atol=1e-4)


def test_qwen3_vl_writes_the_time_of_each_pair_of_frames():
    """Frames at 0, 0.5, 1, 1.5 and 2 s: the middles of the pairs are 0.25, 1.25 and (the last taken twice) 2."""
    model = seeing.of_kind("qwen3_vl")
    (blob,) = seeing.shown(model, seeing.film(5, (8, 8)))
    ids = model.network.config
    block = [ids.vision_start_token_id, ids.video_token_id, ids.vision_end_token_id]
    wanted = [token for time in ("0.2", "1.2", "2.0") for token in (*model.text.encode(f"<{time} seconds>"), *block)]
    assert list(model.text.senses.of(blob.number).tokens) == wanted


def test_patches_of_a_film_of_equal_frames_are_those_of_its_picture():
    model, picture = seeing.built(), seeing.picture()
    still, film = seeing.shown(model, picture, Film(np.stack([picture] * 3), 2.0))
    one = model.text.senses.of(still.number).inputs["pixel_values"]
    both = model.text.senses.of(film.number).inputs["pixel_values_videos"]
    torch.testing.assert_close(both, torch.cat([one, one]), atol=0, rtol=0)


def test_patches_of_a_pair_are_laid_out_as_transformers_lays_them():
    """``[C, frame, y, x]`` in a patch: with frames of one value each, a channel has 16 of the first, then 16 of the next."""
    model = seeing.built()
    frames = np.zeros((2, 8, 8, 3), np.uint8)
    frames[1] = 255
    (blob,) = seeing.shown(model, Film(frames, 2.0))
    patch = model.text.senses.of(blob.number).inputs["pixel_values_videos"][0].reshape(3, 2, 16)
    assert (patch[:, 0] < 0).all()
    assert (patch[:, 1] > 0).all()


# ---- sounds


def test_tokens_and_features_of_a_sound_are_those_of_qwen2_audios_processor():
    model = seeing.of_kind("qwen2_audio")
    made = seeing.sound(0.37)
    (blob,) = seeing.shown(model, made)
    kept = model.text.store.decoded(blob.number)
    theirs = Qwen2AudioProcessor.__new__(Qwen2AudioProcessor)
    theirs.feature_extractor = model.text.processor.extractor
    theirs.audio_token = "x"
    inputs, (mark,) = theirs._process_audio([kept.samples_S], sampling_rate=2000, return_tensors="pt")
    ours = model.text.senses.of(blob.number)
    assert ours.parts == len(mark) == 5  # 740 samples are 19 features, 10 frames, 5 tokens
    torch.testing.assert_close(ours.inputs["input_features"], inputs["input_features"])


def test_a_sound_of_another_rate_is_brought_to_the_models():
    """A sine that both rates hold has the same features, but for the first and last."""
    model, found = seeing.of_kind("qwen2_audio"), []
    for rate in (2000, 3000):
        time_S = np.arange(rate // 2) / rate
        (blob,) = seeing.shown(model, Sound(np.sin(2 * np.pi * 300 * time_S).astype(np.float32), rate))
        found.append(model.text.senses.of(blob.number))
    assert found[0].parts == found[1].parts
    loud = [one.inputs["input_features"][0, :, 4:20].exp() for one in found]
    torch.testing.assert_close(loud[0], loud[1], atol=0.1, rtol=0.05)


def test_a_sound_longer_than_the_model_hears_is_refused():
    model = seeing.of_kind("qwen2_audio")
    (blob,) = seeing.shown(model, seeing.sound(1.5))
    with pytest.raises(DataError, match=r"audio cannot be read: it lasts 1\.50 s, and the model hears 1\.00 s; cut it"):
        seeing.request(model, "<audio>", (blob,))


def test_a_medium_of_another_kind_is_refused_by_name():
    model = seeing.of_kind("qwen2_audio")
    (blob,) = seeing.shown(model, seeing.picture())
    with pytest.raises(ModelError, match="the model reads sounds, and the prompt has pictures"):
        seeing.request(model, "<image>", (blob,))
