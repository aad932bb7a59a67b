"""Pictures, films and sounds that environments and tools show in later turns: blobs, tokens, positions, log-probs."""

import asyncio

import numpy as np
import pytest
from env_examples import call, conversation, heard_by_tokenizer

import seeing
import tiny_models
from engine_examples import learner_logp
from media_examples import png
from penstock.core.errors import EnvError
from penstock.core.types import PART, Prompt, Sampling
from penstock.data.media import MediaStore
from penstock.data.resolve import register
from penstock.engine.encoder_decoder import embedded_generator
from penstock.envs.env import Env, Turn
from penstock.envs.making import conversations
from penstock.envs.shown import has_parts, taken, together
from penstock.envs.spec import EnvironmentSpec
from penstock.envs.tools import ToolEnv
from penstock.loops.rollout import Rollout
from penstock.models.media import MEDIA
from penstock.runtime.build import Unscored


def part(kind, value):
    return {"type": kind, kind: value}


def say(text):
    return {"type": "text", "text": text}


def shows(*observations):
    """An environment that gives one observation after another."""

    class Shows(Env):
        judges_last = False

        async def step(self, said):
            return Turn(observations[said.turn])

    return Shows


def rolled(model, env, prompt, samples=1, max_new_tokens=5, **fields):
    """Finished samples, and the generator that made them."""
    generator = embedded_generator(model, max_running=4, chunk=7)
    spec = EnvironmentSpec(function=register(env), deadline=30.0, **fields)
    make_env, sampling = conversations(spec, model.text, None), Sampling(max_new_tokens=max_new_tokens)
    roll = Rollout(generator, make_env, Unscored(), sampling, samples)
    return asyncio.run(roll.group(prompt)).samples, generator


def chat(text, *blobs):
    return Prompt(tiny_models.key(0, 0).prompt, text, ({"role": "user", "content": text},), blobs=blobs)


def assert_log_probs_agree(model, sample):
    at = np.flatnonzero(sample.action_T)
    np.testing.assert_allclose(sample.logp_T[at], learner_logp(model, sample), atol=1e-4)
    logits_TV = seeing.transformers_logits(model, sample.tokens_T, sample.blobs)
    logits_TV[:, sorted(model.text.media)] = -np.inf
    wanted = logits_TV.log_softmax(-1)[at - 1, sample.tokens_T[at].astype(np.int64)]
    np.testing.assert_allclose(sample.logp_T[at], wanted, atol=1e-4)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "gemma3", "qwen2_audio"])
def test_what_is_shown_in_later_turns_is_read_as_transformers_reads_it(kind):
    model = seeing.of_kind(kind)
    like = "llava" if kind == "qwen3_vl" else kind  # films of Qwen3-VL are long
    mark, first = seeing.example(like)
    name = mark.strip("<>")
    more = [seeing.given(seeing.example(like, seed)[1]) for seed in (1, 0)]
    (own,) = seeing.shown(model, first)
    env = shows([say("look "), part(name, more[0])], [part(name, more[1]), say(" again")])
    prompt = Prompt(tiny_models.key(0, 0).prompt, f"{mark}what is it?", blobs=(own,))
    (sample,), generator = rolled(model, env, prompt, turns=3)
    assert sample.error is None
    assert len(sample.extras["turns"]) == 3
    assert_log_probs_agree(model, sample)
    assert generator.reused_tokens > 0, "a later turn begins with what was kept of the earlier ones"
    shown_T = sample.columns[MEDIA]
    assert not (shown_T > 0)[sample.action_T].any()
    assert list(dict.fromkeys(shown_T[shown_T > 0].tolist())) == list(dict.fromkeys(blob.number for blob in sample.blobs))
    parts = [model.text.senses.tokens(blob.number) for blob in sample.blobs]
    assert (len(parts), int((shown_T > 0).sum())) == (3, sum(parts))


