"""Models built from scratch."""

import pytest
import torch

from penstock.config.run import ModelSpec
from penstock.models.scratch import build_model

SPEC = ModelSpec(vocabulary=300, context=64)
CORPUS = ["3 + 4 = 7", "one two three"]


@pytest.fixture(scope="module")
def model():
    """Shared, so never to be changed."""
    return build_model(SPEC, CORPUS, seed=3)


def weights(model):
    return dict(model.policy_weights())


def test_the_same_seed_builds_the_same_weights_and_tokens(model):
    other = build_model(SPEC, CORPUS, seed=3)
    assert all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(model).items())
    assert model.text.encode("3 + 4 = 7") == other.text.encode("3 + 4 = 7")


def test_another_seed_builds_other_weights_and_a_head_of_its_own(model):
    other = build_model(SPEC, CORPUS, seed=4, head="score")
    assert not torch.equal(weights(model)["model.embed_tokens.weight"], weights(other)["model.embed_tokens.weight"])
    assert other.scores(torch.ones(2, 128)).shape == (2,)


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


def test_context_and_layers_are_those_of_the_spec_and_else_of_the_preset(model):
    other = build_model(ModelSpec(vocabulary=300, context=32, layers=1), CORPUS, seed=0)
    assert [(one.context, one.config.num_hidden_layers) for one in (model, other)] == [(64, 4), (32, 1)]


def test_the_tokenizer_covers_text_it_was_never_fitted_to(model):
    assert model.text.decode(model.text.encode("Zażółć 漢字 \t\n🙂")) == "Zażółć 漢字 \t\n🙂"


def test_the_tokenizer_keeps_digits_apart():
    text = build_model(SPEC, ["1234 " * 50], seed=0).text
    assert len(text.encode("1234")) == 4


def test_end_and_pad_differ_and_are_left_out_of_text(model):
    text = model.text
    assert text.end != text.pad
    assert text.decode([*text.encode("one"), text.end, text.pad]) == "one"


def test_a_conversation_is_rendered_up_to_the_answer(model):
    rendered = model.text.render_chat([{"role": "user", "content": "hi"}])
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert model.text.encode(rendered)[0] == model.text.encode("<|im_start|>")[0]
