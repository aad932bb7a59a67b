"""Models built from scratch."""

import pytest
import torch

from penstock.config.run import ModelSpec
from penstock.models.scratch import build_model

SPEC = ModelSpec(vocabulary=300, context=64)
CORPUS = ["3 + 4 = 7", "one two three"]


def weights(model):
    return dict(model.policy_weights())


def test_the_same_seed_builds_the_same_weights_and_tokens():
    one, other = build_model(SPEC, CORPUS, seed=3), build_model(SPEC, CORPUS, seed=3)
    assert all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(one).items())
    assert one.text.encode("3 + 4 = 7") == other.text.encode("3 + 4 = 7")


def test_another_seed_builds_other_weights():
    one, other = build_model(SPEC, CORPUS, seed=3), build_model(SPEC, CORPUS, seed=4)
    assert not torch.equal(weights(one)["model.embed_tokens.weight"], weights(other)["model.embed_tokens.weight"])


def test_building_leaves_the_global_random_stream_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    build_model(SPEC, CORPUS, seed=3)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(("preset", "millions"), [("1m", 1), ("3m", 3), ("10m", 10)])
def test_a_preset_has_about_the_size_of_its_name(preset, millions):
    model = build_model(ModelSpec(preset=preset, vocabulary=1024), CORPUS, seed=0)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(millions * 1e6, rel=0.2)


def test_the_context_is_that_of_the_spec():
    assert build_model(SPEC, CORPUS, seed=0).context == 64


def test_the_tokenizer_covers_text_it_was_never_fitted_to():
    text = build_model(SPEC, CORPUS, seed=0).text
    assert text.decode(text.encode("Zażółć 漢字 \t\n🙂")) == "Zażółć 漢字 \t\n🙂"


def test_the_tokenizer_keeps_digits_apart():
    text = build_model(SPEC, ["1234 " * 50], seed=0).text
    assert len(text.encode("1234")) == 4


def test_end_and_pad_differ_and_are_left_out_of_text():
    text = build_model(SPEC, CORPUS, seed=0).text
    assert text.end != text.pad
    assert text.decode([*text.encode("one"), text.end, text.pad]) == "one"


def test_a_conversation_is_rendered_up_to_the_answer():
    text = build_model(SPEC, CORPUS, seed=0).text
    rendered = text.render_chat([{"role": "user", "content": "hi"}])
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text.encode(rendered)[0] == text.encode("<|im_start|>")[0]


def test_a_score_head_is_built_for_a_reward_model():
    model = build_model(SPEC, CORPUS, seed=0, head="score")
    assert model.scores(torch.ones(2, 128)).shape == (2,)


def test_layers_may_differ_from_the_preset():
    assert build_model(ModelSpec(vocabulary=300, context=64, layers=1), CORPUS, seed=0).config.num_hidden_layers == 1
    assert build_model(SPEC, CORPUS, seed=0).config.num_hidden_layers == 4