def test_samples_that_are_shown_the_same_picture_share_its_blob():
    model = seeing.of_kind("qwen2_5_vl")
    env = shows([part("image", seeing.picture(seed=9))])
    samples, _ = rolled(model, env, chat("look"), samples=4, turns=2)
    assert len({sample.blobs for sample in samples}) == 1
    assert len(samples[0].blobs) == 1


def test_a_conversation_that_is_rendered_anew_shows_its_pictures_again(monkeypatch):
    """The sequence before the first picture shows none, so its tokens are text."""
    model = seeing.of_kind("qwen2_5_vl")
    template = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + (messages | length) | string + message['content']"
        " + '<|im_end|>' }}{% endfor %}<|im_start|>"
    )
    monkeypatch.setattr(model.text.tokenizer, "chat_template", template)
    env = shows([part("image", seeing.picture(seed=1))], [part("image", seeing.picture(seed=2))])
    (sample,), _ = rolled(model, env, chat("look"), turns=3, history="split", max_new_tokens=2)
    assert sample.error is None
    counts = [len(set(sample.columns[MEDIA][sample.columns[PART] == number].tolist()) - {0}) for number in range(3)]
    assert counts == [0, 1, 2]
    at = np.flatnonzero(sample.action_T)
    np.testing.assert_allclose(sample.logp_T[at], learner_logp(model, sample), atol=1e-4)


def test_a_tool_gives_a_picture(threads):
    def look(place: str) -> list:
        return [say(f"this is {place}: "), part("image", png(90, 24))]

    model = seeing.of_kind("qwen2_5_vl")
    episode = conversation(ToolEnv, threads, chat("look"), model.text, options={"tools": [register(look)]})
    heard = heard_by_tokenizer(episode, model.text, call("look", place="a"))
    pad = model.text.tokenizer.decode([model.text.processor.pads["image"]])
    assert heard.count(pad) == 9
    assert "this is a: <|vision_start|>" + pad in heard
    assert [blob.kind for blob in episode.blobs] == ["image/png"]


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ([part("image", "/etc/passwd")], "a part gives its image by a path; give the file's bytes, or an array"),
        ([part("image", b"no picture")], "a part: "),
        ([part("audio", (np.zeros(10, np.float32), 2000))], "the model reads pictures and films, and the prompt has sounds"),
        ([say("<image>"), part("image", png(0, 24))], "the prompt has 1 pictures and 2 marks <image>"),
        ("a text that spells <|image_pad|>", "the text spells <|image_pad|>, which is a part of a medium"),
    ],
)
def test_what_cannot_be_shown_fails_its_sample_and_says_why(observation, message):
    (sample,), _ = rolled(seeing.of_kind("qwen2_5_vl"), shows(observation), chat("look"), turns=2)
    assert message in sample.error


def test_a_model_of_text_is_shown_nothing():
    with pytest.raises(EnvError, match=r"the model reads text alone; set model\.media=Vision\(\) or Hearing\(\)"):
        taken([part("image", png())], None)


def test_messages_keep_their_places_and_media_their_order():
    store = MediaStore()
    one, two = seeing.picture(seed=1), seeing.picture(seed=2)
    said = [{"role": "tool", "content": [say("a "), part("image", one)]}, {"role": "user", "content": "b"},
            {"role": "user", "content": [part("image", two)]}]  # fmt: skip
    assert has_parts(said)
    messages, blobs = taken(said, store)
    assert [message["content"] for message in messages] == ["a <image>", "b", "<image>"]
    assert np.array_equal(store.decoded(blobs[1].number), two)


def test_contents_stand_one_under_the_other():
    assert together(["a", "b"]) == "a\nb"
    assert together(["a", [part("image", b"x")]]) == [say("a"), say("\n"), part("image", b"x")]


def test_json_that_a_tool_gives_is_no_content_in_parts():
    assert not has_parts([{"type": "image", "url": "x"}, {"role": "user", "content": "a"}])
